"""What a personal model says about nodes, how sure it is, and why; and what nodes it is asked about."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedspray.data.federation import Client
from fedspray.data.graph import Graph, is_pyg
from fedspray.data.minority import is_minority
from fedspray.data.reading import read_graph
from fedspray.display import count, line
from fedspray.errors import InputError, one_line
from fedspray.files import Json
from fedspray.runs.trained_on import NEW, PARTS, TEST

if TYPE_CHECKING:
    import pandas as pd
    from torch_geometric.data import Data

    from fedspray.tables.database import OnProgress
    from fedspray.tables.problems import Problems

    Table: TypeAlias = str | Path | pd.DataFrame
    Nodes: TypeAlias = Graph | Client | Data | Table | Sequence[Table]

UNKNOWN = "unknown"
"""In place of a part, where the model cannot tell whether it was trained on a node."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A graph, and which of its nodes to predict."""

    graph: Graph
    wanted: NDArray[np.bool_]
    """[N]; the others are there for their edges."""
    rows: NDArray[np.int64] | None = None
    """[N]: see `Predictions.rows`."""
    problems: Problems | None = None
    """Rows of its tables that were left out; None if it is not from tables."""


def ask(
    schema: str | None,
    data: Nodes,
    edges: Table | Sequence[Table] | None = None,
    known: Table | Sequence[Table] | None = None,
    on_progress: OnProgress | None = None,
) -> Asked:
    """Reads what a prediction is wanted for: a graph of any kind, or tables through a model's schema."""
    if _is_table(data):
        tables: Any = data
        return _from_tables(schema, _listed(tables), _listed(edges), _listed(known), on_progress)
    if edges is not None or known is not None:
        raise InputError("data is a whole graph, so leave out the tables of edges and known nodes")
    graph = _as_graph(data)
    return Asked(graph, np.ones(graph.num_nodes, np.bool_))


def _is_table(data: object) -> bool:
    if isinstance(data, list | tuple) or type(data).__name__ == "DataFrame":
        return True
    return isinstance(data, str | Path) and Path(data).suffix.lower() not in ("", ".npz") and not Path(data).is_dir()


def _listed(tables: Table | Sequence[Table] | None) -> list[Table]:
    if tables is None:
        return []
    return list(tables) if isinstance(tables, list | tuple) else [tables]


def _from_tables(
    schema: str | None, nodes: list[Table], edges: list[Table], known: list[Table], on_progress: OnProgress | None
) -> Asked:
    if schema is None:
        raise InputError(
            "the model was not trained on imported tables, so it has no schema to read tables: give a graph"
        )
    from fedspray.tables.importing import import_new
    from fedspray.tables.schema import Schema

    with tempfile.TemporaryDirectory() as folder:
        paths = [[_path(table, Path(folder)) for table in tables] for tables in (nodes, edges, known)]
        try:
            made, wanted, rows = import_new(
                Schema.from_toml(schema), paths[0], paths[1] or None, paths[2], on_progress=on_progress
            )
        except InputError as error:
            raise type(error)(re.sub(rf"{re.escape(folder)}/\S+parquet", "the data frame", str(error))) from None
    return Asked(made.whole(), wanted, rows, made.problems)


def _path(table: Table, folder: Path) -> str:
    """A data frame becomes a file, which the schema reads like any other."""
    if isinstance(table, str | Path):
        return str(table)
    import duckdb

    if not len(table.columns):
        raise InputError("the data frame has no columns, but needs those of the model's schema")
    target = folder / f"table-{len(list(folder.iterdir()))}.parquet"
    try:
        given = duckdb.connect().register("given", table.copy())  # DuckDB cannot read a view in reverse order
        given.execute(f"COPY given TO '{target}' (FORMAT parquet)")
    except duckdb.Error as error:
        raise InputError(f"the data frame cannot be read ({one_line(str(error))[:200]})") from None
    return str(target)


