"""Files for their owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

OWNER_ALONE = 0o077
"""The umask of every process of a federation: folders are made with mode 700 and files with mode 600."""


@contextmanager
def private_files() -> Iterator[None]:
    """Whatever is made meanwhile is closed to everybody else from its first moment on."""
    before = os.umask(OWNER_ALONE)
    try:
        yield
    finally:
        os.umask(before)
