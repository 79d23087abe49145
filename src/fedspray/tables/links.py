"""The rows of edges: joined to the numbers of the nodes, checked, and brought into a graph's form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedspray.data.edges import Cleaning, tidy_edges, weigh_edges
from fedspray.errors import InputError
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.numbers import moment
from fedspray.tables.problems import Problems, flagged
from fedspray.tables.rows import MOST_BAD, TOO_MANY, Rows
from fedspray.tables.schema import Schema
from fedspray.tables.sources import Source

VECTORS = 512
"""Of 2,048 rows, fetched at a time."""


@dataclass(frozen=True)
class Links:
    """The edges of a graph."""

    edges: NDArray[np.int64]
    """[2, E], canonical."""
    cleaning: Cleaning
    weights: NDArray[np.float64] | None = None
    later: int = 0
    """Edges left out since they came after `until`."""


def open_edges(database: Database, schema: Schema, source: Source) -> None:
    """The view ``given_edges`` of all files."""
    ends = schema.edges
    named = {"source": ends.source, "target": ends.target}
    absent = next((key for key, name in named.items() if name is None), None)
    if absent is not None:
        raise InputError(f"[edges] has no {absent}, but needs the columns of both ends of an edge")
    columns = [name for name in (ends.source, ends.target, ends.weight, ends.time) if name is not None]
    source.need(columns, "[edges]")
    database.run(f"CREATE VIEW given_edges AS {source.union(columns)}")


def join_edges(database: Database, schema: Schema, source: Source, rows: Rows, problems: Problems) -> Links:
    """Joins both ends to the table ``nodes``, and makes the graph's edges of them."""
    ends = schema.edges
    first, second = quoted(str(ends.source)), quoted(str(ends.target))
    own = source.per_client and rows.per_client
    if rows.per_client and not own:
        shared = database.rows("SELECT _id FROM nodes GROUP BY _id HAVING count(*) > 1 ORDER BY _id LIMIT 1")
        if shared:
            raise InputError(
                f"{source.files[0].path} has the edges of all clients, but two clients have a node {shared[0][0]!r}: "
                "write {client} in the path of the edges too"
            )
    match = [f"{side}._id = e.{column}" + (f" AND {side}._client = e._client" if own else "")
             for side, column in (("a", first), ("b", second))]  # fmt: skip
    extra = f", {moment(ends.time)} AS moment, {quoted(ends.time)} AS said" if ends.time else ""
    if ends.weight:
        extra += f", TRY_CAST({quoted(ends.weight)} AS DOUBLE) AS weight, {quoted(ends.weight)} AS weighed"
    database.run(
        f"CREATE TABLE links AS SELECT e._file, e._row, a._pos AS u, b._pos AS v{extra} FROM given_edges AS e "
        f"LEFT JOIN nodes AS a ON {match[0]} LEFT JOIN nodes AS b ON {match[1]}",
        doing="joining the edges to the nodes",
    )
    total = database.number("SELECT count(*) FROM links")
    _find_bad(database, schema, source, problems)
    if ends.time:
        odd = flagged("said IS NOT NULL AND moment IS NULL", "said", "links")
        said = f"column {ends.time!r} holds {{value}}, but values must be dates or times"
        problems.add(database, "bad time", source.files, odd, said)
        database.run("DELETE FROM links WHERE said IS NOT NULL AND moment IS NULL")
    if ends.weight:
        wrong = "weight IS NULL OR NOT isfinite(weight) OR weight <= 0"
        said = f"column {ends.weight!r} holds {{value}}, but weights must be numbers above 0"
        problems.add(database, "bad weight", source.files, flagged(wrong, "coalesce(weighed, '')", "links"), said)
        database.run(f"DELETE FROM links WHERE {wrong}")
    good = database.number("SELECT count(*) FROM links")
    if total and good < (1 - MOST_BAD) * total:
        raise problems.refuse(TOO_MANY)
    later = 0
    if ends.until:
        later = database.number(f"DELETE FROM links WHERE moment > CAST({literal(ends.until)} AS TIMESTAMP)")
    edges, cleaning = tidy_edges(*_fetch_keys(database, rows.num_nodes), rows.num_nodes, ends.direction == "mutual")
    return Links(edges, cleaning, _weights(database, schema, edges, rows.num_nodes), later)


def _weights(
    database: Database, schema: Schema, edges: NDArray[np.int64], num_nodes: int
) -> NDArray[np.float64] | None:
    if schema.edges.weight is None:
        return None
    found = database.run("SELECT u, v, weight FROM links").fetchnumpy()
    pairs = np.stack([np.asarray(found["u"], np.int64), np.asarray(found["v"], np.int64)])
    weights = weigh_edges(pairs, np.asarray(found["weight"], np.float64), edges, num_nodes)
    return np.log1p(weights) if schema.edges.weight_scale == "log" else weights


def _find_bad(database: Database, schema: Schema, source: Source, problems: Problems) -> None:
    if not database.number("SELECT count(*) FROM links WHERE u IS NULL OR v IS NULL"):
        return
    for end, side in ((schema.edges.source, "u"), (schema.edges.target, "v")):
        column = f"e.{quoted(str(end))}"
        rows = (
            f"SELECT l._file, l._row, {column} AS value FROM links AS l JOIN given_edges AS e USING (_file, _row) "
            f"WHERE l.{side} IS NULL" + (" AND l.u IS NOT NULL" if side == "v" else "")
        )
        empty, known = f"{rows} AND {column} IS NULL", f"{rows} AND {column} IS NOT NULL"
        problems.add(database, "edge without an end", source.files, empty, f"column {end!r} is empty")
        said = f"column {end!r} holds {{value}}, but no node has that id"
        problems.add(database, "edge to an unknown node", source.files, known, said)
    database.run("DELETE FROM links WHERE u IS NULL OR v IS NULL")


def _fetch_keys(database: Database, num_nodes: int) -> tuple[NDArray[np.int64], int]:
    """``u · N + v`` of every edge between two different nodes, and how many are from a node to itself."""
    loops = database.number("SELECT count(*) FROM links WHERE u = v")
    keys = np.empty(database.number("SELECT count(*) FROM links WHERE u <> v"), np.int64)
    result = database.run(f"SELECT u * {num_nodes} + v AS key FROM links WHERE u <> v")
    place = 0
    while len(part := result.fetch_df_chunk(VECTORS)):
        keys[place : place + len(part)] = part["key"].to_numpy()
        place += len(part)
        if database.on_progress:
            database.on_progress("sorting the edges", place / len(keys))
    return keys, loops
