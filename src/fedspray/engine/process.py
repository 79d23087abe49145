"""Settings of the process that training runs in, for speed."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_GIB = 1 << 30


@cache
def prepare_process() -> None:
    """Keeps freed memory for the next step; further calls do nothing.

    By default every large tensor is returned to the system and fetched again, page by page.
    """
    with contextlib.suppress(AttributeError, OSError):  # there is no mallopt outside glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _GIB)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _GIB - 1)


@contextlib.contextmanager
def tiny_numbers_are_zero() -> Iterator[None]:
    """Numbers below 1e-38 count as 0 inside the block.

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
    """Gives freed memory back to the system, where that can be asked for."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
