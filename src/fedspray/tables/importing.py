"""`import_tables`: from files and a schema to a graph, a client or a federation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspray.data.edges import Cleaning
from fedspray.data.federation import Client, Federation
from fedspray.data.graph import Graph
from fedspray.data.splits import Split
from fedspray.data.traps import Trap, gives_away, looks_like_time
from fedspray.display import count, line
from fedspray.errors import PATH, InputError, expect
from fedspray.tables.columns import encode, structural_features
from fedspray.tables.database import MEMORY, Database, OnProgress, quoted
from fedspray.tables.feature import Feature
from fedspray.tables.links import Links, join_edges, open_edges
from fedspray.tables.numbers import fetch_numbers
from fedspray.tables.problems import Problems
from fedspray.tables.rows import Rows, fetch, fixed_split, number_ends, number_nodes, read_clients, read_labels
from fedspray.tables.schema import STRUCTURE, Edges, Schema, SplitChoice
from fedspray.tables.sources import Source, find_files, load_sources, with_column


@dataclass(frozen=True, eq=False)
class Imported:
    """What files hold, under a schema."""

    graph: Graph
    """All nodes; without names where two clients may use the same."""
    names: tuple[str, ...]
    """[N]: the nodes' ids."""
    owner: NDArray[np.int64] | None
    """[N]: the number of each node's client, -1 for nobody's; None if all have one owner."""
    clients: tuple[str, ...]
    split: Split | None
    """None: drawn at random for each seed."""
    schema: Schema
    """Resolved: with the scales, vocabularies and classes that were used."""
    problems: Problems
    notes: list[str] = field(default_factory=list)
    traps: list[Trap] = field(default_factory=list)
    """Of columns, before they were scaled; `find_traps` has those of graphs."""
    files: NDArray[np.int64] | None = None
    """[N]: the number of the file that each node is from; None without a table of nodes."""

    def __repr__(self) -> str:
        return line(self, self.graph, count(len(self.clients), "client"), count(self.problems.total, "problem"))

    def client(self, name: str) -> Client:
        """Everything as one client."""
        if self.owner is not None:
            raise InputError(
                f"the tables hold {count(len(self.clients), 'client')}, so they can't all belong to {name!r}: "
                "give this client's own files of nodes and edges"
            )
        return self._federation((name,), np.zeros(self.graph.num_nodes, np.int64), name).clients[0]

    def federation(self, name: str) -> Federation:
        """All clients."""
        if self.owner is None:
            raise InputError(
                "the tables don't say which client owns each node: name the client (--client NAME, or .client(NAME)), "
                "give [nodes] a client column, or write {client} in the paths of its files; --out FILE.npz (.whole()) "
                "makes one graph to be cut"
            )
        return self._federation(self.clients, self.owner, name)

    def whole(self) -> Graph:
        """One graph with the nodes' names."""
        if self.owner is not None and len(set(self.names)) < len(self.names):
            return self.graph  # each client has ids of its own
        return replace(self.graph, node_names=self.names)

    def _federation(self, clients: Sequence[str], owner: NDArray[np.int64], name: str) -> Federation:
        choice = self.schema.split
        tidied = self.graph.tidied()
        settings = {"dataset": name, "num_clients": len(clients), **({"tidied": tidied} if tidied else {})}
        parts = {client: np.flatnonzero(owner == place) for place, client in enumerate(clients)}
        made = Federation.from_graph(
            self.graph, parts, name=name, seed=choice.seed, split=choice.parts, settings=settings
        )
        own = []
        for client in made.clients:
            graph = replace(client.graph, node_names=tuple(self.names[node] for node in client.node_ids))
            split = client.split
            if self.split is not None:
                split = Split(*(mask[client.node_ids] for mask in (self.split.train, self.split.val, self.split.test)))
            own.append(replace(client, graph=graph, split=split))
        fixed = {} if self.split is None else {"own_split": choice.kind}
        return replace(made, clients=tuple(own), settings={**made.settings, **fixed})


def import_tables(
    schema: Schema,
    *,
    nodes: str | Path | Sequence[str | Path] | None = None,
    edges: str | Path | Sequence[str | Path] | None = None,
    strict: bool = False,
    memory: str = MEMORY,
    on_progress: OnProgress | None = None,
) -> Imported:
    """Reads tables of nodes and edges through a schema.

    Args:
        schema: what the columns mean.
        nodes: one path, or several, of files that replace the schema's; may have ``*`` and ``{client}``.
        edges: the same for edges.
        strict: refuse the files if any row has a problem; otherwise such rows are left out and counted.
        memory: what the database may hold in memory, such as ``512MB``.
        on_progress: is told what is done.
    """
    expect(Schema, "a Schema: Schema.load reads one", schema=schema)
    given = _paths("nodes", nodes), _paths("edges", edges)
    with Database.open(memory, on_progress) as database:
        return read_database(database, schema, *load_sources(database, schema, *given), strict)


