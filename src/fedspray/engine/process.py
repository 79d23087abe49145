"""The process that training runs in: settings for speed, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_GIB = 1 << 30


@cache
def prepare_process() -> None:
    """Keeps freed memory for the next step; repeated calls do nothing.

    By default every large tensor is returned to the system and fetched again, page by page.
    """
    with contextlib.suppress(AttributeError, OSError):  # there is no mallopt outside glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _GIB)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _GIB - 1)


@contextlib.contextmanager
def flush_denormals() -> Iterator[None]:
    """Treats numbers below 1e-38 as 0 inside the block.

    Late in a run many moments and gradients get that small, and a CPU handles them in microcode: FedAvg on Physics
    slowed down by half.
    """
    before = bool(torch.tensor([1e-45]).mul(1) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def release_memory() -> None:
    """Returns freed memory to the system, if it supports that."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_memory() -> int | None:
    """Bytes of this process in memory now; None if unknown."""
    return _status("VmRSS")


def process_peak() -> int:
    """The most bytes that this process ever had in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], int | None]]:
    """Yields a function that returns the peak memory since the start of the block, None if unknown."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        yield lambda: None
    else:
        yield lambda: _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
