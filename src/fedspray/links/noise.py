"""Clipping and Gaussian noise on keys that are averaged or summed.

With x what a client sends of the chosen keys, relative to what it received if that came down:

    x ← x · min(1, clip / ‖x‖)          over all keys together, or key by key
    x ← x + sigma · N(0, 1)             one draw for each client, round and key

The server sees the noisy values. This is the mechanism of differential privacy, not a guarantee
of it: nothing here accounts for the privacy loss over many rounds. The link `dp` does.
Noise is drawn from the run's seed, also between organisations, where the server knows the seed and can take it off.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import ClassVar

import torch
from torch import Tensor

from fedspray.backbones.base import setting
from fedspray.errors import InputError
from fedspray.links.base import Link, Memory, Trip, counted_from
from fedspray.messages import SHARES, Declared, Key, fates, key_of
from fedspray.nn.tree import Message
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class Noise(Link):
    """Clips what a client sends and adds noise to it."""

    summary: ClassVar[str] = "clips updates and adds Gaussian noise, on keys that are means or sums"

    sigma: float = setting(0.0, "standard deviation of the noise", least=0)
    clip: float = setting(0.0, "largest length of a client's update; 0: no limit", least=0)
    per_key: bool = setting(False, "limit every key by itself, instead of all together")
    keys: str = setting("", "which keys, joined by commas, * for any text; by default all but counts and shares")

    def check(self, declared: Declared) -> None:
        """Some key must be a mean or a sum, and every pattern must name one."""
        known = fates(declared)
        for pattern in self.keys.split(",") if self.keys else ["*"]:
            if not any(self._is_chosen(key) and fnmatch(name, pattern) for name, key in known.items()):
                fated = "; ".join(f"{name}: {key.told}" for name, key in known.items()) or "nothing"
                raise InputError(f"noise: {pattern!r} names no key that is a mean or a sum, but these travel: {fated}")

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Clips and adds noise."""
        chosen = [name for name in message if self._applies(name, trip.declared)]
        bases = {name: counted_from(message[name], trip.received.get(name)) for name in chosen}
        changes = {name: message[name] - bases[name] for name in chosen}
        lengths = {name: change.norm() for name, change in changes.items()}
        whole = torch.stack([*lengths.values()]).norm() if lengths else torch.zeros(())
        noisy = {}
        for name, change in changes.items():
            length = lengths[name] if self.per_key else whole
            if self.clip > 0 and length > self.clip:
                change = change * (self.clip / length)
            draw = torch_generator(trip.seed, "link noise", trip.round_index, trip.client_id, name)
            noise = self.sigma * torch.randn(change.shape, generator=draw).to(change.dtype)
            kind = key_of(trip.declared, name).kind
            noisy[name] = (bases[name] + change + noise).clamp(kind.lowest, kind.highest)
        return {**message, **noisy}, memory

    def protection(self, name: str, value: Tensor, declared: Declared) -> str:
        """Noise, and a limit if there is one."""
        if not self._applies(name, declared):
            return ""
        limited = f"clipped to {self.clip:g}, " if self.clip > 0 else ""
        return f"{limited}noise of deviation {self.sigma:g} (no ε; who knows the run's seed can take it off)"

    def _applies(self, name: str, declared: Declared) -> bool:
        given = not self.keys or any(fnmatch(name, pattern) for pattern in self.keys.split(","))
        return given and self._is_chosen(key_of(declared, name))

    def _is_chosen(self, key: Key) -> bool:
        return key.fate != "each" and (bool(self.keys) or not (key.kind.whole or key.kind is SHARES))
