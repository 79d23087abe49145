"""METIS: K parts of about equal size with few edges between them; every node gets a client.

Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular graphs, 1998.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedspray.errors import InputError
from fedspray.partitioners.base import Partitioner, largest_first, name_parts
from fedspray.seeds import stream_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph


@dataclass(frozen=True)
class Metis(Partitioner):
    """K parts of about equal size."""

    num_clients: int = field(metadata={"help": "number of clients K", "least": 1})

    def partition(self, graph: Graph, seed: int) -> dict[str, NDArray[np.int64]]:
        """The node ids of each client, the largest first."""
        import numpy as np
        import pymetis

        if self.num_clients > graph.num_nodes:
            raise InputError(f"{self.num_clients} clients are too many: the graph has {graph.num_nodes} nodes")
        ends, others = graph.both_directions()
        order = np.lexsort((others, ends))
        starts = np.concatenate([[0], np.cumsum(graph.degrees)])
        adjacency = pymetis.CSRAdjacency(starts.astype(np.int32), others[order].astype(np.int32))
        options = pymetis.Options(seed=stream_key(seed, "metis") % 2**31)
        _, membership = pymetis.part_graph(self.num_clients, adjacency=adjacency, options=options)
        parts = largest_first(np.array(membership, dtype=np.int64))
        if len(parts) < self.num_clients:
            raise InputError(
                f"{self.num_clients} clients are too many: METIS fills only {len(parts)} parts of this "
                f"graph of {graph.num_nodes} nodes: choose at most {len(parts)}"
            )
        return name_parts(parts)
