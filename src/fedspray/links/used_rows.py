"""Sends only the weight rows of features that the client has.

A client whose nodes never use a feature neither reads nor trains the weights of that feature. On the way up these rows
are left out, and the server puts back what it sent down (0 where nothing came down). On the way down they are left out
from the second round on, when the server knows which the client uses; the client then has 0 there. What is learned is
the same, to the bit, as long as no weight decay moves unused weights and nobody else's features are predicted on.

This reveals to the server exactly which features a client uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedspray.links.base import Link, Memory, Trip
from fedspray.nn.tree import Message

COLUMNS = "columns"
USED = "@used"


@dataclass(frozen=True, kw_only=True)
class UsedRows(Link):
    """Drops the weights of features that a client doesn't have."""

    summary: ClassVar[str] = "only the weights of features that the client's nodes use, both ways"
    adds: ClassVar[Mapping[str, str]] = {
        COLUMNS: "which features the client's nodes use, exactly",
        f"*{USED}": "as the key without the mark: its rows of features in use",
    }
    reveals: ClassVar[str] = "which features the client's nodes use, exactly; it cannot be combined with secure-sum"

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Cuts out the rows in use, and says which they are."""
        if trip.columns is None:
            return message, memory
        mask = torch.zeros(trip.num_features, dtype=torch.uint8)
        mask[trip.columns] = 1
        return _cut(message, mask, trip), memory

    def at_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Puts the rows back among those sent down, and stores which they are."""
        known = {COLUMNS: message[COLUMNS]} if COLUMNS in message else memory
        return _whole(message, trip), known

    def to_client(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Cuts out the rows that this client uses, once that is known."""
        if COLUMNS not in memory:
            return message, memory
        return _cut(message, _unpacked(memory[COLUMNS], trip), trip), memory

    def at_client(self, message: Message, trip: Trip) -> Message:
        """Puts the rows into a tensor of zeros."""
        return _whole(message, trip)


def _cut(message: Message, mask: Tensor, trip: Trip) -> Message:
    rows = mask.nonzero()[:, 0]
    cut: Message = {COLUMNS: torch.from_numpy(np.packbits(mask.numpy()))[None]}
    for name, value in message.items():
        has_rows = _on_features(name, trip) and value.shape[1] == trip.num_features
        cut |= {f"{name}{USED}": value[:, rows]} if has_rows else {name: value}
    return cut


def _whole(message: Message, trip: Trip) -> Message:
    if COLUMNS not in message:
        return message
    rows = _unpacked(message[COLUMNS], trip).nonzero()[:, 0]
    found: Message = {}
    for key, value in message.items():
        name = key.removesuffix(USED)
        if name != key:
            whole = trip.sent.get(name)
            empty = value.new_zeros(1, trip.num_features, *value.shape[2:])
            found[name] = (empty if whole is None else whole).index_copy(1, rows, value)
        elif key != COLUMNS:
            found[key] = value
    return found


def _on_features(name: str, trip: Trip) -> bool:
    """Whether a key has a row for each feature: by its own name, or as the gradient of a key that has."""
    return any(name == key or name.partition(".")[2] == key.partition(".")[2] for key in trip.feature_keys)


def _unpacked(columns: Tensor, trip: Trip) -> Tensor:
    return torch.from_numpy(np.unpackbits(columns[0].numpy(), count=trip.num_features))
