"""A comparison that is killed loses no finished cell, repeats none, and goes on with those in work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FEDSPRAY = Path(sys.executable).with_name("fedspray")
ROUNDS = 120


def start(folder: Path) -> subprocess.Popen[str]:
    """Four cells, two at a time, in a process group of their own."""
    arguments = ["compare", "--nodes", "1500", "--rounds", str(ROUNDS), "--seeds", "2", "--bootstrap", "50"]
    arguments += ["--algorithm", "fedspray", "--algorithm", "fedavg", "--jobs", "2", "--keep-runs", "--json"]
    arguments += ["--cells", str(folder / "cells"), "--out", str(folder / "out")]
    return subprocess.Popen(
        [FEDSPRAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    for row in summary["rows"]:
        del row["seconds"], row["cpu_seconds"]
    return summary, err


def finished(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in (folder / "cells").glob("*.json")}


def rounds_of_unfinished(folder: Path) -> dict[Path, int]:
    """By run folder: the rounds in its records, for cells that are begun and not finished."""
    found = {}
    for run in (folder / "cells" / "runs").glob("*"):
        records = next(run.glob("seed-*/rounds.jsonl"), None) if run.is_dir() else None
        if records is not None and not (folder / "cells" / f"{run.name}.json").exists():
            found[run] = records.read_bytes().count(b"\n")
    return found


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return finish(start(tmp_path_factory.mktemp("untouched")))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "whole_group",
    [
        pytest.param(True, id="all processes", marks=pytest.mark.nightly),
        pytest.param(False, id="the parent alone"),
    ],
)
def test_kill_and_start_again(tmp_path: Path, untouched: dict[str, Any], whole_group: bool) -> None:
    broken = tmp_path
    process = start(broken)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if finished(broken) and any(rounds > 5 for rounds in rounds_of_unfinished(broken).values()):
            break
        time.sleep(0.02)
    assert process.poll() is None, "the comparison ended before it could be killed: make it longer"
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()  # its workers go on until they notice
    process.communicate(timeout=60)  # returns when the last of its processes is gone
    before = finished(broken)
    begun = {run: json.loads((run / "settings.json").read_text())["started"] for run in rounds_of_unfinished(broken)}
    assert 0 < len(before) < 4
    assert begun

    again, messages = finish(start(broken))
    after = finished(broken)
    assert {name: after[name] for name in before} == before  # neither lost nor run again
    assert f"{len(before)} of 4 cells are already finished" in messages
    assert len(after) == 4
    for run, started in begun.items():  # resumed, not begun anew
        assert json.loads((run / "settings.json").read_text())["started"] == started
    assert again == untouched
    assert not list((broken / "cells").rglob("?*.lock"))  # a kept run folder has its own .lock
    assert not list((broken / "cells").rglob("*.tmp"))


@pytest.mark.slow
def test_ctrl_c_leaves_the_finished_cells(tmp_path: Path) -> None:
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not finished(tmp_path):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "command to continue" in err
    assert "Traceback" not in err
    before = finished(tmp_path)
    assert 0 < len(before) < 4
    finish(start(tmp_path))
    assert {name: finished(tmp_path)[name] for name in before} == before
