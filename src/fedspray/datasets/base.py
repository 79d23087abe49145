"""`DatasetCard`: what is published about a data set, and the function that reads it.

A source is one module of this package with a tuple ``CARDS``. Its ``read`` functions take the data
folders and return a `Graph`; `DatasetCard.load` then compares the graph with the published counts,
so that a wrong or damaged file is noticed before anything is learnt from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedspray.datasets._files import DataFolders
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.data.graph import Graph


@dataclass(frozen=True)
class DatasetCard:
    """One public data set."""

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
    """How many clients `louvain` makes of it by default; the paper's number where it used the data set."""
    citation: str
    read: Callable[[DataFolders], Graph]
    """Reads the raw files, fetching them where they are missing."""

    def load(self, folders: DataFolders | None = None) -> Graph:
        """Reads the graph and refuses it if it does not have the published counts."""
        graph = self.read(folders or DataFolders.from_environment())
        self.check(graph)
        return graph

    def check(self, graph: Graph) -> None:
        """Compares a graph with the published counts; a graph without any features passes as 'graph only'."""
        for what in ("num_nodes", "num_edges", "num_features", "num_classes"):
            found, published = getattr(graph, what), getattr(self, what)
            if found != published and not (what == "num_features" and found == 0):
                raise InputError(
                    f"the files of data set {self.name!r} hold {found} {what.removeprefix('num_')}, "
                    f"but {published} are published: they are damaged or belong to another data set"
                )
