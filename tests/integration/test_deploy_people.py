"""The commands of the coordinator and of the sites, as these people use them, from the zip files to the result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from federations import fedspray, result, stable

from fedspray.deploy.ledger import read_events
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.local import free_port
from fedspray.deploy.server.progress import read_progress

pytestmark = pytest.mark.nightly

SITES = ("bank_00", "bank_01", "bank_02")
ROUNDS = 60


def say(*arguments: str | Path, code: int = 0) -> str:
    """Runs a command to its end and returns what it said."""
    process = fedspray(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out + err


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A project and three sites that made their own keys: one before the project, two after; nothing runs yet."""
    say("partition", "--dataset", "banks", "--clients", "3", "--nodes", "600", "--out", tmp_path / "data")
    for site in SITES:
        say("site", "request", kit(tmp_path, site), "--name", site)
    (tmp_path / "requests").mkdir()
    shutil.copy(kit(tmp_path, "bank_02") / "bank_02.csr", tmp_path / "requests")
    named = [flag for site in SITES for flag in ("--site", site)]
    data = ["--features", "32", "--classes", "2", "--rounds", str(ROUNDS), "--min-clients", "2", "--grace", "4"]
    address = ["--host", "localhost", "--port", str(free_port())]
    said = say("deploy", "init", tmp_path / "fraud", *named, *address, *data, "--csr", tmp_path / "requests")
    assert "bank_02.zip holds no secret" in said
    for site in SITES[:2]:
        say("deploy", "sign", tmp_path / "fraud", kit(tmp_path, site) / f"{site}.csr")
    for site in SITES:
        say("site", "unpack", kit(tmp_path, site), tmp_path / "fraud" / "zips" / f"{site}.zip")
    yield tmp_path
    processes.stop([tmp_path / "fraud" / "kits" / "server", *(kit(tmp_path, site) for site in SITES)])


def kit(place: Path, site: str) -> Path:
    return place / "sites" / f"fraud-{site}"


def wait_for(place: Path, run: str, round_index: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while read_progress(place / "fraud" / "runs" / run).get("round", 0) < round_index:
        assert time.monotonic() < deadline, f"round {round_index} was not reached"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_from_zip_files_to_a_result(place: Path) -> None:
    project = place / "fraud"
    assert "not running" in say("deploy", "run", project, code=2)
    for site in SITES:
        found = json.loads(say_json("site", "check", kit(place, site), "--data", place / "data" / "clients" / site))
        assert found["site"] == found["certificate"]["name"] == site
        assert found["nodes"] == 200
        assert "num_train" in found["fields_up"]
    say("deploy", "start", project)
    for site in SITES:
        assert "not ready" not in say("site", "start", kit(place, site), "--accept-all")

    # The coordinator goes home; the run does not care, and another terminal comes back to it.
    driver = fedspray("deploy", "run", project, "--run", "first", "--json")
    wait_for(place, "first", 5, driver)
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "the run continues" in err
    driver = fedspray("deploy", "run", project, "--attach", "--json")
    summary = result(driver)

    alone = ["--dataset", str(place / "data"), "--rounds", str(ROUNDS), "--min-clients", "2", "--json"]
    here = result(fedspray("run", *alone, "--out", place / "here"))
    assert summary["models"] == here["models"]
    assert stable(summary)["seeds"] == stable(here)["seeds"]
    status = json.loads(say_json("deploy", "status", project))
    assert status["runs"]["first"]["state"] == "done"
    assert status["runs"]["first"]["missed"] == {}
    assert all(jobs is not None for jobs in status["sites"].values())
    ledger = json.loads(say_json("site", "ledger", kit(place, "bank_01")))
    assert ledger["runs"]["first"]["answers"] == ROUNDS + 3  # its yes, its numbers, every round, its report
    model = kit(place, "bank_01") / "models" / "first" / "seed-0"
    say("predict", "--model", model, "--graph", place / "data" / "clients" / "bank_01", "--out", place / "p.csv")


def test_a_project_that_is_moved_goes_on(place: Path) -> None:
    project, moved = place / "fraud", place / "moved"
    for site in SITES:
        say("site", "check", kit(place, site), "--data", place / "data" / "clients" / site)
    say("deploy", "start", project)
    for site in SITES:
        say("site", "start", kit(place, site), "--accept-all")
        assert "is running already" in say("site", "start", kit(place, site), "--foreground", code=2)
    assert "is running already" in say("deploy", "start", project, "--foreground", code=2)
    driver = fedspray("deploy", "run", project, "--run", "first", "--json")
    wait_for(place, "first", 5, driver)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=30)
    project.rename(moved)
    try:
        assert "moved while" in say("deploy", "run", moved, "--attach", code=2)
        say("deploy", "stop", moved)
        say("deploy", "start", moved)
        summary = result(fedspray("deploy", "run", moved, "--attach", "--json"))
        assert summary["seeds"][0]["failures"] == 0
        assert not project.exists()
    finally:
        processes.stop([moved / "kits" / "server"])


