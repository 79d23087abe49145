"""`banks`: the built-in data set, the paper's Gen(μ1, μ2, p, q) with C classes and a real edge list.

Every client is a bank whose customers are mostly of one class; the majority class of bank k is
k mod C. With N₊ majority and N₋ = q·N₊ minority nodes, and d the expected degree of a majority node,
edges are drawn independently (a stochastic block model) with these expected numbers::

    majority – majority   N₊ · d · p / 2
    majority – minority   N₊ · d · (1 - p)
    minority – minority   N₋ · d₋ · (1 - p) / 2        d₋ = d · (1 - p) / (q · p)

In *both* groups a neighbour is then a majority node with probability p, which in an undirected graph
fixes the minority's expected degree at d₋ (equal degrees need q·p = 1 - p, as with the defaults). A
minority neighbour is any minority node with equal probability, so of each class by its share. Features are
N(μ_c, I) with all class means at the same distance from each other; so neighbours say nothing about a
node's own class, and its features alone decide: between two equally frequent classes the best
classifier is right with probability Φ(separation / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedspray.datasets._files import DataFolders
from fedspray.datasets.base import ClientGraphs, FederationCard
from fedspray.errors import InputError
from fedspray.knob import check, knob
from fedspray.memory import check_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph

NODES_PER_CLIENT = 1_500
"""Nodes per client if no total is given."""


@dataclass(frozen=True)
class Banks(ClientGraphs):
    """The generator's settings."""

    is_drawn: ClassVar[bool] = True

    num_clients: int = knob(4, "number of banks K", least=1)
    num_nodes: int | None = knob(None, "nodes of all banks together, split evenly; default: 1,500 per bank")
    num_features: int = knob(32, "features F of a node; at least the classes")
    num_classes: int = knob(2, "classes C", least=2)
    degree: float = knob(6.0, "expected degree d of a majority node")
    majority_neighbour_share: float = knob(
        0.8, "probability p that a neighbour, of any node, is a majority node", above=0, below=1
    )
    minority_ratio: float = knob(0.25, "minority nodes per majority node, q")
    separation: float = knob(
        2.0, "distance between the means of two classes, in standard deviations", least=0, most=1_000_000
    )

    def __post_init__(self) -> None:
        check(self)
        p, q = self.majority_neighbour_share, self.minority_ratio
        if self.num_features < self.num_classes:
            raise InputError(
                f"num_features is {self.num_features}, but banks needs at least as many as classes, {self.num_classes}"
            )
        nodes = self.num_nodes or self.num_clients * NODES_PER_CLIENT
        check_memory(
            f"banks of {nodes:,} nodes, {self.num_clients:,} clients, {self.num_features:,} features",
            nodes * (4 * self.num_features + 100) + 100 * self.num_clients + 16 * self.num_features * self.num_classes,
        )
        if not 0 < q <= self.num_classes - 1:
            raise InputError(
                f"minority_ratio (q) is {q}, but must be above 0 and at most {self.num_classes - 1}, "
                "so that no class outnumbers the majority"
            )
        smallest = min(self.client_sizes)
        majority, minority = _group_sizes(smallest, q)
        if majority < 1 or minority < self.num_classes - 1:
            raise InputError(
                f"{sum(self.client_sizes)} nodes over {self.num_clients} clients leave {smallest} for one, "
                f"too few for {self.num_classes} classes at minority_ratio {q}"
            )
        if not (math.isfinite(self.degree) and self.degree >= 0) or max(self._probabilities(smallest)) > 1:
            raise InputError(
                f"degree is {self.degree}, but must be 0 or more and small enough for clients of "
                f"{smallest} nodes at p {p} and q {q}"
            )

    @property
    def client_sizes(self) -> list[int]:
        """Nodes of each client: equal, with the remainder going to the first ones."""
        total = self.num_clients * NODES_PER_CLIENT if self.num_nodes is None else self.num_nodes
        share, rest = divmod(total, self.num_clients)
        return [share + (index < rest) for index in range(self.num_clients)]

    @property
    def minority_degree(self) -> float:
        """d₋, the expected degree of a minority node."""
        p = self.majority_neighbour_share
        return self.degree * (1 - p) / (self.minority_ratio * p)

    def settings(self) -> dict[str, Any]:
        """All fields, with the actual number of nodes."""
        return {**super().settings(), "num_nodes": sum(self.client_sizes)}

    def graphs(self, folders: DataFolders, seed: int) -> dict[str, Graph]:
        """Draws all clients; no files are needed."""
        return self.generate(seed)

    def generate(self, seed: int = 0) -> dict[str, Graph]:
        """Draws all clients; client k doesn't depend on their number, at the same size."""
        means = self.class_means(seed)
        width = max(2, len(str(self.num_clients - 1)))
        return {
            f"bank_{index:0{width}d}": self.generate_client(seed, index, num_nodes, means)
            for index, num_nodes in enumerate(self.client_sizes)
        }

    def class_means(self, seed: int) -> NDArray[np.float32]:
        """[C, F]: centred at 0, in random directions, every two ``separation`` apart; for all clients."""
        import numpy as np

        from fedspray.seeds import generator

        draws = generator(seed, "banks", "means").standard_normal((self.num_features, self.num_classes))
        directions = np.linalg.qr(draws)[0].T
        means = self.separation / math.sqrt(2) * (directions - directions.mean(axis=0))
        return np.asarray(means, dtype=np.float32)

    def generate_client(self, seed: int, index: int, num_nodes: int, means: NDArray[np.float32]) -> Graph:
        """Draws one client from its own random stream."""
        import numpy as np

        from fedspray.data.graph import Graph
        from fedspray.seeds import generator

        rng = generator(seed, "banks", "client", index)
        num_majority, num_minority = _group_sizes(num_nodes, self.minority_ratio)
        majority_class = index % self.num_classes
        others = np.delete(np.arange(self.num_classes), majority_class)
        labels = np.concatenate([np.full(num_majority, majority_class), np.resize(others, num_minority)])
        rng.shuffle(labels)
        features = rng.standard_normal((num_nodes, self.num_features), dtype=np.float32)
        features += means[labels]
        edges = np.concatenate(list(self._draw_edges(rng, labels == majority_class)), axis=1)
        return Graph.from_arrays(features, edges, labels, num_classes=self.num_classes)

    def _draw_edges(self, rng: np.random.Generator, is_majority: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
        import numpy as np

        majority, minority = np.flatnonzero(is_majority), np.flatnonzero(~is_majority)
        inside_majority, between, inside_minority = self._probabilities(len(is_majority))
        for nodes, probability in ((majority, inside_majority), (minority, inside_minority)):
            yield nodes[_draw_pairs(rng, len(nodes), probability)]
        num_pairs = len(majority) * len(minority)
        ends = np.divmod(_draw_indices(rng, num_pairs, between), len(minority))
        yield np.stack([majority[ends[0]], minority[ends[1]]])

    def _probabilities(self, num_nodes: int) -> tuple[float, float, float]:
        """Of an edge within the majority, between the groups, and within the minority."""
        p = self.majority_neighbour_share
        majority, minority = _group_sizes(num_nodes, self.minority_ratio)
        # The minority's degree follows from its actual size, which rounding may set off from q.
        minority_degree = self.degree * (1 - p) / p * majority / minority
        return (
            self.degree * p / max(1, majority - 1),
            self.degree * (1 - p) / minority,
            minority_degree * (1 - p) / max(1, minority - 1),
        )


def _group_sizes(num_nodes: int, minority_ratio: float) -> tuple[int, int]:
    majority = round(num_nodes / (1 + minority_ratio))
    return majority, num_nodes - majority


def _draw_indices(rng: np.random.Generator, population: int, probability: float) -> NDArray[np.int64]:
    """Each of 0 … population-1 with the given probability, independently."""
    count = rng.binomial(population, probability)
    return rng.choice(population, size=count, replace=False, shuffle=False)


def _draw_pairs(rng: np.random.Generator, num_nodes: int, probability: float) -> NDArray[np.int64]:
    """[2, E]: each unordered pair of nodes with the given probability, independently.

    Pair number i is (u, u + s mod n) with s = i div n + 1 and u = i mod n: every pair of n nodes on a
    circle is named once, without a table and without square roots.
    """
    import numpy as np

    step, start = np.divmod(_draw_indices(rng, num_nodes * (num_nodes - 1) // 2, probability), num_nodes)
    return np.stack([start, (start + step + 1) % num_nodes])


CARDS = (
    FederationCard(
        name="banks",
        title="built-in generator: banks whose few special customers sit among ordinary ones",
        source=Banks,
    ),
)
