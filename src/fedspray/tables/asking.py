"""What `fedspray import` does: opens files of any kind under a schema, suggests one, and writes what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.data.traps import Trap, find_traps
from fedspray.errors import InputError
from fedspray.files import check_new, staged
from fedspray.tables import formats
from fedspray.tables.database import MEMORY, Database, OnProgress
from fedspray.tables.importing import Imported, read_database
from fedspray.tables.problems import Problems
from fedspray.tables.schema import STRUCTURE, Nodes, Schema
from fedspray.tables.sources import Source, load_sources
from fedspray.tables.suggest import suggest


@dataclass(frozen=True)
class Files:
    """What a user gave."""

    schema: Path | None = None
    nodes: Sequence[str] | None = None
    edges: Sequence[str] | None = None
    graph: Path | None = None
    memory: str = MEMORY

    def __post_init__(self) -> None:
        if self.graph is not None and (self.nodes or self.edges):
            raise InputError("--graph is a whole graph, so leave out --nodes and --edges")
        if self.graph is not None and self.graph.suffix.lower() not in (*formats.ARRAYS, *formats.XML):
            allowed = ", ".join((*formats.ARRAYS, *formats.XML))
            raise InputError(f"--graph {self.graph} must end in one of {allowed}; tables are --nodes and --edges")

    @contextmanager
    def opened(self, schema: Schema, on_progress: OnProgress | None) -> Iterator[tuple[Database, Source, Source]]:
        """All files as tables."""
        with Database.open(self.memory, on_progress) as database:
            if self.graph is not None:
                yield database, *formats.load_xml(database, self.graph)
            else:
                yield database, *load_sources(database, schema, self.nodes, self.edges)


@dataclass(frozen=True)
class Done:
    """What was made."""

    out: Path
    made: Graph | Client | Federation
    problems: Problems = field(default_factory=Problems)
    notes: Sequence[str] = ()
    traps: Sequence[Trap] = ()

    @property
    def kind(self) -> str:
        """graph, client or federation."""
        return type(self.made).__name__.lower()

    def summary(self) -> dict[str, Any]:
        """For a program."""
        return {
            "out": str(self.out),
            "kind": self.kind,
            "num_clients": len(self.graphs),  # 1 for a graph that is to be cut
            "num_nodes": sum(graph.num_nodes for graph in self.graphs),
            "num_edges": sum(graph.num_edges for graph in self.graphs),
            "num_features": self.graphs[0].num_features,
            "num_classes": self.graphs[0].num_classes,
            "problems": dict(self.problems.counts),
            "problem_rows": self.problems.sentences,
            "notes": list(self.notes),
            "traps": [vars(trap) for trap in self.traps],
        }

    @property
    def graphs(self) -> list[Graph]:
        """Of every client."""
        if isinstance(self.made, Federation):
            return [client.graph for client in self.made.clients]
        return [self.made.graph if isinstance(self.made, Client) else self.made]


def make(files: Files, out: Path, client: str | None, strict: bool, on_progress: OnProgress | None = None) -> Done:
    """Reads the files and writes a graph (``out`` ends in .npz), a client or a federation."""
    check_new(out, "--out")
    single = out.suffix == ".npz"
    made: Graph | Client | Federation
    if single and client is not None:
        raise InputError(f"--out {out} is one graph without a client, so leave out --client")
    if files.graph is not None and files.graph.suffix.lower() in formats.ARRAYS:
        graph, split = formats.read_arrays(files.graph)
        if not single and client is None:
            raise InputError(
                f"{files.graph} is one graph: name its client (--client NAME), or make an npz file to be cut"
            )
        made = graph if single else _client(str(client), graph, split)
        done = Done(out, made, notes=[graph.tidied()] if graph.tidied() else [])
    else:
        imported = _read(files, strict, on_progress)
        name = imported.schema.name or out.stem
        made = imported.whole() if single else imported.federation(name) if client is None else imported.client(client)
        done = Done(out, made, imported.problems, imported.notes, imported.traps)
    _write(done.made, out)
    return replace(done, traps=_all_traps(done))


def _write(made: Graph | Client | Federation, out: Path) -> None:
    try:
        if isinstance(made, Federation):
            made.save(out)
            return
        with staged(out) as staging:
            if isinstance(made, Client):
                made.save(staging)
            else:
                made.to_npz(staging)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error


def write_suggestion(files: Files, target: Path, on_progress: OnProgress | None = None) -> str:
    """Looks at the files and writes a first schema, whose paths are relative to its folder."""
    if files.schema is not None:
        raise InputError("--suggest writes a schema, so leave out --schema")
    if not (files.nodes or files.edges or files.graph):
        raise InputError("--suggest looks at files: give --nodes, --edges or --graph")
    with files.opened(Schema(), on_progress) as (database, nodes, edges):
        paths = [[os.path.relpath(p, target.parent) for p in given or ()] for given in (files.nodes, files.edges)]
        text = suggest(database, nodes, edges, (paths[0], paths[1]))
    write_new(target, text)
    return text


def write_new(path: Path, text: str) -> None:
    """Writes a file that is not there yet."""
    if path.exists():
        raise InputError(f"{path} exists already: choose a new file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _read(files: Files, strict: bool, on_progress: OnProgress | None) -> Imported:
    schema = Schema() if files.schema is None else Schema.load(files.schema)
    with files.opened(schema, on_progress) as (database, nodes, edges):
        if files.schema is None:
            bare = not nodes.files or nodes.columns == (formats.IDENTITY,)
            if not bare or not edges.files:
                raise InputError("--schema is missing: fedspray import … --suggest schema.toml writes a first one")
            schema = Schema.from_toml(suggest(database, nodes, edges, ((), ())))
            if nodes.files:
                schema = replace(schema, nodes=Nodes(id=formats.IDENTITY, structure=STRUCTURE))
        return read_database(database, schema, nodes, edges, strict)


def _client(name: str, graph: Graph, split: Split | None) -> Client:
    made = Federation.from_graphs({name: graph}).clients[0]
    return made if split is None else replace(made, split=split)


def _all_traps(done: Done) -> list[Trap]:
    made = done.made
    if isinstance(made, Graph):
        made = Federation.from_graphs({"graph": made})
    elif isinstance(made, Client):
        made = Federation(made.name, (made,))
    found = find_traps(made)
    return [*(trap for trap in done.traps if trap.kind not in {other.kind for other in found}), *found]
