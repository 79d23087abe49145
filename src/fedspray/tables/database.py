"""Files as tables of text in a database on disk: DuckDB reads, joins and sorts more than fits into memory.

Every cell is text until the schema says what it means, so that what cannot be read is found with its line. A schema
may come from another organisation, so its SQL sees the loaded tables and nothing else of the machine.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

from fedspray.errors import InputError, one_line
from fedspray.tables.schema import Table
from fedspray.tables.textfiles import Loaded, check_file, ending, is_lines, read_header, write_lines, write_one_ending

MEMORY = "512MB"
"""What DuckDB may hold in memory; the rest goes to disk."""
DISK = "100GB"
MOST_REJECTS = 10_000
"""Rows that do not fit the columns whose places are kept."""
TEXT = {".csv": None, ".tsv": "\t", ".txt": None}
"""Endings of files with one row per line, and the delimiter that goes without saying."""
TICK = 0.2

OnProgress = Callable[[str, float], None]
"""Is told what is being done, and the share of it that is done."""


@dataclass
class Database:
    """A DuckDB database in a temporary folder."""

    connection: duckdb.DuckDBPyConnection
    folder: Path
    on_progress: OnProgress | None = None
    loaded: list[Loaded] = field(default_factory=list)

    @classmethod
    @contextmanager
    def open(cls, memory: str = MEMORY, on_progress: OnProgress | None = None) -> Iterator[Database]:
        """A new database, gone afterwards. ``memory`` is such as ``512MB``."""
        if not re.fullmatch(r"\d+(\.\d+)? ?[KMGT]i?B", memory):
            raise InputError(f"memory is {memory!r}, but must be a size such as 512MB or 2GB")
        with tempfile.TemporaryDirectory(prefix="fedspray-import-") as folder:
            settings: dict[str, str | bool | int | float | list[str]] = {
                "memory_limit": memory,
                "temp_directory": str(Path(folder) / "spill"),
                "max_temp_directory_size": DISK,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
            connection = duckdb.connect(str(Path(folder) / "tables.duckdb"), config=settings)
            if on_progress:  # it says how far it is only where its own bar is on
                connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
                connection.execute("SET progress_bar_time = 0")
            try:
                yield cls(connection, Path(folder), on_progress)
            finally:
                connection.close()

    def run(
        self, sql: str, values: object = None, doing: str | None = None, path: Path | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Runs one statement; ``doing`` says what it is for on the progress bar, ``path`` which file it reads."""
        doing = f"reading {path.name}" if path is not None else doing
        over = threading.Event()

        def watch() -> None:
            while not over.wait(TICK):
                share = self.connection.query_progress()
                self.on_progress(doing or "", max(0.0, share) / 100)  # type: ignore[misc]

        watcher = threading.Thread(target=watch, daemon=True) if doing and self.on_progress else None
        if watcher:
            watcher.start()
        try:
            return self.connection.execute(sql, values)
        except duckdb.OutOfMemoryException as error:
            raise InputError(f"the tables need more memory or disk than allowed ({_first_line(error)})") from None
        except duckdb.Error as error:
            if path is not None:
                raise InputError(f"{path} cannot be read: {_first_line(error)}") from None
            if isinstance(error, duckdb.InvalidInputException | duckdb.ConversionException):
                raise InputError(f"{doing or 'reading the tables'}: {_first_line(error)}") from None
            raise
        finally:
            over.set()
            if watcher:
                watcher.join()

    def rows(self, sql: str, path: Path | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self.run(sql, path=path).fetchall()

    def number(self, sql: str) -> int:
        """The one whole number that a query gives."""
        return int(self.rows(sql)[0][0] or 0)

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of a table's columns."""
        return tuple(row[0] for row in self.rows(f"DESCRIBE {quoted(table)}"))

    def number_words(self, words: Sequence[str]) -> None:
        """Makes the table ``words``: each with its place in a list, as ``code``."""
        self.run(
            "CREATE OR REPLACE TEMP TABLE words AS SELECT unnest(?::VARCHAR[]) AS word, unnest(?::INT[]) AS code",
            [list(words), list(range(len(words)))],
        )

    # ---- loading --------------------------------------------------------------------------------

    def load(self, path: Path, table: str, how: Table, client: str | None = None) -> Loaded:
        """Reads a file into a table of text."""
        check_file(path)
        kind = ending(path)
        if kind in TEXT:
            read = self._load_text(path, table, how, kind)
        elif kind in (".jsonl", ".ndjson", ".json"):
            read = self._load_json(path, table)
        elif kind in (".parquet", ".pq"):
            read = self._load_parquet(path, table)
        else:
            raise InputError(f"{path} ends in {kind!r}, but must be .csv, .tsv, .txt, .jsonl, .json or .parquet")
        self.loaded.append(replace(read, client=client))
        return self.loaded[-1]

    def _load_text(self, path: Path, table: str, how: Table, kind: str) -> Loaded:
        columns, delimiter = read_header(path, how.encoding, how.delimiter or TEXT[kind], how.header)
        names = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
        options = (
            f"auto_detect=false, header={how.header}, columns={{{names}}}, delim={literal(delimiter)}, quote='\"', "
            f"escape='\"', encoding={literal(how.encoding)}, nullstr=[{', '.join(map(literal, how.missing))}], "
            "store_rejects=true, rejects_limit=0"
        )

        def read(file: Path) -> None:
            self.run("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans")
            source = f"read_csv({literal(str(file))}, {options})"
            self.run(f"CREATE TABLE {quoted(table)} AS SELECT * FROM {source}", path=path)

        text = path
        try:
            read(path)
        except InputError:  # DuckDB refuses a file in which lines end in different ways
            text = self.folder / f"{table}.csv"
            if not write_one_ending(path, text):
                raise
            read(text)
        found = "SELECT DISTINCT ON (line) line, line_byte_position, error_message FROM reject_errors ORDER BY line"
        rejects = self.rows(f"{found} LIMIT {MOST_REJECTS}")
        total = self.number("SELECT count(DISTINCT line) FROM reject_errors")
        kept = tuple((record, place or 0, one_line(why)) for record, place, why in rejects)
        return Loaded(table, path, columns, None, kept, total, text, how.header)

    def _load_json(self, path: Path, table: str) -> Loaded:
        """Lines of JSON objects; or one list of objects; or one object, whose entries become key and value."""
        lines = path
        if ending(path) == ".json" and not is_lines(path):
            lines = self.folder / f"{table}.jsonl"
            write_lines(path, lines)
        raw = quoted(f"{table} text")
        read = (
            f"SELECT line AS json, row_number() OVER () AS number FROM read_csv({literal(str(lines))}, "
            "auto_detect=false, header=false, columns={'line': 'VARCHAR'}, delim='\x01', quote='', escape='', "
            "strict_mode=false, max_line_size=16777216)"  # lines may end in different ways
        )
        self.run(f"CREATE TABLE {raw} AS SELECT * FROM ({read}) WHERE trim(json) <> ''", path=path)
        bad = f"FROM {raw} WHERE CASE WHEN json_valid(json) THEN json_type(json) ELSE '' END <> 'OBJECT'"
        rejects = [(line, 0, "not a JSON object") for (line,) in self.rows(f"SELECT number {bad} ORDER BY number")]
        self.run(f"DELETE {bad}")
        keys = f"SELECT unnest(json_keys(json)) AS key FROM {raw}"
        columns = [key for (key,) in self.rows(f"SELECT key FROM ({keys}) GROUP BY key ORDER BY count(*) DESC, key")]
        if not columns:
            first = f", line {rejects[0][0]}: {rejects[0][2]}" if rejects else " holds no JSON object with an entry"
            raise InputError(f"{path}{first}")
        cells = (f"json_extract(json, {literal(_pointer(name))})" for name in columns)
        chosen = ", ".join(f"{_plain(cell)} AS {quoted(name)}" for cell, name in zip(cells, columns, strict=True))
        self.run(f"CREATE TABLE {quoted(table)} AS SELECT {chosen} FROM {raw} ORDER BY number; DROP TABLE {raw}")
        return Loaded(table, path, tuple(columns), None, tuple(rejects[:MOST_REJECTS]), len(rejects))

    def _load_parquet(self, path: Path, table: str) -> Loaded:
        source = f"read_parquet({literal(str(path))})"
        types = self.rows(f"DESCRIBE SELECT * FROM {source}", path=path)
        self.run(f"CREATE TABLE {quoted(table)} AS SELECT {_as_text(types)} FROM {source}", path=path)
        return Loaded(table, path, tuple(name for name, *_ in types))

    def add(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[str | None]], path: Path) -> Loaded:
        """A table from rows of text that another reader has read."""
        names = ", ".join(f"{quoted(name)} VARCHAR" for name in columns)
        self.run(f"CREATE TABLE {quoted(table)} ({names})")
        listed = [list(row) for row in rows]
        if listed:
            self.connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({', '.join('?' * len(columns))})", listed)
        self.loaded.append(Loaded(table, path, tuple(columns)))
        return self.loaded[-1]

    def query(self, sql: str, table: str, where: str) -> None:
        """Makes a table of text by a SELECT of the schema's, which can read loaded tables only."""
        self.run("SET enable_external_access=false")
        try:
            statements = self.connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InputError(f"{where} must be one SELECT, but is something else")
            self.run(f"CREATE TEMP VIEW asked AS {statements[0].query}")
            chosen = _as_text(self.rows("DESCRIBE asked"))
            self.run(f"CREATE TABLE {quoted(table)} AS SELECT {chosen} FROM asked", doing="running the query")
            self.run("DROP VIEW asked")
        except duckdb.Error as error:
            raise InputError(f"{where} cannot be run: {_first_line(error)}") from None


# ---- names and text -----------------------------------------------------------------------------


def quoted(name: str) -> str:
    """A name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def _as_text(described: Sequence[tuple[Any, ...]]) -> str:
    """Every column of a described table as text; lists as JSON."""
    return ", ".join(
        f"CAST({f'to_json({quoted(name)})' if kind.endswith(']') else quoted(name)} AS VARCHAR) AS {quoted(name)}"
        for name, kind, *_ in described
    )


def _plain(expression: str) -> str:
    """A JSON value as text: strings without quotes, null as nothing."""
    return f"CASE WHEN json_type({expression}) = 'NULL' THEN NULL ELSE json_extract_string({expression}, '$') END"


def _pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _first_line(error: Exception) -> str:
    return one_line(str(error).strip().splitlines()[0])[:200]
