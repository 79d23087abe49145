"""What the messages of a run look like: their names, types and shapes, found out by playing.

Both ends compare what arrives with this, so that neither a site nor the server has to trust the other's arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Split, Task
from fedspray.data.graph import Graph
from fedspray.data.statistics import node_homophily
from fedspray.engine.rounds import start
from fedspray.engine.worker import Request, Worker
from fedspray.nn.tree import Message

Form = tuple[tuple[str, str, tuple[int, ...]], ...]

LARGEST = 1e12
"""Numbers beyond it are no weights, and sums of their squares would soon be infinite in single precision."""


@dataclass(frozen=True)
class Forms:
    """The same for every client and in every round: messages of different clients are put together."""

    downlink: Form
    uplink: Form
    counts: Form
    detail: Form
    """Of the report at the end."""

    @classmethod
    def of(cls, algorithm: Algorithm[Any, Any], task: Task, dtype: torch.dtype) -> Forms:
        """Plays a round and the report with a client of two nodes."""
        batch, homophily = _two_nodes(task, dtype)
        server = start(algorithm, task, 0, dtype).server
        downlink = algorithm.broadcast(server, (0,))
        worker = Worker(algorithm, task, batch, homophily, 0)
        uplink, counts = worker.handle(Request(1), downlink)
        _, detail = worker.handle(Request(2, train=False, evaluate=False, best_round=0, detail=True), {})
        return cls(*(form_of(message) for message in (downlink, uplink, counts, detail)))

    @property
    def largest(self) -> int:
        """Bytes of the largest message: an answer has an uplink and counts."""
        answer = max(_bytes(self.uplink) + _bytes(self.counts), _bytes(self.detail))
        return max(_bytes(self.downlink), answer)


def form_of(message: Message) -> Form:
    """The names, types and shapes of a message."""
    return tuple((name, str(value.dtype), tuple(value.shape)) for name, value in sorted(message.items()))


def difference(found: Form, wanted: Form) -> str:
    """What the first difference between two forms is, in words."""
    ours, theirs = ({name: rest for name, *rest in form} for form in (wanted, found))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            return f"{name} is missing"
        if name not in ours:
            return f"{name[:80]!r} is not part of it"
        if ours[name] != theirs[name]:
            return f"{name} has type and shape {theirs[name]}, but {ours[name]} is needed"
    return "nothing differs"


def fault_of_uplink(uplink: Message) -> str | None:
    """What is wrong with the numbers of an update whose form is right."""
    for name, value in uplink.items():
        if value.numel() and not value.abs().max() <= LARGEST:
            return f"{name} has numbers that are too large to be a model's"
    if "num_train" in uplink and (uplink["num_train"] < 0).any():
        return "num_train is negative"
    return None


def fault_of_counts(counts: Message, task: Task) -> str | None:
    """What is wrong with the numbers of counts whose form is right."""
    for name, value in counts.items():
        lowest, highest = (-1, task.num_classes - 1) if name == "evaluation.majority" else (0, LARGEST)
        if (value < lowest).any() or (value > highest).any():
            return f"{name} has numbers that nothing counted can have"
    return None


def _bytes(form: Form) -> int:
    return sum(getattr(torch, dtype.removeprefix("torch.")).itemsize * math.prod(shape) for _, dtype, shape in form)


def _two_nodes(task: Task, dtype: torch.dtype) -> tuple[GraphBatch, np.ndarray[Any, np.dtype[np.float64]]]:
    graph = Graph.from_arrays(
        np.zeros((2, task.num_features), dtype=np.float32),
        np.array([[0, 1], [1, 0]]),
        labels=np.zeros(2, dtype=np.int64),
        num_classes=task.num_classes,
    )
    split = Split(*(np.array(mask) for mask in ([True, False], [False, True], [False, False])))
    client = Client("nobody", graph, split, np.arange(2))
    return GraphBatch.from_clients([client], [0], dtype=dtype), node_homophily(graph)
