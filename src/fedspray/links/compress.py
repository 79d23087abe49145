"""Fewer bits for each number, both ways, with error feedback.

Up, with x what a client sends, relative to what it received if that came down, and e the error left by earlier rounds:

    c = x + e        send Q(c) and the scale of each tensor        e ← c - Q(c) stays at the client

Down likewise, with e at the server; there x is the message itself, so a client that misses one only loses the
error of one round. Q rounds to whole multiples of max|c| / 127 (8 bits) or max|c| / 7 (4 bits), or to float16 (16).
Counts, and tensors of fewer than 64 numbers, travel as they are. Keys that didn't come down go up with at least 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedspray.backbones.base import setting
from fedspray.links.base import Link, Memory, Trip
from fedspray.messages import key_of
from fedspray.nn.tree import Message

BITS = (4, 8, 16, 32)
SMALL = 64
"""Tensors of fewer numbers travel as they are."""


@dataclass(frozen=True, kw_only=True)
class Compress(Link):
    """Rounds messages, and sends the rounding error in later rounds."""

    summary: ClassVar[str] = "4, 8 or 16 bits for each number, both ways, with error feedback"
    adds: ClassVar[Mapping[str, str]] = {
        "*#scale": "the largest change among its numbers",
        "*#shape": "nothing",
        **{f"*#{bits}": "as the key without the mark, rounded" for bits in (4, 8, 16)},
    }

    up_bits: int = setting(8, "bits of a number on the way up: 4, 8, 16, or 32 (as it is)", choices=BITS)
    down_bits: int = setting(8, "bits of a number on the way down: 4, 8, 16, or 32 (as it is)", choices=BITS)

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Rounds the change from what was received."""
        left = dict(memory)
        sent: Message = {}
        for name, value in message.items():
            if _is_exact(value, self.up_bits) or key_of(trip.declared, name).kind.whole:
                sent[name] = value
            elif (base := _base(value, name, trip)) is None:
                sent |= _rounded(name, value, left, max(self.up_bits, 8))
            else:
                sent |= _rounded(name, value - base, left, self.up_bits)
        return sent, left

    def at_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Puts the change back onto what was received."""
        opened = _opened(message, trip.dtype)
        for name in opened.keys() - message.keys():
            base = _base(opened[name], name, trip)
            opened[name] = opened[name] if base is None else base + opened[name]
        return opened, memory

    def to_client(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Rounds the message."""
        left = dict(memory)
        sent: Message = {}
        for name, value in message.items():
            exact = _is_exact(value, self.down_bits)
            sent |= {name: value} if exact else _rounded(name, value, left, self.down_bits)
        return sent, left

    def at_client(self, message: Message, trip: Trip) -> Message:
        """The rounded numbers."""
        return _opened(message, trip.dtype)


def _base(value: Tensor, name: str, trip: Trip) -> Tensor | None:
    received = trip.received.get(name)
    return received if received is not None and received.shape == value.shape else None


def _is_exact(value: Tensor, bits: int) -> bool:
    return bits == 32 or not value.is_floating_point() or value.numel() < SMALL


def _rounded(name: str, value: Tensor, left: Memory, bits: int) -> Message:
    """The tensors that travel in place of one; the rounding error goes into ``left``."""
    before = left.get(name)
    wanted = value if before is None or before.shape != value.shape else value + before
    if bits == 16:
        sent = {f"{name}#16": wanted.half()}
    else:
        most = 2 ** (bits - 1) - 1
        scale = (wanted.abs().max() / most).clamp(min=1e-30).to(torch.float32)
        steps = (wanted / scale).round().clamp(-most, most).to(torch.int8)
        packed = {f"{name}#8": steps} if bits == 8 else {f"{name}#4": _packed(steps), f"{name}#shape": _shape(steps)}
        sent = {**packed, f"{name}#scale": scale[None]}
    left[name] = wanted - _opened(sent, value.dtype)[name]
    return sent


def _opened(message: Message, dtype: torch.dtype) -> Message:
    """The inverse of `_rounded`, up to the rounding error."""
    found = {}
    for key, value in message.items():
        name, mark, how = key.rpartition("#")
        if not mark:
            found[key] = value
        elif how == "16":
            found[name] = value.to(dtype)
        elif how in ("8", "4"):
            steps = value if how == "8" else _unpacked(value, message[f"{name}#shape"])
            found[name] = steps.to(dtype) * message[f"{name}#scale"].to(dtype)
    return found


def _shape(value: Tensor) -> Tensor:
    return torch.tensor([value.shape], dtype=torch.int32)


def _packed(steps: Tensor) -> Tensor:
    """Two numbers from -8 to 7 in a byte, [1, ⌈n/2⌉]."""
    flat = torch.nn.functional.pad(steps.flatten(), (0, steps.numel() % 2)).view(-1, 2).to(torch.int16) + 8
    return (flat[:, 0] * 16 + flat[:, 1]).to(torch.uint8)[None]


def _unpacked(packed: Tensor, shape: Tensor) -> Tensor:
    sizes = shape[0].tolist()
    if math.ceil(math.prod(sizes) / 2) != packed.numel():
        raise ValueError(f"{packed.numel()} bytes came for a tensor of shape {sizes}")
    pairs = torch.stack([packed[0] // 16, packed[0] % 16], dim=1).flatten().to(torch.int8) - 8
    return pairs[: math.prod(sizes)].view(sizes)
