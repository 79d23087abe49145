"""Clients that send something else than they should, to try out how much harm they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspray.backbones.base import setting
from fedspray.errors import InputError
from fedspray.links.base import Link, Memory, Trip, counted_from
from fedspray.messages import key_of
from fedspray.nn.tree import Message


@dataclass(frozen=True, kw_only=True)
class Attackers(Link):
    """For experiments: some clients turn their updates round, blow them up, or send nonsense."""

    summary: ClassVar[str] = "for experiments: some clients send updates that are reversed, scaled up or not finite"

    clients: str = setting("0", "ids of the bad clients, joined by commas")
    kind: str = setting("sign-flip", "what they do to their updates", choices=("sign-flip", "scale", "nan"))
    factor: float = setting(1.0, "factor by which an update grows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(part.isdigit() for part in self.clients.split(",")):
            raise InputError(f"attackers: clients is {self.clients!r}, but must be ids joined by commas, like 0,3")

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """What a bad client sends; counts stay as they are."""
        if trip.client_id not in {int(part) for part in self.clients.split(",")}:
            return message, memory
        times = {"sign-flip": -self.factor, "scale": self.factor, "nan": float("nan")}[self.kind]
        bad = dict(message)
        for name, value in message.items():
            kind = key_of(trip.declared, name).kind
            if not kind.whole and value.dim() > 1:
                base = counted_from(value, trip.received.get(name))
                bad[name] = base + times * (value - base)
        return bad, memory
