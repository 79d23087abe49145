"""Small federations that many tests share."""

from __future__ import annotations

import numpy as np
import torch

from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.seeds import generator


def ragged_federation(*, sparse: bool = False, changed: int | None = None, seed: int = 0) -> Federation:
    """Three clients of 9, 14 and 6 nodes, 5 features, 3 classes; ``changed`` names one whose features differ."""
    import scipy.sparse as sp

    graphs = {}
    for k, num_nodes in enumerate((9, 14, 6)):
        draw = generator(7, "toy", k, int(k == changed))
        features = np.where(draw.random((num_nodes, 5)) < 0.4, draw.normal(size=(num_nodes, 5)), 0.0)
        shape = generator(7, "toy edges", k)
        edges = shape.integers(0, num_nodes, size=(2, 2 * num_nodes))
        labels = shape.integers(0, 3, size=num_nodes)
        graphs[f"client_{k:02d}"] = Graph.from_arrays(
            sp.csr_array(features) if sparse else features, edges, labels, num_classes=3
        )
    return Federation.from_graphs(graphs, name="toy", seed=seed)


def awkward_federation() -> Federation:
    """An ordinary client, one without edges, one with a single class, one without labels."""
    draw = generator(11, "awkward")
    chain = np.stack([np.arange(7), np.arange(1, 8)])
    features = draw.normal(size=(4, 8, 5))
    labels = draw.integers(0, 3, size=8)
    graphs = {
        "ordinary": Graph.from_arrays(features[0], chain, labels, num_classes=3),
        "edgeless": Graph.from_arrays(features[1], np.zeros((2, 0)), labels, num_classes=3),
        "one-class": Graph.from_arrays(features[2], chain, np.ones(8), num_classes=3),
        "unlabelled": Graph.from_arrays(features[3], chain, None, num_classes=3),
    }
    return Federation.from_graphs(graphs, name="awkward")


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


def stack(federation: Federation, ids: list[int] | None = None, dtype: torch.dtype = torch.float64) -> GraphBatch:
    """The named clients (or all) as one batch, in double precision."""
    chosen = list(range(federation.num_clients)) if ids is None else ids
    return GraphBatch.from_clients([federation.clients[k] for k in chosen], chosen, dtype=dtype)
