"""Statistics of a federation, before any training.

Terms used throughout the project:

* *majority class* and *minority nodes* of a client: `fedspray.data.minority` defines them. Here all labelled nodes
  count; training and evaluation know the training labels only (`Client.majority_class`).
* *homophily* of a node: the share of its labelled neighbours that have its own label. Neighbours without
  a label don't count; a node without a label, or without a labelled neighbour, has
  no homophily and is left out of averages.
* *label divergence* of a client: the Jensen–Shannon divergence, in bits, of its label distribution from
  that of all clients together: 0 when they are equal, 1 when they share no class.

An undefined number is None (JSON null), never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedspray.data.federation import Client, Federation
from fedspray.data.graph import Graph
from fedspray.data.minority import NONE, is_minority, majority_class
from fedspray.display import count, line, table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ClientStatistics:
    """One client in numbers."""

    name: str
    num_nodes: int
    num_edges: int
    """Undirected edges inside the client."""
    isolated_nodes: int
    """Nodes without any neighbour."""
    label_counts: tuple[int, ...]
    """[C]: labelled nodes of each class."""
    unlabelled_nodes: int
    majority_class: int | None
    majority_nodes: int
    minority_nodes: int
    majority_homophily: float | None
    """Average homophily of the majority nodes."""
    minority_homophily: float | None
    """Average homophily of the minority nodes."""
    class_homophily: tuple[float | None, ...]
    """[C]: average homophily of the nodes of each class."""
    label_divergence: float | None
    edges_lost: int
    """Edges of the whole graph between this client's nodes and nodes outside it."""

    def __repr__(self) -> str:
        sizes = count(self.num_nodes, "node"), count(self.num_edges, "edge")
        return line(self, self.name, *sizes, count(self.minority_nodes, "minority node"))

    def row(self) -> dict[str, Any]:
        """As a row of a table: a column for each number, also of each class."""
        return {
            **{name: value for name, value in vars(self).items() if not isinstance(value, tuple)},
            **{f"label_count_{c}": value for c, value in enumerate(self.label_counts)},
            **{f"class_homophily_{c}": value for c, value in enumerate(self.class_homophily)},
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; the keys are the field names."""
        return _plain(self)


@dataclass(frozen=True)
class FederationStatistics:
    """A federation in numbers."""

    name: str
    num_clients: int
    num_features: int
    num_classes: int
    class_names: tuple[str, ...] | None
    average_nodes: float
    average_edges: float
    total_nodes: int
    total_edges: int
    """Undirected edges inside clients."""
    isolated_nodes: int
    label_counts: tuple[int, ...]
    """[C]: labelled nodes of each class in all clients."""
    unlabelled_nodes: int
    clients: tuple[ClientStatistics, ...]
    settings: Mapping[str, Any]
    """How the federation was made."""

    def __repr__(self) -> str:
        sizes = count(self.num_clients, "client"), count(self.total_nodes, "node"), count(self.total_edges, "edge")
        return line(self, self.name, *sizes)

    def _repr_html_(self) -> str:
        columns = ["client", "nodes", "edges", "edges lost", "isolated", "majority class", "majority nodes"]
        columns += ["minority nodes", "majority h", "minority h", "label JSD"]
        rows = []
        for client in self.clients:
            counts = client.num_nodes, client.num_edges, client.edges_lost, client.isolated_nodes
            shares = client.majority_homophily, client.minority_homophily, client.label_divergence
            rows.append(
                [client.name, *(f"{value:,}" for value in counts), self._class(client.majority_class)]
                + [f"{client.majority_nodes:,}", f"{client.minority_nodes:,}"]
                + ["n/a" if value is None else f"{value:.2f}" for value in shares]
            )
        note = (
            "h: average share of neighbours with the node's own label. JSD: divergence from the labels of all clients."
        )
        return table(repr(self), columns, rows, note)

    def to_frame(self) -> pd.DataFrame:
        """pandas: one row per client, with the columns that ``fedspray inspect --csv`` writes."""
        import pandas as pd

        return pd.DataFrame([client.row() for client in self.clients])

    def _class(self, index: int | None) -> str:
        if index is None:
            return "n/a"
        return str(index) if self.class_names is None else f"{index} {self.class_names[index]}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; the keys are the field names."""
        return {**_plain(self), "clients": [_plain(client) for client in self.clients], "settings": dict(self.settings)}


def _plain(statistics: ClientStatistics | FederationStatistics) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(statistics).items()}


