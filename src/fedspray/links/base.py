"""The contract of a link: a step between a client and the server that changes messages.

A link has a client's half and a server's half for each direction. A chain of links is passed forwards where a message
leaves and backwards where it arrives, with the same code in one process and between organisations::

    up      client: to_server of A, of B   →  what is counted in bytes  →   server: at_server of B, of A
    down    server: to_client of A, of B   →  what is counted in bytes  →   client: at_client of B, of A

A half sees the message of one client; every tensor has a first axis of 1. On the wire keys, types and shapes may be
any, as long as the first axis stays 1; what comes out at the end must be a message of the algorithm again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.display import line, settings_line
from fedspray.experiment import RoundSettings
from fedspray.files import Json
from fedspray.knob import check
from fedspray.messages import Declared, combine
from fedspray.nn.tree import Message

Memory = dict[str, Tensor]
"""The state one half keeps for one client between rounds. It is part of every checkpoint."""


@dataclass(frozen=True, repr=False)
class Trip:
    """What both ends know about a message."""

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
    """Only at the client: the features its nodes use, ascending."""
    received: Message = field(default_factory=dict)
    """On the way up: what came down in this round, as this link's `at_client` gave it. The server knows it too."""
    sent: Message = field(default_factory=dict)
    """On the way up, only at the server: what this link's `to_client` was given in this round."""
    secret: int | None = None
    """At a client of another organisation alone: what noise is drawn from, since all know the run's seed."""

    def __repr__(self) -> str:
        return line(self, f"client {self.client_id}", f"round {self.round_index}")


@dataclass(frozen=True, kw_only=True)
class Link:
    """Base of all links. Fields are settings only; override only the methods that change something."""

    summary: ClassVar[str]
    """One line for lists."""
    reveals: ClassVar[str] = ""
    """What this link reveals to the server."""
    adds: ClassVar[Mapping[str, str]] = {}
    """Keys that are not the algorithm's, on the way up (``*`` for any text), and what each reveals."""
    only_sums: ClassVar[bool] = False
    """Whether the server gets sums over clients instead of their messages; the engine does the summing."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = settings_line  # type: ignore[method-assign]  # before `dataclass` gives it a longer one

    def __post_init__(self) -> None:
        check(self, f"{type(self).__module__.rpartition('.')[2].replace('_', '-')}: ")

    def check(self, declared: Declared) -> None:
        """Raises an `InputError` for an algorithm that this link can't serve."""

    def for_run(self, algorithm: Any, rounds: RoundSettings, chain: Sequence[Link]) -> Link:
        """This link as one run uses it, given the algorithm, the rounds and all links of the run."""
        return self

    def protection(self, name: str, value: Tensor, declared: Declared) -> str:
        """How this link protects a key of the uplink, in words; empty if it doesn't."""
        return ""

    @property
    def hides_evaluation(self) -> bool:
        """Whether evaluation counts stay at the clients."""
        return False

    def faults(self, declared: Declared, rows: Message, received: Message) -> dict[int, str]:
        """At the server: which rows of [K, …] to refuse, and why; ``received`` is what these clients got."""
        return {}

    def combine(self, declared: Declared, rows: Message, received: Message) -> Message:
        """At the server: combines the clients' rows for the algorithm; by default as the algorithm declares."""
        return combine(declared, rows)

    def spent(self, round_index: int) -> Json:
        """What a round's record says about the privacy spent by the end of that round."""
        return {}

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """The client's half on the way up: the message as sent, and the client's new state."""
        return message, memory

    def at_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """The server's half on the way up: the inverse, and the server's new state for this client."""
        return message, memory

    def to_client(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """The server's half on the way down."""
        return message, memory

    def at_client(self, message: Message, trip: Trip) -> Message:
        """The client's half on the way down. The server calls it too, to know what the client has."""
        return message


def counted_from(value: Tensor, received: Tensor | None) -> Tensor:
    """Where a change is counted from: what came down under the same name, or 0."""
    return received if received is not None and received.shape == value.shape else torch.zeros_like(value)
