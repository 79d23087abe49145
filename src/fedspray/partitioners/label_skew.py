"""Label skew: every class is split by its own draw from a Dirichlet distribution.

Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual
classification, 2019. Edges play no part; unlabelled nodes are split evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedspray.errors import InputError
from fedspray.knob import knob
from fedspray.partitioners.base import Partitioner, name_parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph

MAX_DRAWS = 100
"""How often to repeat a draw that leaves a client empty."""


@dataclass(frozen=True)
class LabelSkew(Partitioner):
    """Dirichlet shares of each class."""

    num_clients: int = field(metadata={"help": "number of clients K", "least": 1})
    alpha: float = knob(0.5, "Dirichlet concentration α; small is skewed", above=0, below=math.inf)

    def partition(self, graph: Graph, seed: int) -> dict[str, NDArray[np.int64]]:
        """The node ids of each client."""
        import numpy as np

        from fedspray.data.graph import UNLABELLED
        from fedspray.seeds import generator

        if self.num_clients > graph.num_nodes:
            raise InputError(f"{self.num_clients} clients are too many: the graph has {graph.num_nodes} nodes")
        groups = [np.flatnonzero(graph.labels == label) for label in range(UNLABELLED, graph.num_classes)]
        for attempt in range(MAX_DRAWS):
            rng = generator(seed, "label-skew", attempt)
            even = np.full(self.num_clients, 1 / self.num_clients)
            shares = [even, *rng.dirichlet(np.full(self.num_clients, self.alpha), size=graph.num_classes)]
            cuts = [_cut_points(share, len(nodes)) for share, nodes in zip(shares, groups, strict=True)]
            pieces = [np.split(rng.permutation(nodes), points) for nodes, points in zip(groups, cuts, strict=True)]
            parts = [np.concatenate(owned) for owned in zip(*pieces, strict=True)]
            if all(len(part) for part in parts):
                return name_parts(parts)
        raise InputError(
            f"alpha {self.alpha} leaves one of {self.num_clients} clients empty in each of {MAX_DRAWS} "
            "draws: choose a larger alpha or fewer clients"
        )


def _cut_points(shares: NDArray[np.float64], num_nodes: int) -> NDArray[np.int64]:
    import numpy as np

    return np.rint(np.cumsum(shares)[:-1] * num_nodes).astype(np.int64)
