"""Graphs that come as one file: npz, PyTorch Geometric's .pt, GraphML and GEXF."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedspray.data.federation import Split
from fedspray.data.graph import Graph
from fedspray.data.reading import MASKS, read_graph_and_split
from fedspray.errors import UNREADABLE, InputError, one_line
from fedspray.tables.database import Database
from fedspray.tables.sources import Source
from fedspray.tables.textfiles import check_file

XML = {".graphml": "GraphML", ".gexf": "GEXF"}
ARRAYS = (".npz", ".pt", ".pth")
IDENTITY, ENDS = "id", ("source", "target")
"""Columns of the tables that a GraphML or GEXF file becomes, beside its attributes."""


def read_arrays(path: Path) -> tuple[Graph, Split | None]:
    """A graph in npz or PyTorch's format, with its split if it has masks."""
    check_file(path)
    if path.suffix == ".npz":
        _check_size(path)
        return read_graph_and_split(path)
    return _read_pyg(path)


def load_xml(database: Database, path: Path) -> tuple[Source, Source]:
    """The nodes and edges of a GraphML or GEXF file as tables; attributes are columns."""
    check_file(path)
    if b"<!ENTITY" in path.read_bytes()[: 1 << 16]:
        raise InputError(f"{path} defines entities, which may unpack without end, so it is not read")
    import networkx as nx

    read = nx.read_graphml if path.suffix.lower() == ".graphml" else nx.read_gexf
    try:
        graph = read(path)
    except (*UNREADABLE, SyntaxError, nx.NetworkXError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is not readable {XML[path.suffix.lower()]} ({one_line(str(error))})") from None
    nodes = database.add(
        "nodes of the graph", *_columns([IDENTITY], (((n,), data) for n, data in graph.nodes(data=True))), path
    )
    edges = database.add(
        "edges of the graph", *_columns(ENDS, ((ends, data) for *ends, data in graph.edges(data=True))), path
    )
    return Source([nodes]), Source([edges])


def _columns(
    first: Iterable[str], rows: Iterable[tuple[Iterable[Any], dict[str, Any]]]
) -> tuple[list[str], list[list[str | None]]]:
    listed = list(rows)
    fixed = list(first)
    keys = sorted({str(key) for _, data in listed for key in data} - set(fixed))
    text = [[*(str(v) for v in values), *(_as_text(data.get(key)) for key in keys)] for values, data in listed]
    return [*fixed, *keys], text


def _as_text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _check_size(path: Path) -> None:
    """An npz says how large its arrays are; one that is all zeros packs a thousandfold."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is not an npz file ({error})") from None
    if size > max(1 << 28, 50 * path.stat().st_size):
        raise InputError(f"{path} unpacks to {size / 1e9:,.1f} GB, more than 50 times its size, so it is not read")


def _read_pyg(path: Path) -> tuple[Graph, Split | None]:
    """A `Data` (or a dict of tensors) that torch saved; tensors only, so nothing in the file is run."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path} is not a graph that torch can read without running code ({one_line(str(error))[:150]})"
        ) from None
    if isinstance(content, tuple | list) and content:  # PyG's data sets save (data, slices)
        content = content[0]
    if isinstance(content, dict):
        content = Data.from_dict(content)
    if not isinstance(content, Data):
        raise InputError(f"{path} holds a {type(content).__name__}, but must hold a torch_geometric Data")
    masks = [content[name].cpu().numpy() for name in MASKS if name in content and content[name].dim() == 1]
    try:
        return Graph.from_pyg(content), Split(*masks) if len(masks) == len(MASKS) else None
    except (AttributeError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not hold a graph ({one_line(str(error))[:150]})") from None
