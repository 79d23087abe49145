"""Random streams by name.

Every draw comes from (seed, purpose, client, round …), never from a global generator: so a draw is the
same for one client alone and for many at once, in one process or in ten, and in any order.
A client is identified by its name or, in training, by its id: its place in the federation.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def stream_key(seed: int, *names: str | int) -> int:
    """A 128-bit key for the stream with these names."""
    text = "\x1f".join([str(int(seed)), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """The NumPy generator of the stream ``names`` under ``seed``.

    >>> generator(0, "split", "client_01").integers(100) == generator(0, "split", "client_01").integers(100)
    np.True_
    """
    import numpy as np

    return np.random.default_rng(stream_key(seed, *names))


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """The same stream as a torch generator on the CPU."""
    import torch

    return torch.Generator().manual_seed(stream_key(seed, *names) % 2**63)
