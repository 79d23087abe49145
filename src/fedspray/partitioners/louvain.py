"""Louvain communities: the paper's way to cut a graph.

Blondel et al., Fast unfolding of communities in large networks, 2008. The whole graph is divided into
communities, and the K largest become the clients; other nodes are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedspray.errors import InputError
from fedspray.knob import knob
from fedspray.partitioners.base import Partitioner, largest_first, name_parts
from fedspray.seeds import stream_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph


@dataclass(frozen=True)
class Louvain(Partitioner):
    """The K largest Louvain communities."""

    num_clients: int = field(metadata={"help": "number of clients K", "least": 1})
    resolution: float = knob(1.0, "values above 1 give more, smaller communities", above=0)

    def partition(self, graph: Graph, seed: int) -> dict[str, NDArray[np.int64]]:
        """The node ids of each client, the largest first."""
        import igraph
        import numpy as np

        whole = igraph.Graph(n=graph.num_nodes, edges=graph.edges.T)
        with _seeded(stream_key(seed, "louvain")):
            found = whole.community_multilevel(resolution=self.resolution)
        communities = largest_first(np.array(found.membership, dtype=np.int64))
        if len(communities) < self.num_clients:
            raise InputError(
                f"{self.num_clients} clients are too many: louvain finds {len(communities)} communities "
                f"in this graph: choose at most {len(communities)}"
            )
        return name_parts(communities[: self.num_clients])


@contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Gives igraph its own generator, since it uses Python's global one by default."""
    import igraph

    igraph.set_random_number_generator(random.Random(key))
    try:
        yield
    finally:
        igraph.set_random_number_generator(random)
