"""Folders for the sockets between a process and its job: closed to other users, and removed however the process ends.

A process holds a lock on its folder as long as it lives. Whoever starts or stops a kit removes the folders of this user
that nobody holds any more. Nothing here imports NVFlare, so that `fedspray site stop` is quick.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "fedspray-socket-"
FRESH = 60.0
"""Seconds in which a folder without a socket may still be getting its lock."""
_held: list[int] = []


def new_folder() -> Path:
    """A folder that this process holds. Not in the kit: its path may be too long for a socket."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    stream = os.open(folder, os.O_RDONLY)  # no child process inherits it
    fcntl.flock(stream, fcntl.LOCK_EX)
    _held.append(stream)
    return folder


def sweep() -> list[Path]:
    """Removes this user's folders that no living process holds, and returns them."""
    return [left for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_left(left) and _remove(left)]


def _is_left(folder: Path) -> bool:
    try:
        if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
            return False
        if not any(folder.iterdir()) and time.time() - folder.stat().st_mtime < FRESH:
            return False
        stream = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # somebody else was faster
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(stream)
    return True


def _remove(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    return not folder.exists()
