"""One process at a time: a lock that the system releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

from fedspray.errors import disk_full_at

PID_FILE = "fedspray.pid"
"""The lock of a kit, in its folder: held by the kit's process."""
PATIENCE = 3.0
"""Seconds for the previous process to end by itself."""


class Lock:
    """A lock file. After a crash the old process may live on for a moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: int | None = None

    def acquire(self, seconds: float) -> None:
        """Takes the lock within some time, or raises `TimeoutError`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stream = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    os.close(stream)
                    raise TimeoutError(f"{self._path} is held by another process") from None
                time.sleep(0.05)
                continue
            self._stream = stream
            try:
                with disk_full_at(self._path):
                    os.ftruncate(stream, 0)
                    os.write(stream, f"{os.getpid()}\n".encode())
            except Exception:
                self.release()
                raise
            return

    def take_over(self) -> None:
        """Takes the lock; ends a previous job process that has not noticed its end."""
        try:
            self.acquire(PATIENCE)
        except TimeoutError:
            old = holder(self._path)
            if old:
                os.kill(old, signal.SIGKILL)
            self.acquire(PATIENCE)

    def release(self) -> None:
        """Gives the lock back."""
        if self._stream is not None:
            os.close(self._stream)
            self._stream = None


def holder(path: Path) -> int | None:
    """The process that holds a lock, or None if nobody does."""
    try:
        stream = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two that only look are not in each other's way
    except OSError:
        text = os.read(stream, 32).decode().strip()
        return int(text) if text.isdigit() else 0
    else:
        return None
    finally:
        os.close(stream)
