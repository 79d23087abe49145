"""The cards of data sets: published facts, and a reader.

A source is one module of this package with a tuple ``CARDS``. A `DatasetCard` describes a data set that is one graph:
its ``read`` function returns a `Graph`, which a partitioner cuts into clients. A `FederationCard` describes one that
comes as one graph for each client (`ClientGraphs`), read or drawn. Both compare the graphs with the published counts,
so that a wrong or damaged file is noticed before training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fedspray.datasets._files import DataFolders
from fedspray.errors import InputError
from fedspray.plugins import settings_of

if TYPE_CHECKING:
    from fedspray.data.graph import Graph


@dataclass(frozen=True)
class DatasetCard:
    """One public data set that is one graph."""

    name: str
    """The name on the command line."""
    title: str
    """What it is, in a few words."""
    num_nodes: int
    num_edges: int
    """Undirected edges, each counted once, without self-loops; many papers print twice this number."""
    num_features: int
    num_classes: int
    default_clients: int
    """The default number of `louvain` clients; the paper's, if it used the data set."""
    citation: str
    read: Callable[[DataFolders], Graph]
    """Reads the raw files, downloading missing ones."""

    def at_hand(self, folders: DataFolders) -> bool:
        """Whether it can be opened without a download."""
        return folders.hold(self.name)

    def load(self, folders: DataFolders | None = None) -> Graph:
        """Reads the graph and refuses it if its counts differ from the published ones."""
        graph = self.read(folders or DataFolders.from_environment())
        self.check(graph)
        return graph

    def check(self, graph: Graph) -> None:
        """Compares a graph with the published counts; a graph without any features passes as 'graph only'."""
        for what in ("num_nodes", "num_edges", "num_features", "num_classes"):
            if not (what == "num_features" and graph.num_features == 0):
                _compare(f"data set {self.name!r}", graph, what, getattr(self, what))


@dataclass(frozen=True)
class ClientGraphs(ABC):
    """A data set with one graph per client, all with one task.

    A subclass is a frozen dataclass whose fields are its settings: each is a flag and a key of an experiment
    (``num_clients`` is ``--clients``). A data set without fields has fixed clients and nodes.
    """

    is_drawn: ClassVar[bool] = False
    """Whether the graphs are drawn from a seed (``--partition-seed``) instead of read from files."""

    @abstractmethod
    def graphs(self, folders: DataFolders, seed: int) -> dict[str, Graph]:
        """The graph of each client, by the client's name."""

    def settings(self) -> dict[str, Any]:
        """Its settings, as stored in a federation."""
        return settings_of(self)


@dataclass(frozen=True, kw_only=True)
class FederationCard:
    """One data set that comes as separate clients."""

    name: str
    title: str
    source: type[ClientGraphs]
    clients: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Published nodes and edges of each client; empty where settings decide."""
    num_features: int | None = None
    num_classes: int | None = None
    citation: str | None = None

    @property
    def num_nodes(self) -> int | None:
        """Of all clients together, None where settings decide."""
        return sum(nodes for nodes, _ in self.clients.values()) or None

    @property
    def num_edges(self) -> int | None:
        """Of all clients together, None where settings decide."""
        return sum(edges for _, edges in self.clients.values()) or None

    @property
    def default_clients(self) -> int | None:
        """How many there are, None where settings decide."""
        return len(self.clients) or None

    def at_hand(self, folders: DataFolders) -> bool:
        """Whether it can be opened without a download."""
        return self.source.is_drawn or folders.hold(self.name)

    def load(self, source: ClientGraphs, seed: int = 0, folders: DataFolders | None = None) -> dict[str, Graph]:
        """Reads or draws the clients and refuses them if their counts differ from the published ones."""
        graphs = source.graphs(folders or DataFolders.from_environment(), seed)
        for client, (num_nodes, num_edges) in self.clients.items():
            published = {"num_nodes": num_nodes, "num_edges": num_edges}
            for what in ("num_features", "num_classes"):
                published[what] = getattr(self, what)
            for what, count in published.items():
                _compare(f"client {client} of data set {self.name!r}", graphs[client], what, count)
        return graphs


def _compare(whose: str, graph: Graph, what: str, published: int) -> None:
    found = getattr(graph, what)
    if found != published:
        raise InputError(
            f"the files of {whose} hold {found} {what.removeprefix('num_')}, "
            f"but {published} are published: they are damaged or belong to another data set"
        )
