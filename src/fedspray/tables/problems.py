"""Rows that cannot be used: counted by kind, and the first ones shown with file and line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fedspray.display import count, line
from fedspray.errors import InputError, printable
from fedspray.tables.database import Database
from fedspray.tables.textfiles import Loaded, find_lines, line_at

SHOWN = 5
"""Rows of each kind of problem that are shown."""


@dataclass(repr=False)
class Problems:
    """What is wrong with the rows of some files."""

    counts: Counter[str] = field(default_factory=Counter)
    """Rows by kind of problem; a row that has several counts once, under the first."""
    sentences: list[str] = field(default_factory=list)
    """The first problems of each kind, with file and line."""

    def __repr__(self) -> str:
        return line(self, *self.skipped())

    @property
    def total(self) -> int:
        """Rows with a problem."""
        return sum(self.counts.values())

    def add_rejects(self, loaded: Loaded) -> None:
        """Rows that did not fit the columns of their file."""
        if not loaded.num_rejects:
            return
        self.counts["unreadable"] += loaded.num_rejects
        for record, place, why in loaded.rejects[:SHOWN]:
            line = record if loaded.text is None else line_at(loaded.text, place)
            self.sentences.append(f"{loaded.path}, line {line}: {why.rstrip('.')}")

    def add(
        self, database: Database, kind: str, files: list[Loaded], rows: str, sentence: str, counted: str | None = None
    ) -> None:
        """Rows of a query (``_file``, ``_row``, ``value``); ``sentence`` has a ``{value}``.

        ``counted`` is a table of rows that another problem counts already: they are shown only.
        """
        again = "" if counted is None else f" ANTI JOIN {counted} USING (_file, _row)"
        fresh = database.number(f"SELECT count(*) FROM ({rows}){again}")
        if fresh:
            self.counts[kind] += fresh
        first = database.rows(f"SELECT _file, _row, value FROM ({rows}) ORDER BY _file, _row LIMIT {SHOWN}")
        for index in sorted({file for file, _, _ in first}):
            mine = [(row, value) for file, row, value in first if file == index]
            lines = find_lines(files[index], [row for row, _ in mine])
            for row, value in mine:
                place = f"{files[index].path}, line {lines.get(row, row + 1)}"
                self.sentences.append(f"{place}: {sentence.replace('{value}', repr(printable(str(value))))}")

    def skipped(self) -> list[str]:
        """How many rows of each kind were left out: counts only, no cell of a row."""
        return [f"{count(number, 'row')} skipped: {kind}" for kind, number in self.counts.items()]

    def refuse(self, reason: str = "") -> InputError:
        """The error that names the first problem."""
        rest = f"and {count(self.total - 1, 'more row')}" if self.total > 1 else ""
        told = ", ".join(filter(None, (rest, reason)))
        return InputError(f"{self.sentences[0]} ({told})" if told else self.sentences[0])


def flagged(condition: str, value: str, source: str) -> str:
    """The query of rows of a table for which a condition holds, with the value at fault."""
    return f"SELECT _file, _row, {value} AS value FROM {source} WHERE {condition}"
