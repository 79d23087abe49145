"""Files of a federation between organisations that hold something else than they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedspray import files, stored
from fedspray.deploy import kinds, ledger
from fedspray.deploy.operations import events
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.kit import Server
from fedspray.deploy.server.progress import read_exchanges, read_progress
from fedspray.deploy.site import proxy, status
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError


@pytest.mark.parametrize(
    ("content", "reader", "path"),
    [
        ({"north": {"key": 3}}, members.read, "local/members.json"),
        ({"north": []}, members.read, "local/members.json"),
        ({"host": "h", "port": "8002", "grace": 60.0}, Project.open, "project.json"),
        ({"host": "h", "port": 8002, "grace": 60.0, "about": {"north": 1}}, Project.open, "project.json"),
        ({"name": "north", "data": 3}, Site.open, "local/site.json"),
        ({"name": "north", "threads": 0}, Site.open, "local/site.json"),
        ({"name": None}, Site.open, "local/site.json"),
        ({"name": "north", "proxy": 3128}, Site.open, "local/site.json"),
        ({"name": "north", "proxy": ["http://proxy:3128"]}, proxy.of, "local/site.json"),
        ({"name": 7}, events.sources, "local/site.json"),
        ({"said": 7}, status.benefits, "models/run/seed-0.benefit.json"),
        ({"runs": 3}, Server.open, "local/server.json"),
    ],
)
def test_cards_and_lists_are_refused(content: Any, reader: Any, path: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True, parents=True)
    files.write_json(file, content)
    with pytest.raises(InputError, match=file.name):
        reader(tmp_path)


def test_lines_of_another_kind_are_left_out(tmp_path: Path) -> None:
    good = {"time": "t", "run": "r", "seed": 0, "round": 1, "bytes": 9, "fields": {"model": 9}}
    wrong: list[Any] = [
        {**good, "bytes": "9"}, {**good, "fields": {"model": []}}, {**good, "run": None}, [good], 7,
        {"event": 3, "time": "t"}, {"event": "x", "what": ["y"]},
    ]  # fmt: skip
    events = [{"event": "came", "time": "t", "sender": "north", "what": ""}]
    lines = [*wrong, good, *events]
    (tmp_path / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"cut')
    assert [line["bytes"] for line in ledger.read_answers(tmp_path)] == [9]
    assert ledger.read_events(tmp_path) == events
    assert ledger.what_left(tmp_path)["r"]["answers"] == 1


def test_damaged_progress_and_exchanges_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    for content in ('{"round": "1"}', "[]", "{", ""):
        (tmp_path / "progress.json").write_text(content)
        assert read_progress(tmp_path) == {}
    exchange = {"round": 1, "time": 1.0, "sites": {"north": {"failed": None}}}
    lines = [exchange, {**exchange, "sites": {"north": None}}, {**exchange, "round": "1"}]
    (tmp_path / "seed-0" / "exchanges.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_exchanges(tmp_path, 0) == [exchange]


def test_the_secret_of_a_sites_noise_must_be_a_number(tmp_path: Path) -> None:
    files.write_json(tmp_path / "secret.json", {"secret": "7"})
    with pytest.raises(InputError, match="secret"):
        stored.read(tmp_path / "secret.json", kinds.Secret)
