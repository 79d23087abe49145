"""Means that a few bad clients cannot move far.

With x_k what client k sent, f of K clients bad, and means and sums as the algorithm declares them (a sum is K times the
mean), the server takes instead of the mean, number by number or client by client:

    median    the middle one of x_1 … x_K
    trimmed   the mean without the f smallest and the f largest
    clip      the mean of updates that are shortened to the length of the median one
    krum      the plain mean of the K - f clients with the smallest sum of squared distances to their K - f - 2 nearest

Clients count alike in the first three, since a bad client may claim any weight; means by class are over the clients
that have the class. Updates that are not finite, or more than `absurd` times as long as the median one, are refused by
name, whatever the rule.

Yin et al., ICML 2018 (median, trimmed); Sun et al., 2019 (clip); Blanchard et al., NeurIPS 2017 (multi-Krum).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedspray.backbones.base import setting
from fedspray.errors import InputError
from fedspray.links.base import Link, counted_from
from fedspray.messages import Declared, Key, combine, fates, key_of
from fedspray.nn.tree import Message

RULES = ("median", "trimmed", "clip", "krum")


@dataclass(frozen=True, kw_only=True)
class Robust(Link):
    """Combines updates so that a few bad ones do little harm."""

    summary: ClassVar[str] = "robust means: median, trimmed, clip or krum, against a few bad clients"

    rule: str = setting("median", "how updates are combined", choices=RULES)
    bad: int = setting(1, "how many clients may be bad (f)", least=1)
    absurd: float = setting(100.0, "updates this many times as long as the median one are refused", above=1)

    def check(self, declared: Declared) -> None:
        """Every key must be a mean or a sum."""
        own = [name for name, key in fates(declared).items() if key.fate == "each"]
        if own:
            raise InputError(f"robust combines means and sums, but {', '.join(own)} is for each client")

    def faults(self, declared: Declared, rows: Message, received: Message) -> dict[int, str]:
        """By row: why an update is refused."""
        lengths = _updates(declared, rows, received).norm(dim=1)
        finite = lengths[torch.isfinite(lengths)]
        median = float(finite.median()) if len(finite) else 0.0
        found = {}
        for row, length in enumerate(lengths.tolist()):
            if not length < float("inf"):
                found[row] = "its update is not finite"
            elif 0 < self.absurd * median < length:
                found[row] = f"its update is {length / median:.0f} times as long as the median one"
        return found

    def combine(self, declared: Declared, rows: Message, received: Message) -> Message:
        """What the server's step receives of the clients' rows, [K, …]."""
        count = len(next(iter(rows.values())))
        if count <= 2 * self.bad + (2 if self.rule == "krum" else 0):
            raise InputError(f"robust: {count} clients sent updates, too few for rule={self.rule} with bad={self.bad}")
        if self.rule == "krum":
            chosen = self._krum(_updates(declared, rows, received))
            return combine(declared, {name: value[chosen] for name, value in rows.items()})
        if self.rule == "clip":
            rows = _shortened(declared, rows, received)
        return {name: self._middle(key_of(declared, name), value, rows) for name, value in rows.items()}

    def _middle(self, key: Key, value: Tensor, rows: Message) -> Tensor:
        if key.weight is not None and rows[key.weight].dim() == 2:
            return _by_class(value, rows[key.weight] > 0, self._rule)
        middle = self._rule(value)
        return middle * len(value) if key.fate == "sum" else middle

    def _rule(self, value: Tensor) -> Tensor:
        """[K, …] → […]."""
        if self.rule == "clip":
            return value.mean(dim=0)
        trim = (len(value) - 1) // 2 if self.rule == "median" else min(self.bad, (len(value) - 1) // 2)
        return value.sort(dim=0).values[trim : len(value) - trim].mean(dim=0)

    def _krum(self, updates: Tensor) -> Tensor:
        """The rows that are kept."""
        distances = torch.cdist(updates, updates).square()
        nearest = distances.sort(dim=1).values[:, 1 : len(updates) - self.bad - 1]
        return nearest.sum(dim=1).argsort(stable=True)[: len(updates) - self.bad].sort().values


def _updates(declared: Declared, rows: Message, received: Message) -> Tensor:
    """[K, P]: what counts as an update, counted from what was sent down; counts and shares do not."""
    changes = [
        (value - counted_from(value, received.get(name))).flatten(1).double()
        for name, value in rows.items()
        if not key_of(declared, name).kind.whole and value.dim() > 1
    ]
    count = len(next(iter(rows.values())))
    return torch.cat(changes, dim=1) if changes else torch.zeros(count, 0, dtype=torch.float64)


def _shortened(declared: Declared, rows: Message, received: Message) -> Message:
    """Updates of at most the median length."""
    lengths = _updates(declared, rows, received).norm(dim=1)
    scale = (lengths.median() / lengths.clamp(min=1e-30)).clamp(max=1)
    found = dict(rows)
    for name, value in rows.items():
        if not key_of(declared, name).kind.whole and value.dim() > 1:
            base = counted_from(value, received.get(name))
            found[name] = base + (value - base) * scale.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
    return found


def _by_class(value: Tensor, held: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """[K, C, …] → [C, …], over the clients that hold each class; 0 where nobody does."""
    middle = torch.zeros_like(value[0])
    for c in held.any(dim=0).nonzero()[:, 0].tolist():
        middle[c] = rule(value[held[:, c], c])
    return middle
