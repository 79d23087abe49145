"""Proposition 1: how far classes are from the best linear boundary, by formula and by Monte Carlo on `banks`.

With p_k the share of majority neighbours, q_k minority nodes per majority node, and h_k the mean of a node's
neighbours in client k, a node of class c is embedded as x + h (its own neighbours) or x + s_c, where::

    s_c = Σ_k a_ck h_k        a_ck = 1 if c is the majority of client k, else q_k

The paper: dist = ‖μ1 - μ2‖/2 grows to dist' = (1 + Σ_k (1-q_k)(p_k-1/2)) dist in a balanced federation, one with
δ = Σ_{k: majority 1} (1-q_k) - Σ_{k: majority 2} (1-q_k) = 0. Without balance the classes differ by another
δ (μ1+μ2)/2, and the boundary tilts. The sums make the factor grow with the number of clients, and the noise too,
so the averaged form s_c / W_c with W_c = Σ_k a_ck and error rates are given beside it. Every s_c presumes that
the class of the node is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedspray import Banks, generator

if TYPE_CHECKING:
    from fedspray import Graph

Array = NDArray[np.float64]

KINDS = ("local", "sum", "average")
"""What joins a node's features: its own neighbours, the sums s_c, or their averages s_c / W_c."""


@dataclass(frozen=True)
class TwoClasses:
    """A federation of two classes; client k has majority class k mod 2, as in `banks`."""

    name: str
    p: tuple[float, ...]
    q: tuple[float, ...]
    majority_nodes: tuple[int, ...]
    offset: float = 0.0
    """Length of (μ1+μ2)/2, at a right angle to μ1-μ2: `banks` itself is centred."""
    banks: Banks = Banks()

    @property
    def separation(self) -> float:
        """‖μ1 - μ2‖."""
        return self.banks.separation

    @property
    def factor(self) -> float:
        """The paper's dist' / dist."""
        return 1 + sum((1 - q) * (p - 0.5) for p, q in zip(self.p, self.q, strict=True))

    @property
    def imbalance(self) -> float:
        """δ: 0 in a federation that is balanced in the paper's sense."""
        return sum((1 - q) * (1 if k % 2 == 0 else -1) for k, q in enumerate(self.q))

    @property
    def class_counts(self) -> tuple[int, int]:
        """Nodes of each class in all clients."""
        counts = [0, 0]
        for k, (q, nodes) in enumerate(zip(self.q, self.majority_nodes, strict=True)):
            counts[k % 2] += nodes
            counts[1 - k % 2] += round(q * nodes)
        return counts[0], counts[1]

    def weights(self, kind: str) -> Array:
        """[2, K]: the weight of each client's neighbours in what a node of each class gets."""
        clients = np.arange(len(self.q))
        weights = np.where(clients % 2 == np.arange(2)[:, None], 1.0, np.array(self.q))
        return weights / weights.sum(axis=1, keepdims=True) if kind == "average" else weights

    def paper_distance(self, kind: str) -> float:
        """The paper's formula; for the averaged form, the same with the factor's sum divided by W."""
        if kind == "local":
            return self.separation / 2
        shared = self.weights("sum").sum(axis=1)[0] if kind == "average" else 1.0
        return (1 + (self.factor - 1) / shared) * self.separation / 2

    def exact_distance(self, kind: str) -> float:
        """The same without presuming balance: half the distance between the expected embeddings of the classes."""
        if kind == "local":
            return self.separation / 2
        # Expected neighbours of client k are p μ_majority + (1-p) μ_other: as shares of (μ1, μ2), [K, 2].
        p, majority = np.array(self.p), np.arange(len(self.p)) % 2
        shares = np.where(np.arange(2) == majority[:, None], p[:, None], 1 - p[:, None])
        first, second = np.eye(2) + self.weights(kind) @ shares
        along, across = first - second  # coefficients of μ1 and μ2
        # μ1 = m + Δ/2 and μ2 = m - Δ/2, with the middle m at a right angle to Δ
        return math.hypot((along - across) / 2 * self.separation, (along + across) * self.offset) / 2


CASES = (
    TwoClasses("banks", (0.8,) * 4, (0.25,) * 4, (6000,) * 4),
    TwoClasses("uneven, balanced", (0.9, 0.7, 0.8, 0.6), (0.2, 0.4, 0.4, 0.2), (6000,) * 4, offset=2.0),
    TwoClasses("equal classes, not balanced", (0.8, 0.8), (0.2, 0.6), (5000, 10_000), offset=2.0),
)
"""The defaults of `banks`; other p and q in every client; and as many nodes of each class, yet δ is not 0."""