def _as_graph(data: object) -> Graph:
    if isinstance(data, Graph):
        return data
    if isinstance(data, Client):
        return data.graph
    if isinstance(data, str | Path):
        return read_graph(data)
    if is_pyg(data):
        return Graph.from_pyg(data)
    raise InputError(
        f"the graph is a {type(data).__name__}, but must be a Graph, a Client, a PyTorch Geometric Data, a DataFrame "
        "or a path: Graph.from_arrays makes one of arrays"
    )


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says about some nodes of a graph."""

    graph: Graph
    nodes: NDArray[np.int64]
    """[n]: which of its nodes."""
    probabilities: NDArray[np.float64]
    """[n, C]; the largest is the predicted class."""
    confidence: NDArray[np.float64]
    """[n]: of the predicted class, calibrated if the model is."""
    agreeing: NDArray[np.float64]
    """[n]: share of the neighbours that are of the predicted class, by what the model knows or predicts of them; NaN
    without neighbours."""
    votes: Mapping[str, NDArray[np.int64]]
    """[n] each: the classes that the parts of the model say by themselves, where it has several."""
    parts: NDArray[np.uint8] | None
    """[n]: indices into `trained_on.PARTS`; None if the model cannot tell which nodes it has seen."""
    majority: int | None
    """The client's majority class in training; None if the model does not say."""
    class_names: Sequence[str]
    rows: NDArray[np.int64] | None = None
    """[n]: the row of the given table that each node is from, counted from 0 (through several tables, one after the
    other); rows of a text file that do not fit its columns are not counted. None if the nodes are no rows of tables."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows of the given tables, of nodes or edges, that could not be used, by kind of problem."""

    def __repr__(self) -> str:
        left = sum(self.skipped.values())
        return line(self, count(len(self.nodes), "node"), f"{count(left, 'row')} skipped" if left else "")

    @property
    def classes(self) -> NDArray[np.int64]:
        """[n]: the predicted classes."""
        return np.asarray(self.probabilities.argmax(axis=1))

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each node."""
        import pandas as pd

        return pd.DataFrame(self.columns)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of `frame`, by name: sequences of one value for each node."""
        names, known = np.array(self.class_names, dtype=object), self.graph.node_names
        columns: dict[str, Any] = {
            "node": self.nodes if known is None else [known[node] for node in self.nodes],
            "prediction": names[self.classes],
            "confidence": self.confidence,
        }
        if self.majority is not None:
            columns["minority_class"] = is_minority(self.classes, self.majority)
        columns |= {"neighbours": self.graph.degrees[self.nodes], "neighbours_agree": self.agreeing}
        columns |= {f"{part}_says": names[said] for part, said in self.votes.items()}
        columns["seen_as"] = self._parts
        columns |= {f"probability_{name}": self.probabilities[:, c] for c, name in enumerate(self.class_names)}
        return columns

    @cached_property
    def _parts(self) -> NDArray[np.object_]:
        if self.parts is None:
            return np.full(len(self.nodes), UNKNOWN, dtype=object)
        return np.array(PARTS, dtype=object)[self.parts]

    @cached_property
    def accuracies(self) -> Json:
        """By what nodes were to the model: how many have a label, and how many of these it gets right."""
        labels = self.graph.labels[self.nodes]
        right = self.classes == labels
        found = {}
        for part in (*PARTS, UNKNOWN):
            chosen = (self._parts == part) & (labels >= 0)
            if chosen.any():
                found[part] = {"nodes": int(chosen.sum()), "accuracy": float(right[chosen].mean())}
        return found

    @property
    def headline(self) -> str | None:
        """The part whose accuracy says most: new nodes, or else test nodes; None without a label among those."""
        order = (PARTS[NEW], PARTS[TEST], UNKNOWN)
        return next((part for part in order if part in self.accuracies), None)


def agreeing_neighbours(graph: Graph, classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """[N]: the share of each node's neighbours with its class; NaN without neighbours."""
    u, v = graph.edges
    alike = classes[u] == classes[v]
    counts = np.bincount(np.concatenate([u[alike], v[alike]]), minlength=graph.num_nodes)
    shares = np.full(graph.num_nodes, np.nan)
    np.divide(counts, graph.degrees, out=shares, where=graph.degrees > 0)
    return shares
