"""Settings of the process that training runs in. They change its speed, not what it computes."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_GIB = 1 << 30


@cache
def prepare_process() -> None:
    """Makes this process ready for training; further calls do nothing.

    - Numbers below 1e-38 count as 0. Late in a run many moments and gradients get that small, and a CPU
      handles them in microcode: FedAvg on Physics slowed down by half.
    - Freed memory is kept for the next step. By default every large tensor is returned to the system and
      fetched again, page by page.
    """
    torch.set_flush_denormal(True)
    with contextlib.suppress(AttributeError, OSError):  # there is no mallopt outside glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _GIB)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _GIB - 1)


def release_memory() -> None:
    """Gives freed memory back to the system, where that can be asked for."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
