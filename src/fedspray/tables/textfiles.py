"""Files as they lie on disk: names of columns, packing, and the line that a row is on."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspray.errors import UNREADABLE, InputError, MissingDataError

MAX_UNPACKED = 200
"""How many times its size a packed file may unpack to."""
MAX_DOCUMENT = 1 << 28
"""Bytes of a JSON file that is not in lines, and is read as a whole."""
DELIMITERS = ",\t;| "
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Loaded:
    """One file as a table."""

    table: str
    path: Path
    columns: tuple[str, ...]
    client: str | None = None
    rejects: tuple[tuple[int, int, str], ...] = ()
    """(record, byte where it begins, what is wrong) of rows that do not fit the columns; the first ones."""
    num_rejects: int = 0
    text: Path | None = None
    """Of a text file: the file that was read, a copy where `write_one_ending` had to make one."""
    header: bool = True

    @property
    def first_line(self) -> str:
        """Where the names of the columns are."""
        return f"{self.path}, line 1" if self.text and self.header else str(self.path)


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
    if loaded.text is None:
        rejected = sorted(record for record, _, _ in loaded.rejects)
        return {row: _skipping(row + 1, rejected) for row in wanted}
    # DuckDB counts the bytes before a record from 0 in some files and from 1 in others
    skipped = {before for _, place, _ in loaded.rejects for before in (place, place - 1)}
    found: dict[int, int] = {}
    row = -2 if loaded.header else -1
    with _opened(loaded.text) as stream:
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


def ending(path: Path) -> str:
    """Of a file's name, without that of its packing."""
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


def write_one_ending(path: Path, target: Path) -> bool:
    """A copy of a text file whose lines all end in LF; says whether the file had some that did and some in CR LF."""
    seen = set()
    try:
        with _opened(path) as stream, target.open("wb") as copy:
            for line in stream:
                seen.add(line.endswith(b"\r\n"))
                copy.write(line[:-2] + b"\n" if line.endswith(b"\r\n") else line)
    except UNREADABLE:
        return False
    return len(seen) == 2


def is_lines(path: Path) -> bool:
    """Whether the first line of a file is a JSON value of its own."""
    with _opened(path) as stream:
        first, rest = stream.readline(1 << 24), stream.readline(64)
    try:
        json.loads(first)
    except ValueError:
        return False
    return bool(rest.strip())


def write_lines(path: Path, target: Path) -> None:
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
