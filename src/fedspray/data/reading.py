"""From a path to graphs: the only place that knows the file formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.data.npz import read_arrays
from fedspray.errors import InputError, MissingDataError

MASKS = ("train_mask", "val_mask", "test_mask")
"""Arrays of an npz file that make a split, as PyTorch Geometric calls them."""


def read_graph(path: str | Path) -> Graph:
    """Reads the graph of a client's folder, or one in npz format."""
    return read_graph_and_split(path)[0]


def read_graph_and_split(path: str | Path) -> tuple[Graph, Split | None]:
    """The same, and the split that a client's folder has, or an npz file with all of `MASKS`."""
    source = Path(path)
    if source.is_dir():
        client = Client.load(source)
        return client.graph, client.split
    if not source.exists():
        raise MissingDataError(f"{source} does not exist: give a client's folder or a graph in npz format")
    graph, arrays = Graph.from_npz(source), read_arrays(source)
    masks = [arrays[name] for name in MASKS if name in arrays]
    return graph, Split(*masks) if len(masks) == len(MASKS) else None


def read_federation(folder: str | Path) -> Federation:
    """Reads the folder of a saved federation, or one with a graph in npz format for each client.

    Such a client is named after its file. Splits in the files are kept.
    """
    source = Path(folder)
    files = sorted(file for file in source.glob("*.npz") if not file.name.startswith("."))
    if not files or (source / "manifest.json").exists():
        return Federation.load(source)
    if (source / "split.npz").exists():
        raise InputError(f"{source} is one client's folder, but a federation is needed: give the folder that holds all")
    read = {file.stem: read_graph_and_split(file) for file in files}
    num_classes = max(graph.num_classes for graph, _ in read.values())  # one client may lack the last class
    graphs = {
        name: graph if graph.num_classes == num_classes else graph.with_num_classes(num_classes)
        for name, (graph, _) in read.items()
    }
    splits = {name: split for name, (_, split) in read.items() if split is not None}
    tidied = "; ".join(f"{name}: {graph.tidied()}" for name, graph in graphs.items() if graph.tidied())
    settings = {"dataset": source.name, "num_clients": len(files), **({"tidied": tidied} if tidied else {})}
    if not splits:
        return Federation.from_graphs(graphs, name=source.name, settings=settings)
    without = next((name for name in graphs if name not in splits), None)
    if without is not None:
        raise InputError(
            f"{source / without}.npz lacks {', '.join(MASKS)}, but other clients have them: add them to all or none"
        )
    clients = [Client(name, graph, splits[name], np.arange(graph.num_nodes)) for name, graph in graphs.items()]
    return Federation(source.name, tuple(clients), settings)
