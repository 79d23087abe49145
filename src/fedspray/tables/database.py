"""Files as tables of text in a database on disk: DuckDB reads, joins and sorts more than fits into memory.

Every cell is text until the schema says what it means, so that what cannot be read is found with its line. A schema
may come from another organisation, so its SQL sees the loaded tables and nothing else of the machine.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from fedspray.errors import InputError, MissingDataError, one_line
from fedspray.tables.schema import Table

MEMORY = "512MB"
"""What DuckDB may hold in memory; the rest goes to disk."""
DISK = "100GB"
MAX_UNPACKED = 200
"""How many times its size a packed file may unpack to."""
TEXT = {".csv": None, ".tsv": "\t", ".txt": None}
"""Endings of files with one row per line, and the delimiter that goes without saying."""
MAX_DOCUMENT = 1 << 28
"""Bytes of a JSON file that is not in lines, and is read as a whole."""
DELIMITERS = ",\t;| "
TICK = 0.2
_SAMPLE = 1 << 16

OnProgress = Callable[[str, float], None]
"""Is told what is being done, and the share of it that is done."""


@dataclass(frozen=True)
class Loaded:
    """One file as a table."""

    table: str
    path: Path
    columns: tuple[str, ...]
    client: str | None = None
    rejects: tuple[tuple[int, int, str], ...] = ()
    """(record, byte where it begins, what is wrong) of rows that do not fit the columns; the first hundred."""
    num_rejects: int = 0
    is_text: bool = False
    header: bool = True

    @property
    def first_line(self) -> str:
        """Where the names of the columns are."""
        return f"{self.path}, line 1" if self.is_text and self.header else str(self.path)


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
            try:
                yield cls(connection, Path(folder), on_progress)
            finally:
                connection.close()

    def run(self, sql: str, values: object = None, doing: str | None = None) -> duckdb.DuckDBPyConnection:
        """Runs one statement; ``doing`` says what it is for on the progress bar."""
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
            raise InputError(f"the tables need more room than allowed ({one_line(str(error))[:150]})") from None
        finally:
            over.set()
            if watcher:
                watcher.join()

    def rows(self, sql: str, values: object = None) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self.run(sql, values).fetchall()

    def number(self, sql: str, values: object = None) -> int:
        """The one whole number that a query gives."""
        return int(self.rows(sql, values)[0][0] or 0)

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
        kind = _ending(path)
        if kind in TEXT:
            read = self._load_text(path, table, how, kind)
        elif kind in (".jsonl", ".ndjson", ".json"):
            read = self._load_json(path, table)
        elif kind in (".parquet", ".pq"):
            read = self._load_parquet(path, table)
        else:
            raise InputError(f"{path} ends in {kind!r}, but must be .csv, .tsv, .txt, .jsonl, .json or .parquet")
        read = Loaded(**{**vars(read), "client": client})
        self.loaded.append(read)
        return read

    def _load_text(self, path: Path, table: str, how: Table, kind: str) -> Loaded:
        columns, delimiter = read_header(path, how.encoding, how.delimiter or TEXT[kind], how.header)
        names = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
        self.run("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans")
        sql = (
            f"CREATE TABLE {quoted(table)} AS SELECT * FROM read_csv({literal(str(path))}, auto_detect=false, "
            f"header={how.header}, columns={{{names}}}, delim={literal(delimiter)}, quote='\"', escape='\"', "
            f"encoding={literal(how.encoding)}, nullstr=[{', '.join(map(literal, how.missing))}], "
            "store_rejects=true, rejects_limit=0)"
        )
        try:
            self.run(sql, doing=f"reading {path.name}")
        except duckdb.Error as error:
            raise InputError(f"{path} cannot be read: {_first_line(error)}") from None
        found = "SELECT DISTINCT ON (line) line, line_byte_position, error_message FROM reject_errors ORDER BY line"
        rejects = self.rows(f"{found} LIMIT 100")
        total = self.number("SELECT count(DISTINCT line) FROM reject_errors")
        kept = tuple((record, place or 0, one_line(why)) for record, place, why in rejects)
        return Loaded(table, path, columns, None, kept, total, True, how.header)

    def _load_json(self, path: Path, table: str) -> Loaded:
        """Lines of JSON objects; or one list of objects; or one object, whose entries become key and value."""
        lines = path
        if _ending(path) == ".json" and not _is_lines(path):
            lines = self.folder / f"{table}.jsonl"
            _write_lines(path, lines)
        raw = quoted(f"{table} text")
        read = (
            f"SELECT line AS json, row_number() OVER () AS number FROM read_csv({literal(str(lines))}, "
            "auto_detect=false, header=false, columns={'line': 'VARCHAR'}, delim='\x01', quote='', escape='', "
            "max_line_size=16777216)"
        )
        try:
            self.run(
                f"CREATE TABLE {raw} AS SELECT * FROM ({read}) WHERE trim(json) <> ''", doing=f"reading {path.name}"
            )
        except duckdb.Error as error:
            raise InputError(f"{path} cannot be read: {_first_line(error)}") from None
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
        return Loaded(table, path, tuple(columns), None, tuple(rejects[:100]), len(rejects))

    def _load_parquet(self, path: Path, table: str) -> Loaded:
        source = f"read_parquet({literal(str(path))})"
        try:
            types = self.rows(f"DESCRIBE SELECT * FROM {source}")
            self.run(
                f"CREATE TABLE {quoted(table)} AS SELECT {_as_text(types)} FROM {source}", doing=f"reading {path.name}"
            )
        except duckdb.Error as error:
            raise InputError(f"{path} is not a readable Parquet file: {_first_line(error)}") from None
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


def check_file(path: Path) -> None:
    """Refuses what is no file, is empty, or unpacks to far more than it is."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, but a file is needed")
    if not path.is_file():
        raise MissingDataError(f"{path} does not exist")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty, but must have rows")
    if path.suffix.lower() == ".gz":
        _check_unpacked(path)


