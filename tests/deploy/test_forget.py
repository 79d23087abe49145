"""Forgetting a site: nothing of it alone is left in a project, and the others go on as if it were not there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from sites import Crash, Sites
from toys import ragged_federation

from fedspray import algorithms, files
from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.locks import PID_FILE, Lock
from fedspray.deploy.messages.wire import Ask
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.forget import client_axes, forget
from fedspray.deploy.provisioning.kits import Address
from fedspray.deploy.provisioning.project import Project
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.runs import store
from fedspray.runs.settings import resolve

GONE = "client_01"
JOB = "0f8fad5b-d9cb-469f-a165-70867728950e"


class Federation:
    """A project whose run was cut short in its fourth round, and its sites in this process."""

    def __init__(self, folder: Path, algorithm: str, link: tuple[str, ...] = (), silent: int = 99) -> None:
        federation = ragged_federation()
        settings = RunSettings(algorithm=algorithm, values={"rounds": 5, "min_clients": 2}, link=link)
        self.agreement = Agreement(federation.roster, settings)
        folder.mkdir()
        self.sites, self.project = Sites(folder, federation, self.agreement), Project(folder, Address("localhost"))
        for name in ("server/local", "server/startup", f"server/{JOB}", f"{GONE}/local"):
            (folder / "kits" / name).mkdir(parents=True)
        (self.project.server / "startup" / "fed_server.json").write_text("{}")
        (self.project.server / JOB / "log.txt").write_text(f"{GONE} did this")
        (self.project.server / "console.log").write_text(f"{GONE} did that")
        self.project = Project(folder, Address("localhost"), about={GONE: {"contact": "x"}}, organisations={GONE: "y"})
        self.project.save()
        self.agreement.save(folder)
        self.agreement.save(self.project.server / "local")
        (folder / "runs").mkdir()
        (folder / "run").rename(folder / "runs" / "run")
        (folder / "run").symlink_to(folder / "runs" / "run")
        self.run_folder = folder / "runs" / "run"
        self.agreement.save(self.run_folder)
        self.silent = silent

    def play(self, until: int) -> dict[str, Any] | None:
        def trouble(name: str, ask: Ask) -> str | None:
            if ask.request.round_index == until and name == "client_02":
                raise Crash
            return "away" if name == GONE and ask.request.round_index >= self.silent else None

        self.sites.trouble = trouble
        try:
            return self.sites.run()
        except Crash:
            return None

    def forget(self) -> None:
        for folder in (self.project.server, self.run_folder):
            ledger.write_event(folder, "left out", GONE, "from round 1 on")
            ledger.write_event(folder, "waiting", "client_00, client_01", f"waiting for {GONE}, client_00")
        forget(self.project, GONE)
        self.sites.left = members.left(self.project.server)

    def records(self) -> list[dict[str, Any]]:
        return files.read_lines(self.run_folder / "seed-0" / store.RECORDS)


def mentions(folder: Path, name: str) -> set[str]:
    """The files below a folder that name somebody."""
    pattern = re.compile(rf"(?<![\w-]){name}(?![\w-])".encode())
    found = [path for path in folder.rglob("*") if path.is_file() and pattern.search(path.read_bytes())]
    return {path.relative_to(folder).as_posix() for path in found}


def of_others(record: dict[str, Any]) -> dict[str, Any]:
    """What a record says of the other clients, and of all that were there."""
    return {key: record[key] for key in ("round", "train", "val", "test", "clients")}


@pytest.mark.parametrize(
    ("algorithm", "link"), [("fedspray", ()), ("fedavg", ("compress",)), ("fed-pub", ()), ("gcfl", ())]
)
def test_a_run_goes_on_as_if_the_site_had_been_silent_from_there(
    tmp_path: Path, algorithm: str, link: tuple[str, ...]
) -> None:
    """Whose validation counts were dropped as well: what `deploy remove` does."""
    removed, forgotten = (Federation(tmp_path / name, algorithm, link) for name in ("removed", "forgotten"))
    for federation in (removed, forgotten):
        assert federation.play(until=4) is None
    removed.sites.left = frozenset({GONE})
    forgotten.forget()
    expected, found = removed.play(until=99), forgotten.play(until=99)
    assert expected is not None
    assert found is not None
    assert found["models"] == expected["models"]
    assert set(found["models"]) == {"client_00", "client_02"}
    assert [*map(of_others, forgotten.records())][3:] == [*map(of_others, removed.records())][3:]


@pytest.mark.parametrize(("algorithm", "link"), [("fedspray", ()), ("fedavg", ("compress",)), ("fed-pub", ())])
def test_what_is_left_is_as_in_a_run_that_never_had_it(tmp_path: Path, algorithm: str, link: tuple[str, ...]) -> None:
    """Same files, same names in them, same places that are empty; only the name is in the agreement."""
    never, forgotten = (Federation(tmp_path / name, algorithm, link, silent) for name, silent in (("n", 0), ("f", 99)))
    for federation in (never, forgotten):
        federation.play(until=4)
    forgotten.forget()
    k = str(forgotten.agreement.roster.clients.index(GONE))
    (ours, meta), (theirs, other) = (store.read_checkpoint(f.run_folder / "seed-0") for f in (forgotten, never))
    assert meta is not None
    assert other is not None
    assert set(ours) == {name for name in theirs if not name.startswith(f"engine.links.{k}.")}  # of what it was sent
    rows = client_axes(forgotten.agreement.algorithms[0], forgotten.agreement.roster.task, torch.float32)
    assert not any(ours[name].select(axis, int(k)).any() for name, axes in rows.items() for axis in axes)
    assert ours["engine.heard"].tolist() == theirs["engine.heard"].tolist() == [3, 0, 3]
    assert set(meta["progress"]["validation"]) == set(other["progress"]["validation"]) == {"0", "2"}
    for mine, their in zip(forgotten.records(), never.records(), strict=True):
        assert set(mine["clients"]) == set(their["clients"]) == {"0", "2"}
        assert mine["bytes_up_by_client"][int(k)] == their["bytes_up_by_client"][int(k)] == 0
        assert (mine["trained"], mine["evaluated"]) == (their["trained"], their["evaluated"])
    assert mentions(tmp_path / "f" / "runs", GONE) == {"run/agreement.json"}
    assert mentions(tmp_path / "f" / "kits", GONE) == {
        *("server/local/agreement.json", "server/local/members.json", "server/events.jsonl")
    }
    assert "client_01" not in (tmp_path / "f" / "project.json").read_text()
    told = [json.loads(line) for line in (forgotten.project.server / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["sender"]) for event in told] == [
        ("waiting", "client_00, a forgotten site"),
        ("forgotten", GONE),
    ]
    assert not (forgotten.project.server / JOB).exists()


def test_a_finished_run_can_be_read_afterwards(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "toy", "fedspray")
    before = federation.play(until=99)
    assert before is not None
    federation.forget()
    after = files.read_json(federation.run_folder / "result.json")
    assert set(after["models"]) == set(after["seeds"][0]["clients"]) == {"client_00", "client_02"}
    assert after["overall"] == before["overall"], "what all had together stays"
    assert len(files.read_chain(federation.run_folder / "seed-0" / store.RECORDS, 5)[1]) == 5
    assert mentions(federation.run_folder, GONE) == {"agreement.json"}


@pytest.mark.parametrize("name", algorithms.names())
def test_which_rows_of_a_server_are_of_one_client(name: str) -> None:
    task, run = ragged_federation().roster.task, resolve(RunSettings(algorithm=name))
    axes = client_axes(run.algorithm, task, run.dtype)
    rows = {key for key, found in axes.items() if found}
    keepers = {
        "fed-pub": "server.gnn.",
        "fedgta": "server.gnn.",
        "gcfl": "server.cluster_of",
        "fedlit": "server.orders",
    }
    if name in keepers:
        assert any(key.startswith(keepers[name]) for key in rows), axes
    if name in ("fedavg", "fedspray", "fedproto", "fedprox", "moon", "local"):
        assert rows == set()


def test_a_server_that_runs_is_left_alone(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "toy", "fedavg")
    lock = Lock(federation.project.server / PID_FILE)
    lock.acquire(1.0)
    with pytest.raises(InputError, match="is in use"):
        forget(federation.project, GONE)
    lock.release()
    with pytest.raises(InputError, match="'west' is not a site"):
        forget(federation.project, "west")
    shutil.rmtree(tmp_path)
