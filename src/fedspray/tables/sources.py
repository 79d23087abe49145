"""Which files belong to whom, and the two tables that they make: rows of nodes and rows of edges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path

from fedspray.errors import InputError, MissingDataError, unknown
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.schema import CLIENT, Files, Schema, Table
from fedspray.tables.textfiles import Loaded

_SAFE = r"[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True)
class Source:
    """The files of one kind of table, loaded."""

    files: list[Loaded]

    @property
    def per_client(self) -> bool:
        """Whether every client has files of its own, and so ids of its own."""
        return bool(self.files) and self.files[0].client is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the first file."""
        return self.files[0].columns

    def need(self, columns: Sequence[str], key: str) -> None:
        """Refuses a file that lacks a column."""
        for file in self.files:
            wrong = next((name for name in columns if name not in file.columns), None)
            if wrong is not None:
                raise InputError(f"{file.first_line}: {unknown(f'column in {key}', wrong, file.columns)}")

    def union(self, columns: Sequence[str]) -> str:
        """SQL: all files as one table, with ``_file``, ``_row`` and ``_client``."""
        chosen = "".join(f", {quoted(name)}" for name in dict.fromkeys(columns))
        return " UNION ALL ".join(
            f"SELECT {place} AS _file, rowid AS _row, {literal(file.client or '')} AS _client{chosen} "
            f"FROM {quoted(file.table)}"
            for place, file in enumerate(self.files)
        )


def load_sources(
    database: Database, schema: Schema, nodes: Sequence[str] | None, edges: Sequence[str] | None
) -> tuple[Source, Source]:
    """Loads the schema's files, or the nodes and edges given instead, and runs its queries."""
    parts: dict[str, tuple[Table, Sequence[str] | None]] = {
        "nodes": (schema.nodes, nodes),
        "edges": (schema.edges, edges),
    }
    tables = {what: _load(database, what, how, given, schema.folder) for what, (how, given) in parts.items()}
    sources = {}
    for what, (how, _) in parts.items():
        if how.query is None:
            sources[what] = Source([file for named in tables[what].values() for file in named.values()])
        else:
            sources[what] = Source(_ask(database, how.query, what, tables))
    if sources["nodes"].files and sources["edges"].files:
        first, second = ({f.client for f in source.files} for source in sources.values())
        lonely = sorted(map(str, first ^ second))
        if None not in first | second and lonely:
            raise InputError(f"client {lonely[0]!r} has only one of the two kinds of files, nodes and edges")
    return sources["nodes"], sources["edges"]


def with_column(database: Database, source: Source, name: str) -> Source:
    """The same files, where those that lack a column have it without a value."""
    for file in source.files:
        if name not in file.columns:
            database.run(f"ALTER TABLE {quoted(file.table)} ADD COLUMN {quoted(name)} VARCHAR")
    return Source([replace(file, columns=tuple(dict.fromkeys((*file.columns, name)))) for file in source.files])


_Tables = dict[str | None, dict[str, Loaded]]
"""By client, then by the name that a query calls it."""


def _load(database: Database, what: str, how: Table, given: Sequence[str] | None, folder: Path) -> _Tables:
    files: Files = how.files
    if given is not None:
        files, folder = tuple(given), Path()
        if how.query is not None and all("=" in path for path in given):
            files = dict(path.split("=", 1) for path in given)
    named: Mapping[str, Sequence[str]] = (
        {name: (path,) for name, path in files.items()} if isinstance(files, Mapping) else {what: files}
    )
    result: _Tables = {}
    for name, paths in named.items():
        places: Counter[str | None] = Counter()
        for path, client in (pair for pattern in paths for pair in find_files(pattern, folder)):
            alone = places[client] == 0 and (client is not None or how.query is not None)
            label = name if alone else f"{name}{places[client]}"
            places[client] += 1
            loaded = database.load(path, f"{label} file {len(database.loaded)}", how, client)
            result.setdefault(client, {})[label] = loaded
    if how.query is None:
        return result
    names = {client: sorted(tables) for client, tables in result.items()}
    odd = next((client for client in names if names[client] != next(iter(names.values()))), None)
    if odd is not None:
        raise InputError(f"client {odd!r} has the tables {names[odd]}, but others have more")
    return result


def find_files(pattern: str, folder: Path = Path()) -> list[tuple[Path, str | None]]:
    """The files of a path that may have ``*`` or ``{client}``, with the client's name; sorted by it."""
    full = str(folder / pattern)
    if CLIENT not in full and not has_magic(full):
        return [(Path(full), None)]
    wanted = re.escape(full).replace(r"\*", r"[^/]*").replace(r"\?", "[^/]")
    wanted = wanted.replace(re.escape(CLIENT), f"(?P<client>{_SAFE})", 1).replace(re.escape(CLIENT), "(?P=client)")
    found = []
    for path in glob(full.replace(CLIENT, "*")):  # noqa: PTH207 (a path from the root, too)
        fits = re.fullmatch(wanted, path)
        if fits:
            found.append((fits.groupdict().get("client"), Path(path)))
    if not found:
        raise MissingDataError(f"no file is called {full}")
    return [(path, client) for client, path in sorted(found, key=lambda pair: (pair[0] or "", str(pair[1])))]


def _ask(database: Database, query: str, what: str, tables: Mapping[str, _Tables]) -> list[Loaded]:
    """Runs a query, once for each client that has files of its own."""
    results = []
    for client in tables[what] or (None,):
        mine = (own.get(who, {}) for own in tables.values() for who in {client, None})
        visible = {name: file for named in mine for name, file in named.items()}
        for name, file in visible.items():
            database.run(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT * FROM {quoted(file.table)}")
        table = f"{what} asked {client or ''}"
        database.query(query, table, f"the query of [{what}]")
        for name in visible:
            database.run(f"DROP VIEW {quoted(name)}")
        origin = next(iter(visible.values())).path
        results.append(Loaded(table, origin, database.columns(table), client))
    return results
