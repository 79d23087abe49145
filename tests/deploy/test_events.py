"""Events for a SIEM: stable names, each event once, from a site and from the coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedspray.cli.main import run_command
from fedspray.data.federation import Task
from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.operations import events
from fedspray.deploy.provisioning.kits import Address
from fedspray.deploy.provisioning.project import Project
from fedspray.errors import MissingDataError
from fedspray.experiment import RunSettings

FIELDS = ["time", "source", "name", "run", "bytes", "event", "sender", "what", "severity"]


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "site.json").write_text('{"name": "north"}')
    ledger.write_event(kit, "started", "site", "process 1")
    ledger.write_answer(
        kit, {"time": ledger.now(), "run": "r", "seed": 0, "round": 2, "bytes": 70, "fields": {"uplink.x": 64}}
    )
    ledger.write_event(kit, "refused", "ser\x1bver", "a job")
    return kit


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "fraud"
    server, run = folder / "kits" / "server", folder / "runs" / "first"
    for each in (server / "startup", run):
        each.mkdir(parents=True)
    (server / "startup" / "fed_server.json").write_text("{}")
    Agreement.between("fraud", ["north"], Task(5, 3), RunSettings(algorithm="fedavg")).save(folder)
    (run / "settings.json").write_text("{}")
    Project(folder, Address("localhost")).save()
    ledger.write_event(run, "submitted", "coordinator", "job 1")
    ledger.write_event(server, ledger.LOST, "north", "it hung up")
    return folder


def test_what_a_site_tells(kit: Path) -> None:
    first, answer, refused = events.read(kit)
    assert [*first] == [*answer] == [*refused] == FIELDS
    assert (first["source"], first["name"], first["run"], first["severity"]) == ("site", "north", None, "info")
    assert (answer["event"], answer["run"], answer["bytes"], answer["sender"]) == ("answer", "r", 70, "north")
    assert answer["what"] == "seed 0, round 2: uplink.x"
    assert (refused["severity"], refused["sender"]) == ("warning", "ser ver")


def test_what_a_project_tells(project: Path) -> None:
    found = {event["source"]: event for event in events.read(project)}
    assert (found["run"]["run"], found["run"]["event"], found["run"]["severity"]) == ("first", "submitted", "info")
    assert (found["server"]["run"], found["server"]["name"], found["server"]["severity"]) == (None, "fraud", "warning")


def test_following(kit: Path) -> None:
    more = iter(["one", "two"])

    def wait(_: float) -> None:
        ledger.write_event(kit, "notice", "server", next(more))

    lines = events.stream(kit, follow=True, wait=wait)
    assert [json.loads(next(lines))["what"] for _ in range(5)][2:] == ["a job", "one", "two"]


def test_the_commands(kit: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["site", "events", str(kit)]) == 0
    printed = capsys.readouterr().out
    assert [json.loads(line)["event"] for line in printed.splitlines()] == ["started", "answer", "refused"]
    out = tmp_path / "siem.jsonl"
    for _ in range(2):
        assert run_command(["site", "events", str(kit), "--out", str(out)]) == 0
        assert out.read_text() == printed
    assert out.stat().st_mode & 0o077 == 0
    ledger.write_event(kit, "notice", "server", "more")
    assert run_command(["site", "events", str(kit), "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 4
    assert run_command(["deploy", "events", str(project)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    with pytest.raises(MissingDataError):
        events.read(tmp_path)
