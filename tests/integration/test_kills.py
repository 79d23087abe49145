"""A run killed at any moment, again and again, ends with the bits of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedspray.files import LOCK

COMMAND = [sys.executable, "-c", "from fedspray.cli.main import entry_point as run; run()", "run", "--json"]
CHOSEN = ["--dataset", "banks", "--clients", "3", "--nodes", "300", "--rounds", "200", "--checkpoint-every", "1"]
KILLS = 100


def begin(folder: Path) -> subprocess.Popen[str]:
    """Begins a run, or goes on with it; what is left of a beginning that was killed early counts for nothing."""
    begun = (folder / "settings.json").exists()
    more = ["--resume", str(folder), "--checkpoint-every", "1"] if begun else [*CHOSEN, "--out", str(folder)]
    return subprocess.Popen([*COMMAND, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(folder: Path) -> dict[str, Any]:
    process = begin(folder)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def disturb(folder: Path, seconds: list[float]) -> int:
    """Kills the run after each of these times, counted from where it takes its folder; returns how many met it."""
    met = 0
    for wait in seconds:
        (folder / LOCK).unlink(missing_ok=True)  # of the process that is dead
        process = begin(folder)
        deadline = time.monotonic() + 60
        while not (folder / LOCK).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(wait)
        met += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (folder / "result.json").exists():
            break
    return met


@pytest.mark.nightly
def test_a_hundred_kills(tmp_path: Path) -> None:
    straight, draw, met = finish(tmp_path / "straight"), random.Random(0), 0
    run = 0
    while met < KILLS:
        folder = tmp_path / f"run-{run}"
        met += disturb(folder, [draw.uniform(0, 1.0) for _ in range(25)])
        ended = finish(folder)
        assert ended["models"] == straight["models"]
        kept = ("overall", "minority", "bytes_up", "bytes_down", "bytes_evaluation", "best_round")
        assert [ended["seeds"][0][key] for key in kept] == [straight["seeds"][0][key] for key in kept]
        run += 1
    print(f"{met} kills in {run} runs")
