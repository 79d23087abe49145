"""The names, types and shapes of an algorithm's messages, found by playing a round with a client of two nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Client, Split, Task
from fedspray.data.graph import Graph
from fedspray.engine.local import InProcess
from fedspray.engine.rounds import start
from fedspray.engine.worker import Request
from fedspray.nn.tree import Message

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Played:
    """One message of each kind, of one client."""

    downlink: Message
    uplink: Message
    counts: Message
    detail: Message
    """Of the report at the end."""


@lru_cache(maxsize=64)
def play(algorithm: Algorithm[Any, Any], task: Task, dtype: torch.dtype) -> Played:
    """Plays a round and the report."""
    graph = Graph.from_arrays(
        np.zeros((2, task.num_features), dtype=np.float32),
        np.array([[0, 1], [1, 0]]),
        labels=np.zeros(2, dtype=np.int64),
        num_classes=task.num_classes,
    )
    split = Split(*(np.array(mask) for mask in ([True, False], [False, True], [False, False])))
    client = Client("nobody", graph, split, np.arange(2))
    downlink = algorithm.broadcast(start(algorithm, task, 0, dtype).server, (0,))
    worker = InProcess({0: client}, {0: algorithm}, task, 0, dtype).open([0])
    uplink, counts = worker.handle(Request(1), downlink)
    _, detail = worker.handle(Request(2, train=False, evaluate=False, best_round=0, detail=True), {})
    return Played(downlink, uplink, counts, detail)


def layout_of(message: Message) -> Layout:
    """The names, types and shapes of a message."""
    return tuple((name, str(value.dtype), tuple(value.shape)) for name, value in sorted(message.items()))
