"""Messages from clients to the server: every key declares how it is combined, and what its numbers are.

An algorithm declares its uplink key by key (``gnn.*`` stands for all keys that begin with ``gnn.``)::

    uplink = {
        "gnn.*": mean("the GNN after local training", weight="num_train"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }

The engine combines what clients send (`combine`), and the algorithm's server step receives the result: a `mean` and a
`total` without a client axis, and each client's row only for keys declared as `each`, with a reason.
A mean is a ratio of two sums, so a protocol can give the server only sums (`addends`, `from_sums`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspray.nn import ops
from fedspray.nn.tree import Message


@dataclass(frozen=True)
class Kind:
    """What the numbers of a key are, and their plausible range."""

    name: str
    lowest: float
    highest: float
    whole: bool = False
    """Whole numbers only."""
    reveals: str = ""
    """What they reveal of a client, in plain words; where that depends on the key, the key says it."""


WEIGHTS = Kind(
    "weights",
    -1e6,
    1e6,
    reveals="how local training moved each weight, from which features, labels and membership of training nodes can be "
    "inferred",
)
"""Weights of a model and averages of representations: trained ones are below 100."""
CLASS_VECTORS = Kind(
    "a vector for each class",
    -1e6,
    1e6,
    reveals="a mean over the training nodes of each class: one node's own vector if a class has one node, and which "
    "classes the client lacks",
)
"""The report shows them if they travel both ways."""
COUNTS = Kind("counts", 0, 1e9, whole=True)
"""Of nodes or edges: no site has more."""
TRAIN_NODES = Kind("training nodes", 0, 1e9, whole=True, reveals="how many training nodes the client has, exactly")
"""At most the training nodes of the evaluation sent with it."""
SHARES = Kind("shares", 0, 1)
NUMBERS = Kind("numbers", -1e9, 1e9)
"""Sums over nodes, lengths."""


@dataclass(frozen=True)
class Key:
    """One key of an uplink, or a prefix: made by `mean`, `total` or `each`."""

    text: str
    """What it is."""
    fate: str
    """``mean``, ``sum``, or ``each`` if the server needs every client's value."""
    kind: Kind
    weight: str | None = None
    """For a mean: the key that weights the clients, [K] or, with a weight per class, [K, C]."""
    reason: str | None = None
    """Why the server needs every client's value."""
    reveals: str = ""
    """What it reveals of a client, in plain words."""

    @property
    def told(self) -> str:
        """The fate in words."""
        return {"mean": f"mean by {self.weight}", "sum": "sum"}.get(self.fate, f"each client's own: {self.reason}")


Declared = Mapping[str, Key | str]
"""Keys, or ``prefix.*``; a plain text counts as `each`."""


def mean(text: str, kind: Kind = WEIGHTS, *, weight: str = "num_train", reveals: str = "") -> Key:
    """The server receives the mean weighted by the uplink's key ``weight``; 0 where all weights are 0.

    For a plain mean, send ones: ``"clients": batch.num_train.new_ones(batch.num_clients)``, declared as a `total`.
    """
    return Key(text, "mean", kind, weight=weight, reveals=reveals or kind.reveals)


def total(text: str, kind: Kind = NUMBERS, *, reveals: str = "") -> Key:
    """The server receives the sum over clients."""
    return Key(text, "sum", kind, reveals=reveals or kind.reveals)


def each(text: str, reason: str, kind: Kind = NUMBERS, *, reveals: str = "") -> Key:
    """The server receives every client's value, for this reason."""
    return Key(text, "each", kind, reason=reason, reveals=reveals or kind.reveals)


def pattern_of(declared: Declared, name: str) -> str | None:
    """The key or prefix that declares a key: the longest that matches."""
    patterns = [p for p in declared if p == name or (p.endswith(".*") and name.startswith(p.removesuffix("*")))]
    return max(patterns, key=len, default=None)


def key_of(declared: Declared, name: str) -> Key:
    """The declaration of a key."""
    pattern = pattern_of(declared, name)
    found = "not declared" if pattern is None else declared[pattern]
    return each(found, "the algorithm does not say how it is combined") if isinstance(found, str) else found


def fates(declared: Declared) -> dict[str, Key]:
    """Every key or prefix as declared."""
    return {name: key_of(declared, name) for name in declared}


def unweighted(declared: Declared) -> str | None:
    """What is wrong with the first mean whose weight does not travel."""
    for name, key in fates(declared).items():
        if key.weight not in (None, *declared):
            return (
                f"{name!r} is a mean by {key.weight!r}, but `uplink` does not list that key: send it, declared as a "
                "total, or name another with weight=…; for a plain mean, send ones"
            )
    return None


def fault_of_keys(declared: Declared, uplink: Message) -> str | None:
    """What is wrong with the keys of an uplink: one is not declared, or a mean comes without its weight."""
    for name in uplink:
        if pattern_of(declared, name) is None:
            return f"{name!r} would leave the client, but `uplink` does not declare it: declare it, or do not send it"
        weight = key_of(declared, name).weight
        if weight not in (None, *uplink):
            return f"{name!r} is a mean by {weight!r}, but clients do not send that key: send both, or neither"
    return None


def combine(declared: Declared, rows: Message) -> Message:
    """Combines the clients' rows, [K, …], for the server's step."""
    return {name: _combined(key_of(declared, name), value, rows) for name, value in rows.items()}


def _combined(key: Key, value: Tensor, rows: Message) -> Tensor:
    if key.weight is not None:
        return ops.weighted_mean(value, rows[key.weight])
    return value if key.fate == "each" else value.sum(dim=0)


def addends(declared: Declared, rows: Message) -> Message:
    """Each client's part for a protocol that can only add, [K, …]: sums as they are, means times their weight."""
    keys = {name: key_of(declared, name) for name in rows}
    needed = {name for name, key in keys.items() if key.fate != "each"} | {key.weight for key in keys.values()}
    return {name: _times(value, _weight(keys[name], rows)) for name, value in rows.items() if name in needed}


def from_sums(declared: Declared, sums: Message, own: Message) -> Message:
    """The server step's input, from the sums of all `addends` and ``own``, the rows declared `each`."""
    found = {}
    for name, value in sums.items():
        weight = _weight(key_of(declared, name), sums)
        divided = value if weight is None else _times(value, torch.where(weight > 0, 1 / weight, 0))
        found[name] = own.get(name, divided)
    return found | own


def _weight(key: Key, values: Message) -> Tensor | None:
    return None if key.weight is None else values[key.weight]


def _times(value: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return value
    return value * weight.to(value.dtype).view(*weight.shape, *[1] * (value.dim() - weight.dim()))


def not_finite(message: Message) -> str | None:
    """The first key that holds NaN or infinity."""
    for name, value in message.items():
        # The sum is many times faster, but may overflow although every number is finite.
        if not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
            return name
    return None
