"""From a path to a graph: the one place that knows what files a graph may come in."""

from __future__ import annotations

from pathlib import Path

from fedspray.data.federation import Client, Split
from fedspray.data.graph import Graph
from fedspray.errors import MissingDataError


def read_graph(path: str | Path) -> Graph:
    """Reads the graph of a client's folder, or one in npz format."""
    return read_graph_and_split(path)[0]


def read_graph_and_split(path: str | Path) -> tuple[Graph, Split | None]:
    """The same, and the split that a client's folder has."""
    source = Path(path)
    if source.is_dir():
        client = Client.load(source)
        return client.graph, client.split
    if not source.exists():
        raise MissingDataError(f"{source} does not exist: give a client's folder or a graph in npz format")
    return Graph.from_npz(source), None
