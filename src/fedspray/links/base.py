"""The contract of a link: a station between a client and the server that changes messages on their way.

A link has a client's half and a server's half for each direction. A chain of links is passed forwards where a message
leaves and backwards where it arrives, with the same text in one process and between organisations::

    up      client: to_server of A, of B   →  what is counted in bytes  →   server: at_server of B, of A
    down    server: to_client of A, of B   →  what is counted in bytes  →   client: at_client of B, of A

A half sees the message of one client; every tensor has a first axis of 1. On the wire keys, types and shapes may be
any, as long as the first axis stays 1; what comes out at the end must be a message of the algorithm again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedspray.backbones.base import check_choices
from fedspray.display import line, settings_line
from fedspray.messages import Declared
from fedspray.nn.tree import Message

Memory = dict[str, Tensor]
"""What one half remembers of one client from round to round. It is part of every checkpoint."""


@dataclass(frozen=True, repr=False)
class Trip:
    """What both ends know of a message on its way."""

    client_id: int
    round_index: int
    seed: int
    """The run's: draws come from `seeds.torch_generator(trip.seed, "a name", trip.round_index, trip.client_id)`."""
    declared: Declared
    """What the algorithm says of the keys of its uplink: `messages.key_of(trip.declared, name)`."""
    dtype: torch.dtype
    """Of weights."""
    num_features: int
    feature_keys: frozenset[str] = frozenset()
    """Keys that travel down and have a row for each feature: [1, F, …]."""
    columns: Tensor | None = None
    """At the client alone: the features that its nodes use, ascending."""
    received: Message = field(default_factory=dict)
    """On the way up: what came down in this round, as this link's `at_client` gave it. The server knows it too."""
    sent: Message = field(default_factory=dict)
    """On the way up, at the server alone: what this link's `to_client` was given in this round."""

    def __repr__(self) -> str:
        return line(self, f"client {self.client_id}", f"round {self.round_index}")


@dataclass(frozen=True, kw_only=True)
class Link:
    """Base of all links. Fields are settings only; what a link does not change it leaves out."""

    summary: ClassVar[str]
    """One line for lists."""
    reveals: ClassVar[str] = ""
    """What the server learns from this link that it would not know without it."""
    only_sums: ClassVar[bool] = False
    """Whether the server gets sums over clients instead of their messages: the engine carries out how."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = settings_line  # type: ignore[method-assign]  # before `dataclass` gives it a longer one

    def __post_init__(self) -> None:
        check_choices(self)

    def check(self, declared: Declared) -> None:
        """Refuses an algorithm that this link cannot serve, by an `InputError`."""

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """The client's half on the way up: what leaves, and what the client remembers."""
        return message, memory

    def at_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """The server's half on the way up: the inverse, and what the server remembers of this client."""
        return message, memory

    def to_client(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """The server's half on the way down."""
        return message, memory

    def at_client(self, message: Message, trip: Trip) -> Message:
        """The client's half on the way down. The server calls it too, to know what the client has."""
        return message
