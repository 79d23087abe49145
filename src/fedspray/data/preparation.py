"""Steps applied to a graph before it becomes clients, by name and in the given order.

A step is a function from `Graph` to `Graph` with an entry in `STEPS`; adding one takes nothing else. It gets a
whole graph before it is cut, or one client's graph if clients come separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedspray.data.graph import Graph
from fedspray.errors import unknown

Step = Callable[[Graph], Graph]


def largest_component(graph: Graph) -> Graph:
    """The largest connected component, its nodes in their order; on a tie the one with the first node."""
    links = sp.coo_array((np.ones(graph.num_edges), tuple(graph.edges)), shape=(graph.num_nodes, graph.num_nodes))
    _, component = sp.csgraph.connected_components(links, directed=False)
    return graph.subgraph(np.flatnonzero(component == np.bincount(component).argmax()))


def normalise_rows(graph: Graph) -> Graph:
    """Every node's features divided by the sum of their absolute values; a row of zeros stays.

    This is PyTorch Geometric's ``NormalizeFeatures`` where no feature is negative, some is 0, and no row has a
    sum between 0 and 1: so it is for counts and words.
    """
    features: Any = graph.features
    sums = np.asarray(abs(features).sum(axis=1, dtype=np.float64)).ravel()
    sums[sums == 0] = 1
    if not graph.is_sparse:
        return replace(graph, features=np.asarray(features / sums[:, None], dtype=np.float32))
    data = (features.data / np.repeat(sums, np.diff(features.indptr))).astype(np.float32)
    return replace(graph, features=sp.csr_array((data, features.indices, features.indptr), shape=features.shape))


STEPS: dict[str, Step] = {"largest-component": largest_component, "normalise-rows": normalise_rows}


def steps_of(text: str | None) -> list[Step]:
    """The steps that a text such as ``largest-component,normalise-rows`` names."""
    names = [] if text is None else [name.strip() for name in str(text).split(",")]
    wrong = next((name for name in names if name not in STEPS), None)
    if wrong is not None:
        raise unknown("step of prepare", wrong, STEPS)
    return [STEPS[name] for name in names]


def prepare(graph: Graph, steps: list[Step]) -> Graph:
    """The graph after all steps."""
    for step in steps:
        graph = step(graph)
    return graph
