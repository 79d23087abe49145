"""Features that the edges alone give, for graphs whose nodes have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def structural_features(
    edges: NDArray[np.int64], num_nodes: int, names: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """[N] by name, each on a scale of a few units.

    ``degree`` and ``neighbour_degree`` (the mean over neighbours) are log(1 + x), as is ``core``, the largest k such
    that the node is in a part of the graph where everybody has k neighbours there; ``clustering`` is the share of a
    node's pairs of neighbours that are neighbours too, 0 with fewer than two.
    """
    if not names:
        return {}
    degrees = np.bincount(edges.ravel(), minlength=num_nodes).astype(np.float64)
    columns = {"degree": np.log1p(degrees)}
    if "neighbour_degree" in names:
        u, v = edges
        total = np.bincount(u, degrees[v], num_nodes) + np.bincount(v, degrees[u], num_nodes)
        columns["neighbour_degree"] = np.log1p(total / np.maximum(degrees, 1))
    if {"clustering", "core"} & set(names):
        import igraph

        graph = igraph.Graph(n=num_nodes, edges=edges.T)
        columns["core"] = np.log1p(np.array(graph.coreness(), np.float64))
        columns["clustering"] = np.array(graph.transitivity_local_undirected(mode="zero"), np.float64)
    return {name: columns[name].astype(np.float32) for name in names}
