"""A run that is killed again and again ends with the bits of one that was left alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FEDSPRAY = Path(sys.executable).with_name("fedspray")
RUN = ["--dataset", "banks", "--nodes", "2000", "--rounds", "400", "--checkpoint-every", "3", "--json"]


def fedspray(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([FEDSPRAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    for row in summary["seeds"]:
        row.pop("seconds")
        row.pop("cpu_seconds")
    return summary


def records(folder: Path) -> int:
    file = folder / "seed-0" / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "times"), [("fedspray", 3), pytest.param("fedavg", 10, marks=pytest.mark.nightly)]
)
def test_kills_change_nothing(tmp_path: Path, algorithm: str, times: int) -> None:
    run = ["run", *RUN, "--algorithm", algorithm]
    untouched = result(fedspray(*run, "--out", str(tmp_path / "untouched")))
    broken = tmp_path / "broken"
    moment = random.Random(algorithm)
    kills = 0
    command = [*run, "--out", str(broken)]
    while kills < times:
        process = fedspray(*command)
        # The first kill comes before anything but the settings is there; the others at any time in training.
        wait_for = 0 if kills == 0 else records(broken) + 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if (broken / "settings.json").exists() and records(broken) >= wait_for:
                break
            time.sleep(0.01)
        time.sleep(moment.uniform(0, 0.6) if kills else 0)
        assert process.poll() is None, "the run ended before it could be killed: make it longer"
        process.kill()
        process.communicate()
        kills += 1
        command = ["run", "--resume", str(broken), "--checkpoint-every", "3", "--json"]
    assert result(fedspray(*command)) == untouched
    assert not list(broken.rglob("*.tmp"))
    assert result(fedspray(*command)) == untouched  # a finished run prints its result again
