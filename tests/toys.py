"""Small federations that many tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedspray.algorithms.base import Algorithm
from fedspray.algorithms.fedavg import FedAvg
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.engine.device import CPU
from fedspray.engine.local import InProcess
from fedspray.engine.worker import Worker
from fedspray.nn.tree import Message
from fedspray.seeds import generator, stream_key
from fedspray.testing import awkward_federation as awkward_federation
from fedspray.testing import ragged_federation as ragged_federation
from fedspray.testing import stack as stack


def worker_of(
    algorithm: Algorithm[Any, Any],
    federation: Federation,
    ids: Sequence[int] | None = None,
    *,
    seed: int = 0,
    device: torch.device = CPU,
) -> Worker:
    """A worker of these clients in double precision, before the first round; None: of all."""
    chosen = range(federation.num_clients) if ids is None else ids
    own = {k: federation.clients[k] for k in chosen}
    return InProcess(own, dict.fromkeys(own, algorithm), federation.task, seed, torch.float64, device).open(list(own))


def fast(values: Iterable[Any], *first: Any) -> list[Any]:
    """For `parametrize`: only the first ones are in `make test`, the others are slow."""
    return [value if value in first else pytest.param(value, marks=pytest.mark.slow) for value in values]


def permuted_federation(num_nodes: int = 150) -> Federation:
    """Six clients with the same kind of graph; the last three call class c by the name c + 1."""
    graphs = {}
    for k in range(6):
        draw = generator(5, "permuted", k)
        labels = draw.integers(0, 3, size=num_nodes)
        features = 2.0 * np.eye(3)[labels] + draw.normal(size=(num_nodes, 3))
        pairs = draw.integers(0, num_nodes, size=(2, 4 * num_nodes))
        edges = pairs[:, (labels[pairs[0]] == labels[pairs[1]]) | (draw.random(4 * num_nodes) < 0.1)]
        graphs[f"c{k}"] = Graph.from_arrays(features, edges, (labels + (k >= 3)) % 3, num_classes=3)
    return Federation.from_graphs(graphs, name="permuted")


def skewed_federation(seed: int, num_nodes: int = 60) -> Federation:
    """Three clients with noisy features of three classes; nine in ten nodes of client k are of class k."""
    centres = generator(seed, "skew").normal(size=(3, 8))
    graphs = {}
    for k in range(3):
        draw = generator(seed, "skew", k)
        labels = draw.choice(3, size=num_nodes, p=np.where(np.arange(3) == k, 0.9, 0.05))
        u, v = pairs = draw.integers(0, num_nodes, size=(2, 3 * num_nodes))
        edges = pairs[:, (labels[u] == labels[v]) | (draw.random(3 * num_nodes) < 0.3)]
        features = centres[labels] + 2 * draw.normal(size=(num_nodes, 8))
        graphs[f"c{k}"] = Graph.from_arrays(features, edges, labels, num_classes=3)
    return Federation.from_graphs(graphs, name="skewed")


def two_groups() -> GraphBatch:
    """Two groups of three clients with six labels each: the same features mean classes 0, 1 here and 2, 3 there."""
    centres = generator(5, "centre").normal(size=(2, 6))
    clients = []
    for k in range(6):
        draw = generator(5, "two groups", k)
        kind = draw.integers(0, 2, size=60)
        features = centres[kind] + 1.5 * draw.normal(size=(60, 6))
        chance = np.where(kind[:, None] == kind, 0.06, 0.01)
        edges = np.stack(np.nonzero(np.triu(draw.random((60, 60)) < chance, 1)))
        graph = Graph.from_arrays(features, edges, kind + 2 * (k // 3), num_classes=4)
        train = np.isin(np.arange(60), draw.permutation(60)[:6])
        clients.append(Client(f"c{k}", graph, Split(train, np.zeros(60, dtype=bool), ~train), np.arange(60)))
    return GraphBatch.from_clients(clients, range(6), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Fragile(FedAvg):
    """FedAvg in which some clients fail in some rounds; the round's seed tells which round it is."""

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        for round_index, k in ((2, 1), (4, 1), (4, 2)):
            if seed == stream_key(0, "round", round_index) and k in batch.client_ids:
                raise OSError(f"the disk of client {k} is full")
        return super().client_update(client, message, batch, seed)