@dataclass(frozen=True)
class Separation:
    """Means over draws of the whole federation, and their standard errors."""

    distance: float
    distance_error: float
    wrong: float
    """Share of nodes on the wrong side of the boundary, both classes counting alike."""


def estimate(case: TwoClasses, draws: int, seed: int = 0) -> dict[str, Separation]:
    """Distance and error rate for each of `KINDS`, by Monte Carlo.

    Args:
        case: the federation.
        draws: of the whole federation, at least 2.
        seed: of the first draw; the others count on.
    """
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for index in range(draws):
        for kind in KINDS:
            halves = [_halves(*embedded, seed + index) for embedded in embeddings(case, kind, seed + index)]
            found[kind].append((fmean(d for d, _ in halves), fmean(w for _, w in halves)))
    return {
        kind: Separation(
            distance=fmean(d for d, _ in pairs),
            distance_error=stdev(d for d, _ in pairs) / math.sqrt(draws),
            wrong=fmean(w for _, w in pairs),
        )
        for kind, pairs in found.items()
    }


def embeddings(case: TwoClasses, kind: str, seed: int) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """Embeddings [N, F] and classes [N] that share one boundary: each client's own (local), or all nodes."""
    graphs = list(_graphs(case, seed))
    neighbours = [_neighbour_means(graph) for graph in graphs]
    if kind == "local":
        for graph, mean in zip(graphs, neighbours, strict=True):
            known = graph.degrees > 0
            yield (graph.dense_features() + mean)[known], graph.labels[known]
        return
    features = np.concatenate([graph.dense_features() for graph in graphs]).astype(np.float64)
    labels = np.concatenate([graph.labels for graph in graphs])
    for k, (graph, mean) in enumerate(zip(graphs, neighbours, strict=True)):
        draw = generator(seed, "proposition", "neighbours", k)
        chosen = draw.choice(np.flatnonzero(graph.degrees > 0), size=len(labels))
        features += case.weights(kind)[labels, k][:, None] * mean[chosen]
    yield features, labels


def class_means(case: TwoClasses, seed: int) -> Array:
    """[2, F]: the class means of `banks`, moved away from the origin by `TwoClasses.offset`."""
    means = case.banks.class_means(seed).astype(np.float64)
    direction = means[0] - means[1]
    away = generator(seed, "proposition", "offset").standard_normal(len(direction))
    away -= direction * (away @ direction) / (direction @ direction)
    return np.asarray(means + case.offset * away / np.linalg.norm(away))


def _graphs(case: TwoClasses, seed: int) -> Iterator[Graph]:
    means = class_means(case, seed).astype(np.float32)
    for k, (p, q, majority) in enumerate(zip(case.p, case.q, case.majority_nodes, strict=True)):
        bank = replace(case.banks, majority_neighbour_share=p, minority_ratio=q)
        yield bank.generate_client(seed, k, majority + round(q * majority), means)


def _neighbour_means(graph: Graph) -> Array:
    """[N, F]: the mean of each node's neighbours; 0 where there is none."""
    import scipy.sparse as sp

    source, target = graph.both_directions()
    adjacency = sp.csr_array((np.ones(len(source)), (target, source)), shape=(graph.num_nodes,) * 2)
    return np.asarray(adjacency @ graph.dense_features() / np.maximum(graph.degrees, 1)[:, None])


def _halves(embedded: Array, labels: NDArray[np.int64], seed: int) -> tuple[float, float]:
    """Half the distance between the class means, and the error rate of the boundary in their middle.

    Nodes are cut into two halves. The product of their differences of means has no bias, while the length of one
    of them counts noise as distance; and the boundary of one half is judged on the other.
    """
    order = generator(seed, "proposition", "halves").permutation(len(labels))
    halves = (order[::2], order[1::2])
    means = [[embedded[half][labels[half] == c].mean(axis=0) for c in (0, 1)] for half in halves]
    differences = [first - second for first, second in means]
    squared = float(differences[0] @ differences[1])
    side = (embedded[halves[1]] - sum(means[0]) / 2) @ differences[0]
    tested = labels[halves[1]]
    wrong = [float((side[tested == 0] <= 0).mean()), float((side[tested == 1] > 0).mean())]
    return math.sqrt(max(0.0, squared)) / 2, fmean(wrong)