def import_new(
    schema: Schema,
    nodes: Sequence[str],
    edges: Sequence[str] | None,
    known: Sequence[str] = (),
    *,
    memory: str = MEMORY,
    on_progress: OnProgress | None = None,
) -> tuple[Imported, NDArray[np.bool_], NDArray[np.int64] | None]:
    """Reads rows for prediction: labels may be missing, and whose the rows are does not matter.

    The schema is resolved, as a model keeps it; ``known`` are tables of further nodes, there for their edges.
    Returns all nodes, [N] which of them are to be predicted, and [N] the row that each is from: counted from 0
    through all tables of nodes, without rows that could not be read; None if a query makes the rows.
    """
    open_schema = replace(schema, split=SplitChoice(), nodes=replace(schema.nodes, client=None, files=()))
    if edges is None:
        open_schema = replace(open_schema, edges=Edges())
    with Database.open(memory, on_progress) as database:
        first, second = load_sources(database, open_schema, [*nodes, *known], edges)
        if not any(schema.nodes.label in file.columns for file in first.files):
            unlabelled = replace(open_schema.nodes, label=None, classes=None, class_names=None)
            open_schema = replace(open_schema, nodes=unlabelled)
        elif schema.nodes.label is not None:
            first = with_column(database, first, schema.nodes.label)
        imported = read_database(database, open_schema, first, second, strict=False)
        if imported.files is None or schema.nodes.query is not None:
            return imported, np.ones(imported.graph.num_nodes, np.bool_), None
        sizes = [database.number(f"SELECT count(*) FROM {quoted(file.table)}") for file in first.files]
        rows = fetch(database, "_row") + np.cumsum([0, *sizes])[imported.files]
    wanted = {path for pattern in nodes for path, _ in find_files(pattern)}
    return imported, np.array([file.path in wanted for file in first.files])[imported.files], rows


def _paths(name: str, given: object) -> list[str] | None:
    if given is None:
        return None
    listed = given if isinstance(given, list | tuple) else [given]
    for each in listed:
        expect(PATH, "paths of files, such as to_parquet writes for a DataFrame", **{name: each})
    return [str(each) for each in listed]


def read_database(database: Database, schema: Schema, nodes: Source, edges: Source, strict: bool) -> Imported:
    """The same, from tables that are loaded already."""
    problems = Problems()
    for loaded in database.loaded:
        problems.add_rejects(loaded)
    if not edges.files and not nodes.files:
        raise InputError("there are no files: give tables of nodes and edges, in the schema or directly")
    notes = []
    if edges.files:
        open_edges(database, schema, edges)
    if nodes.files:
        rows = number_nodes(database, schema, nodes, problems)
    else:
        rows = number_ends(database, schema, edges)
        structure = schema.nodes.structure or STRUCTURE
        schema = replace(schema, nodes=replace(schema.nodes, structure=structure))
        notes.append(
            f"there is no table of nodes, so they come from the edges, and their features from the structure: "
            f"{', '.join(structure)}"
        )
    if rows.unused:
        notes.append(f"columns that the schema does not name are left out: {', '.join(rows.unused)}")
    links = None
    if edges.files:
        links = join_edges(database, schema, edges, rows, problems)
    if strict and problems.total:
        raise problems.refuse()
    return _assemble(database, schema, rows, links, problems, notes)


def _assemble(
    database: Database, schema: Schema, rows: Rows, links: Links | None, problems: Problems, notes: list[str]
) -> Imported:
    if links is None:
        notes.append("there is no table of edges, so no node has a neighbour")
        links = Links(np.zeros((2, 0), np.int64), Cleaning())
    elif links.later:
        notes.append(f"{count(links.later, 'edge')} after {schema.edges.until} left out")
    labels, schema = read_labels(database, schema)
    structure = structural_features(links.edges, rows.num_nodes, schema.nodes.structure)
    matrix, names, features = encode(database, rows.features, schema.nodes.sparse, structure)
    classes = schema.nodes.classes or ()
    owned = read_clients(database, schema, rows)
    split = fixed_split(database, schema, labels, None if owned is None else owned[0])
    schema = replace(
        schema,
        features=features,
        nodes=replace(schema.nodes, sparse=not isinstance(matrix, np.ndarray), files=()),
        edges=replace(schema.edges, files=()),  # where files are is nobody else's business
    )
    graph = Graph(
        features=matrix,
        edges=links.edges,
        labels=np.full(rows.num_nodes, -1, np.int64) if labels is None else labels,
        num_classes=len(classes),
        class_names=(schema.nodes.class_names or classes) or None,
        feature_names=names,
        cleaning=links.cleaning,
        edge_weights=links.weights,
        schema=schema.to_toml(),
    )
    owner, clients = owned or (None, ())
    if owner is not None and (owner < 0).any():
        notes.append(f"{count(int((owner < 0).sum()), 'node')} without a client left out, with their edges")
    traps = list(_column_traps(database, rows.features, labels))
    ids = tuple(fetch(database, "_id", object))
    files = fetch(database, "_file") if rows.has_files else None
    return Imported(graph, ids, owner, clients, split, schema, problems, notes, traps, files)


def _column_traps(database: Database, features: Sequence[Feature], labels: NDArray[np.int64] | None) -> Iterator[Trap]:
    """Numbers that are moments in time, and categories that the label follows from."""
    scaled = [feature for feature in features if feature.kind == "numeric" and feature.scale != "none"]
    for feature, values in zip(scaled, fetch_numbers(database, scaled), strict=True):
        if looks_like_time(values):
            yield Trap(
                "time", f'column {feature.columns[0]!r} looks like time stamps, but is numeric: use kind = "date"'
            )
    for feature in features:
        if feature.kind == "category" and labels is not None:
            codes = fetch(database, f"dense_rank() OVER (ORDER BY {quoted(feature.columns[0])})")
            if 10 * len(np.unique(codes)) <= len(codes) and gives_away(codes, labels):
                yield Trap("leak", f"column {feature.columns[0]!r} gives the label away: is it known in time?")