def test_a_site_that_is_away_misses_rounds_and_comes_back(place: Path) -> None:
    project = place / "fraud"
    for site in SITES:
        say("site", "check", kit(place, site), "--data", place / "data" / "clients" / site)
    say("deploy", "start", project)
    for site in SITES:
        say("site", "start", kit(place, site), "--accept-all")
    driver = fedspray("deploy", "run", project, "--run", "first", "--json")
    wait_for(place, "first", 5, driver)
    pid = processes.running(kit(place, "bank_01"))
    assert pid is not None
    for each in (pid, *processes.job_processes(kit(place, "bank_01"))):
        os.kill(each, signal.SIGKILL)
    away = read_progress(project / "runs" / "first")["round"]
    wait_for(place, "first", away + 3, driver)  # the grace time is over: the others go on
    say("site", "start", kit(place, "bank_01"))
    out, err = driver.communicate(timeout=200)
    assert driver.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    missed = json.loads(say_json("deploy", "status", project))["runs"]["first"]["missed"]
    assert set(missed) == {"bank_01"}
    assert away - 1 <= missed["bank_01"][0] <= away + 1
    assert missed["bank_01"][-1] < ROUNDS - 5, "it came back"
    assert summary["seeds"][0]["failures"] == len(missed["bank_01"])
    assert set(summary["models"]) == set(SITES)


def test_who_does_not_take_part_is_told_and_not_waited_for(place: Path) -> None:
    """One site is disabled, one refuses; later the server goes away under the coordinator's terminal."""
    project, (first, refusing, disabled) = place / "fraud", SITES
    settings = json.loads((project / "project.json").read_text())
    (project / "project.json").write_text(json.dumps({**settings, "grace": 90.0}))  # longer than this test waits
    for site in SITES:
        say("site", "check", kit(place, site), "--data", place / "data" / "clients" / site)
    say("deploy", "start", project)
    for site in (first, disabled):
        say("site", "start", kit(place, site), "--accept-all")
    say("site", "start", kit(place, refusing))
    assert "is running already" in say("site", "start", kit(place, refusing), "--accept-all", code=2)
    say("deploy", "disable", project, disabled)
    began = time.monotonic()
    driver = fedspray("deploy", "run", project, "--run", "first")
    while "first" not in json.loads(say_json("site", "status", kit(place, refusing)))["asking"]:
        assert time.monotonic() - began < 60, "the disabled site is awaited, or a command that failed gave consent"
    say("site", "refuse", kit(place, refusing), "first", "--reason", "not before the audit")
    while not any(event["event"] == "run refused" for event in read_events(project / "runs" / "first")):
        assert time.monotonic() - began < 120
        time.sleep(0.1)
    say("deploy", "stop", project)
    time.sleep(15)  # the driver asks a server that is not there
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert f"run refused: {refusing}: " in out + err
    assert "not before the audit" in out + err
    assert "the server is down" in out + err


def say_json(*arguments: str | Path) -> str:
    process = fedspray(*arguments, "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out
