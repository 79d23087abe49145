"""Folders of sockets: whoever comes next removes those of dead processes, and of nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedspray.deploy.network import sockets

HOLD = (
    "import time\nfrom fedspray.deploy.network.sockets import new_folder\nfolder = new_folder()\n"
    "(folder / 'job').touch()\nprint(folder, flush=True)\ntime.sleep(60)\n"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def hold() -> Iterator[Callable[[], tuple[subprocess.Popen[str], Path]]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_process_leaves_a_folder_that_the_next_removes(
    hold: Callable[[], tuple[subprocess.Popen[str], Path]],
) -> None:
    (killed, left), (_, kept) = hold(), hold()
    assert left.stat().st_mode & 0o777 == 0o700
    assert sockets.sweep() == []
    killed.kill()
    killed.wait()
    assert sockets.sweep() == [left]
    assert kept.is_dir()
    assert not left.exists()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "job").touch()
    (tmp_path / f"{sockets.PREFIX}link").symlink_to(target)
    fresh = tmp_path / f"{sockets.PREFIX}fresh"  # its process is about to take its lock
    fresh.mkdir()
    others = tmp_path / f"{sockets.PREFIX}others"
    others.mkdir()
    (others / "job").touch()
    if os.getuid() == 0:
        os.chown(others, 12345, 12345)
    found = sockets.sweep()
    assert found == ([] if os.getuid() == 0 else [others])
    assert (target / "job").exists()
    os.utime(fresh, (0, 0))
    assert sockets.sweep() == [fresh]