def describe(federation: Federation) -> FederationStatistics:
    """The statistics of a federation and of each of its clients."""
    overall = np.sum([client.graph.label_counts() for client in federation.clients], axis=0)
    clients = tuple(_describe_client(client, overall) for client in federation.clients)
    total_nodes = sum(client.num_nodes for client in clients)
    total_edges = sum(client.num_edges for client in clients)
    task = federation.task
    return FederationStatistics(
        name=federation.name,
        num_clients=len(clients),
        num_features=task.num_features,
        num_classes=task.num_classes,
        class_names=task.class_names,
        average_nodes=total_nodes / len(clients),
        average_edges=total_edges / len(clients),
        total_nodes=total_nodes,
        total_edges=total_edges,
        isolated_nodes=sum(client.isolated_nodes for client in clients),
        label_counts=tuple(overall.tolist()),
        unlabelled_nodes=sum(client.unlabelled_nodes for client in clients),
        clients=clients,
        settings=federation.settings,
    )


def node_homophily(graph: Graph) -> NDArray[np.float64]:
    """[N]: the share of each node's labelled neighbours with its own label; NaN where there is none."""
    pairs = graph.edges[:, graph.labelled[graph.edges].all(axis=0)]
    agree = graph.labels[pairs[0]] == graph.labels[pairs[1]]
    neighbours, alike = (np.bincount(ends.ravel(), minlength=graph.num_nodes) for ends in (pairs, pairs[:, agree]))
    homophily = np.full(graph.num_nodes, np.nan)
    np.divide(alike, neighbours, out=homophily, where=neighbours > 0)
    return homophily


def label_divergence(counts: NDArray[np.int64], reference: NDArray[np.int64]) -> float | None:
    """The Jensen–Shannon divergence, in bits, between two distributions given as counts [C].

    >>> label_divergence(np.array([3, 0]), np.array([0, 5]))
    1.0
    """
    if counts.sum() == 0 or reference.sum() == 0:
        return None
    p, q = counts / counts.sum(), reference / reference.sum()
    middle = (p + q) / 2
    # Rounding may leave a tiny negative number where the two are equal.
    return max(0.0, float(_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2)


def _describe_client(client: Client, overall: NDArray[np.int64]) -> ClientStatistics:
    graph = client.graph
    counts = graph.label_counts()
    homophily = node_homophily(graph)
    labelled = int(counts.sum())
    majority = int(majority_class(counts))
    minority = graph.labelled & is_minority(graph.labels, majority)
    minority_nodes = int(minority.sum())
    return ClientStatistics(
        name=client.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        isolated_nodes=int((graph.degrees == 0).sum()),
        label_counts=tuple(counts.tolist()),
        unlabelled_nodes=graph.num_nodes - labelled,
        majority_class=None if majority == NONE else majority,
        majority_nodes=labelled - minority_nodes,
        minority_nodes=minority_nodes,
        majority_homophily=_average(homophily[graph.labelled & ~minority]),
        minority_homophily=_average(homophily[minority]),
        class_homophily=tuple(_average(homophily[graph.labels == c]) for c in range(graph.num_classes)),
        label_divergence=label_divergence(counts, overall),
        edges_lost=client.edges_lost,
    )


def _average(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _relative_entropy(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    held = p > 0
    return float((p[held] * np.log2(p[held] / q[held])).sum())
