"""What the messages of a run look like: their names, types, shapes and sizes, found out by playing.

Both ends compare what arrives with this, so that neither a site nor the server has to trust the other's arrays; the
server also refuses numbers that cannot be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Task
from fedspray.engine.layouts import Layout, layout_of, play
from fedspray.engine.sums import SumLayout
from fedspray.engine.worker import Request
from fedspray.links.secure_sum import SecureSum
from fedspray.messages import COUNTS, TRAIN_NODES, Declared, key_of
from fedspray.nn.tree import Message

MOST = COUNTS.highest
"""More nodes no site has."""
LARGEST_LOSS = 1e12
SLACK = 1e-3
"""What rounding may add to a limit."""
HEAD_BYTES = 1000
"""More bytes than safetensors needs to describe one array, beside its name."""


@dataclass(frozen=True)
class MessageSchema:
    """The same for every client and in every round: messages of different clients are put together."""

    downlink: Layout
    uplink: Layout
    counts: Layout
    detail: Layout
    """Of the report at the end."""
    declared: Declared
    """What the algorithm says of the keys of its uplink."""
    links: bool = False
    """Whether links change messages on their way: the layouts are of what comes out at the end."""

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, algorithm: Algorithm[Any, Any], task: Task, dtype: torch.dtype, *, links: bool = False) -> Self:
        """What one round and the report look like."""
        found = play(algorithm, task, dtype)
        sent, answered = layout_of(found.downlink), layout_of(found.uplink)
        return cls(sent, answered, layout_of(found.counts), layout_of(found.detail), algorithm.uplink, links)

    def most_bytes(self, *parts: str) -> int:
        """What a message of these parts takes at most, frozen."""
        total = HEAD_BYTES
        for name, dtype, shape in (row for part in parts for row in getattr(self, part)):
            total += HEAD_BYTES + len(name) + _dtype(dtype).itemsize * math.prod(shape)
        return 4 * total if self.links else total  # a link may send indices beside numbers, and further keys

    def zeros(self, part: str) -> Message:
        """A message of this form."""
        rows: Layout = getattr(self, part)
        return {name: torch.zeros(shape, dtype=_dtype(dtype)) for name, dtype, shape in rows}

    def sums(self, link: SecureSum, parties: int, request: Request, *, train: bool) -> SumLayout:
        """What is added up in an exchange."""
        counts = "detail" if request.detail else "counts"
        shown = self.zeros(counts) if request.detail or request.evaluate else {}
        return SumLayout.of(self.declared, self.zeros("uplink") if train else {}, shown, link, parties)


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def difference(found: Layout, wanted: Layout) -> str:
    """What the first difference between two layouts is, in words."""
    ours, theirs = ({name: rest for name, *rest in layout} for layout in (wanted, found))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            return f"{name} is missing"
        if name not in ours:
            return f"{name[:80]!r} is not part of it"
        if ours[name] != theirs[name]:
            return f"{name} has type and shape {theirs[name]}, but {ours[name]} is needed"
    return "nothing differs"


def fault_of_uplink(uplink: Message, declared: Declared) -> str | None:
    """What is wrong with the numbers of an update whose layout is right, by what the algorithm says they are."""
    for name, value in uplink.items():
        kind = key_of(declared, name).kind
        fault = _outside(name, value, kind.lowest, kind.highest)
        if fault is not None:
            return fault
        if kind.whole and (value != value.round()).any():
            return f"{name} counts {value.flatten()[0].item():g}, which is not a whole number"
    return None


def fault_of_counts(counts: Message, task: Task, rounds: int) -> str | None:
    """What is wrong with the numbers of counts whose layout is right; also whether they contradict each other."""
    limits = {
        "evaluation.majority": (-1, task.num_classes - 1),
        "evaluation.loss": (0, LARGEST_LOSS),
        "evaluation.ranks": (0, MOST**2),
        "evaluation.round": (0, rounds),
    }
    for name, value in counts.items():
        fault = _outside(name, value, *limits.get(name, (0, MOST)))
        if fault is not None:
            return fault
    if "evaluation.confusion" not in counts:
        return None
    nodes = counts["evaluation.confusion"][0].double().sum(dim=2)  # [part, true class]
    if nodes.sum() > MOST:
        return f"evaluation.confusion counts {nodes.sum():g} nodes, but at most {MOST:g} are believed"
    train, _, test = nodes
    majority = int(counts["evaluation.majority"][0])
    if not (train.sum() == 0 if majority == -1 else train[majority] == train.max() > 0):
        return "evaluation.majority is not the most frequent class of evaluation.confusion"
    if "evaluation.buckets" in counts:
        right, total = counts["evaluation.buckets"][0].double().T
        ranked, pairs = counts["evaluation.ranks"][0].double().T
        if (right > total).any() or total.sum() != test.sum():
            return "evaluation.buckets does not count the test nodes of evaluation.confusion"
        if (ranked > pairs).any() or (pairs != test * (test.sum() - test)).any():
            return "evaluation.ranks does not count the pairs of test nodes of evaluation.confusion"
    return None


def contradiction(uplink: Message, counts: Message, declared: Declared) -> str | None:
    """Where an update claims more training nodes than the evaluation beside it counts."""
    if "evaluation.confusion" not in counts:
        return None
    counted = counts["evaluation.confusion"][0, 0].sum()
    for name, value in uplink.items():
        if key_of(declared, name).kind is TRAIN_NODES and value.sum() > counted.to(value.dtype):
            return f"{name} is {value.sum():g}, but evaluation.confusion counts {counted:g} training nodes"
    return None


def _outside(name: str, value: Tensor, lowest: float, highest: float) -> str | None:
    """A sentence about the first number that is not within the limits."""
    wrong = value[~((value >= lowest - SLACK) & (value <= highest + SLACK))]
    if wrong.numel() == 0:
        return None
    return f"{name} holds {wrong[0].item():g}, but {lowest:g} to {highest:g} is allowed"
