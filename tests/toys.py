"""Small federations that many tests share."""

from __future__ import annotations

import numpy as np
import torch

from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
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


def stack(federation: Federation, ids: list[int] | None = None, dtype: torch.dtype = torch.float64) -> GraphBatch:
    """The named clients (or all) as one batch, in double precision."""
    chosen = list(range(federation.num_clients)) if ids is None else ids
    return GraphBatch.from_clients([federation.clients[k] for k in chosen], chosen, dtype=dtype)