def read_header(path: Path, encoding: str, delimiter: str | None, header: bool) -> tuple[tuple[str, ...], str]:
    """The names of a text file's columns, and its delimiter."""
    try:
        first = next((line for line in io.StringIO(_beginning(path, encoding)) if line.strip()), "")
    except (UnicodeDecodeError, LookupError) as error:
        raise InputError(f"{path}, line 1: the text is not in {encoding} ({error})") from None
    if not first:
        raise InputError(f"{path} is empty, but must have rows")
    line = first.rstrip("\r\n")
    unquoted = re.sub(r'"[^"]*"', "", line)
    chosen = delimiter or max(DELIMITERS, key=lambda mark: (unquoted.count(mark), -DELIMITERS.index(mark)))
    try:
        names = next(csv.reader([line], delimiter=chosen, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}, line 1: the names of the columns cannot be read ({error})") from None
    if not header:
        return tuple(f"column{i}" for i in range(len(names))), chosen
    empty = next((i for i, name in enumerate(names, start=1) if not name.strip()), None)
    if empty is not None:
        raise InputError(f"{path}, line 1: column {empty} has no name, but every column needs one")
    lower = [name.lower() for name in names]  # names in SQL do not differ by case
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None:
        raise InputError(f"{path}, line 1: two columns are called {twice!r}, but names must differ")
    return tuple(names), chosen


def find_lines(loaded: Loaded, rows: Iterable[int]) -> dict[int, int]:
    """The line in its file of some rows (counted from 0) of a table; only text files have lines that differ.

    Rows are records that were not rejected; a record may go over several lines, and empty lines are none.
    """
    wanted = set(rows)
    if not loaded.is_text:
        rejected = sorted(record for record, _, _ in loaded.rejects)
        return {row: _skipping(row + 1, rejected) for row in wanted}
    skipped = {place for _, place, _ in loaded.rejects}
    found: dict[int, int] = {}
    row = -2 if loaded.header else -1
    with _opened(loaded.path) as stream:
        place, start, start_line, inside = 0, 0, 1, False
        for number, line in enumerate(stream, start=1):
            if not inside:
                start, start_line = place, number
            place += len(line)
            inside ^= line.count(b'"') % 2 == 1
            if inside or start in skipped or (start == place - len(line) and not line.strip()):
                continue
            row += 1
            if row in wanted:
                found[row] = start_line
                if len(found) == len(wanted):
                    break
    return found


def line_at(path: Path, place: int) -> int:
    """The line of a text file that begins at a byte."""
    with _opened(path) as stream:
        return int(stream.read(place).count(b"\n")) + 1


def _skipping(line: int, rejected: Sequence[int]) -> int:
    for bad in rejected:
        line += bad <= line
    return line


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def _beginning(path: Path, encoding: str) -> str:
    try:
        with _opened(path) as stream:
            raw = stream.read(_SAMPLE)
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be unpacked ({error})") from None
    line = (
        raw
        if encoding.lower().startswith("utf-16")
        else re.split(rb"[\r\n]", raw.lstrip(b"\r\n"), maxsplit=1)[0] + b"\n"
    )
    return str(line.decode("utf-8-sig" if encoding == "utf-8" else encoding))


def _check_unpacked(path: Path) -> None:
    try:
        with path.open("rb") as packed, gzip.open(packed, "rb") as stream:
            size = 0
            while size < 1 << 26 and (part := stream.read(1 << 20)):
                size += len(part)
                if size > 1 << 22 and size > MAX_UNPACKED * packed.tell():
                    raise InputError(f"{path} unpacks to more than {MAX_UNPACKED} times its size, so it is not read")
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be unpacked ({error})") from None


def _is_lines(path: Path) -> bool:
    """Whether the first line of a file is a JSON value of its own."""
    with _opened(path) as stream:
        first, rest = stream.readline(1 << 24), stream.readline(64)
    try:
        json.loads(first)
    except ValueError:
        return False
    return bool(rest.strip())


def _as_text(described: Sequence[tuple[Any, ...]]) -> str:
    """Every column of a described table as text; lists as JSON."""
    return ", ".join(
        f"CAST({f'to_json({quoted(name)})' if kind.endswith(']') else quoted(name)} AS VARCHAR) AS {quoted(name)}"
        for name, kind, *_ in described
    )


def _write_lines(path: Path, target: Path) -> None:
    """One JSON list, or one JSON object, as lines: its objects, or its entries as key and value."""
    if path.stat().st_size > MAX_DOCUMENT:
        raise InputError(
            f"{path} is one JSON value of more than {MAX_DOCUMENT >> 20} MB: use one object per line (.jsonl)"
        )
    try:
        with _opened(path) as stream:
            content = json.loads(stream.read().decode("utf-8-sig"))
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise InputError(f"{path} is not readable JSON ({error})") from None
    if not isinstance(content, list | dict):
        raise InputError(f"{path} holds one value, but must hold a list of objects or an object")
    rows = content if isinstance(content, list) else ({"key": k, "value": v} for k, v in content.items())
    with target.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def _plain(expression: str) -> str:
    """A JSON value as text: strings without quotes, null as nothing."""
    return f"CASE WHEN json_type({expression}) = 'NULL' THEN NULL ELSE json_extract_string({expression}, '$') END"


def _pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _first_line(error: Exception) -> str:
    return one_line(str(error).strip().splitlines()[0])[:200]
