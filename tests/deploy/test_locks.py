from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedspray.deploy import locks
from fedspray.deploy.locks import Lock, holder

HOLD = "import sys, time; from pathlib import Path; from fedspray.deploy.locks import Lock; "
HOLD += "Lock(Path(sys.argv[1])).acquire(1); print('held', flush=True); time.sleep(60)"


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "lock"
    assert holder(path) is None
    lock = Lock(path)
    lock.acquire(0)
    assert holder(path) == os.getpid()
    with pytest.raises(TimeoutError, match="held by another"):
        Lock(path).acquire(0)
    lock.release()
    assert holder(path) is None


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    with hold(tmp_path / "lock") as other:
        assert holder(tmp_path / "lock") == other.pid
        other.kill()
        other.wait()
        Lock(tmp_path / "lock").acquire(0)


def test_an_old_process_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.3)
    with hold(tmp_path / "lock") as other:
        lock = Lock(tmp_path / "lock")
        lock.take_over()
        assert other.wait(timeout=60) == -9
        assert holder(tmp_path / "lock") == os.getpid()
        lock.release()
