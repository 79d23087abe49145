"""The rows of nodes: checked, numbered, with their labels, clients, features and splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray.data.graph import UNLABELLED
from fedspray.data.splits import Split, SplitRule
from fedspray.errors import InputError
from fedspray.seeds import generator
from fedspray.tables.columns import bad_cells, expand
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.feature import Feature, natural
from fedspray.tables.numbers import AT_ONCE, moment
from fedspray.tables.problems import Problems, flagged
from fedspray.tables.schema import Schema
from fedspray.tables.sources import Source

MOST_BAD = 0.5
"""Share of the rows that may be left out; with more, the schema does not fit the file."""
TOO_MANY = "more than half of the rows cannot be used"


@dataclass(frozen=True)
class Rows:
    """What the table ``nodes`` holds: ``_pos`` (the node's number), ``_client``, ``_id`` and the schema's columns."""

    num_nodes: int
    per_client: bool
    """Whether ids are a client's own, so that two clients may use the same."""
    features: list[Feature]
    """One for each column."""
    unused: tuple[str, ...] = ()
    has_files: bool = True
    """False: the nodes are the ends of the edges."""


def number_nodes(database: Database, schema: Schema, source: Source, problems: Problems) -> Rows:
    """Checks every row and puts the good ones, in the order of the files, into the table ``nodes``."""
    nodes = schema.nodes
    if nodes.id is None:
        raise InputError("[nodes] has no id, but needs the column that names each node")
    asked = {"id": nodes.id, "label": nodes.label, "client": nodes.client, "split": schema.split.column}
    special = [name for name in asked.values() if name is not None]
    for key, name in asked.items():
        source.need([name] if name else [], "[split] column" if key == "split" else f"[nodes] {key}")
    features = expand(schema.features, source.columns, source.files[0].first_line)
    columns = [feature.columns[0] for feature in features if feature.kind != "drop"]
    source.need(columns, "[[features]]")
    if nodes.label in columns:
        raise InputError(f"column {nodes.label!r} is the label, but is a feature too: it would give itself away")
    database.run(f"CREATE VIEW given_nodes AS {source.union([*special, *columns])}")
    _find_bad(database, schema, source, features, problems)
    total = database.number("SELECT count(*) FROM given_nodes")
    database.run(
        "CREATE TABLE nodes AS "
        f"SELECT row_number() OVER (ORDER BY _file, _row) - 1 AS _pos, {quoted(nodes.id)} AS _id, * "
        "FROM given_nodes ANTI JOIN bad_nodes USING (_file, _row) ORDER BY _file, _row",
        doing="numbering the nodes",
    )
    left = database.number("SELECT count(*) FROM nodes")
    if left < (1 - MOST_BAD) * total or left == 0:
        if not problems.total:
            raise InputError(f"{source.files[0].path} has no rows, but at least one node is needed")
        raise problems.refuse(TOO_MANY)
    unused = tuple(name for name in source.columns if name not in {*special, *(f.columns[0] for f in features)})
    return Rows(left, source.per_client, features, unused)


def number_ends(database: Database, schema: Schema, edges: Source) -> Rows:
    """Where there is no table of nodes: everybody at an end of an edge, in the order of appearance."""
    ends = (schema.edges.source, schema.edges.target)
    edges.need([name for name in ends if name], "[edges]")
    listed = " UNION ALL ".join(
        f"SELECT _client, {quoted(str(name))} AS _id, (_file << 48) + _row * 2 + {place} AS _seen FROM given_edges"
        for place, name in enumerate(ends)
    )
    database.run(
        "CREATE TABLE nodes AS SELECT row_number() OVER (ORDER BY _seen) - 1 AS _pos, _id, _client FROM "
        f"(SELECT _client, _id, min(_seen) AS _seen FROM ({listed}) WHERE _id IS NOT NULL GROUP BY ALL) ORDER BY _seen",
        doing="numbering the nodes",
    )
    total = database.number("SELECT count(*) FROM nodes")
    if not total:
        raise InputError(f"{edges.files[0].path} has no edges, but at least one is needed")
    return Rows(total, edges.per_client, [], has_files=False)


def _find_bad(
    database: Database, schema: Schema, source: Source, features: Sequence[Feature], problems: Problems
) -> None:
    database.run("CREATE TABLE bad_nodes (_file INTEGER, _row BIGINT)")
    identity = quoted(str(schema.nodes.id))

    def note(kind: str, rows: str, sentence: str) -> None:
        problems.add(database, kind, source.files, rows, sentence, "bad_nodes")
        database.run(f"INSERT INTO bad_nodes SELECT _file, _row FROM ({rows})")

    note("no id", flagged(f"{identity} IS NULL", "''", "given_nodes"), f"column {schema.nodes.id!r} is empty")
    again = (
        f"SELECT _file, _row, {identity} AS value FROM given_nodes WHERE {identity} IS NOT NULL "
        f"QUALIFY row_number() OVER (PARTITION BY _client, {identity} ORDER BY _file, _row) > 1"
    )
    note("repeated id", again, "id {value} appears more than once, but every node must have one row")
    checks = list(_bad_values(schema, features))
    for start in range(0, len(checks), AT_ONCE):  # one look for many problems: most columns have nothing wrong
        some = checks[start : start + AT_ONCE]
        counts = database.rows(f"SELECT {', '.join(f'count_if({bad})' for _, bad, _, _ in some)} FROM given_nodes")[0]
        for (kind, bad, value, sentence), number in zip(some, counts, strict=True):
            if number:
                note(kind, flagged(bad, value, "given_nodes"), sentence)


def _bad_values(schema: Schema, features: Sequence[Feature]) -> Iterator[tuple[str, str, str, str]]:
    """Kinds of problems, each with a condition and the value that is at fault, both in SQL, and a sentence."""
    for feature in features:
        for bad, sentence in bad_cells(feature):
            yield "bad value", bad, quoted(feature.columns[0]), sentence
    nodes, split = schema.nodes, schema.split
    if nodes.label is not None and nodes.classes is not None:
        label = quoted(nodes.label)
        said = f"label {{value}} is not one of the classes, {', '.join(nodes.classes)}"
        yield "unknown label", f"{label} NOT IN ({', '.join(map(literal, nodes.classes))})", label, said
    if nodes.client is not None:
        client = quoted(nodes.client)
        said = "client {value} is not a name: use letters, digits, '.', '_' and '-'"
        yield "bad client", f"NOT regexp_full_match({client}, '[A-Za-z0-9][A-Za-z0-9._-]*')", client, said
    if split.column is None:
        return
    column, said = quoted(split.column), f"column {split.column!r} holds {{value}}, but "
    if split.kind == "column":
        parts = (split.train, split.val, split.test)
        said += f"must be {', '.join(map(repr, parts))} or empty"
        yield "bad split", f"{column} NOT IN ({', '.join(map(literal, parts))})", column, said
    else:
        labelled = f"{quoted(nodes.label)} IS NOT NULL AND " if nodes.label else ""
        undated = f"{labelled}{moment(split.column)} IS NULL"
        yield "bad split", undated, f"coalesce({column}, '')", f"{said}values must be dates"


def fetch(database: Database, expression: str, kind: Any = np.int64) -> NDArray[Any]:
    """One value for each node, in order; must not be missing."""
    found = database.run(f"SELECT {expression} AS v FROM nodes ORDER BY _pos").fetchnumpy()["v"]
    return np.asarray(found, dtype=kind)


def read_labels(database: Database, schema: Schema) -> tuple[NDArray[np.int64] | None, Schema]:
    """[N]: classes by number, and the schema that lists them."""
    label = schema.nodes.label
    if label is None:
        return None, schema
    column = quoted(label)
    classes = schema.nodes.classes
    if classes is None:
        found = database.rows(f"SELECT DISTINCT {column} FROM nodes WHERE {column} IS NOT NULL ORDER BY 1 LIMIT 10001")
        if len(found) > 10_000:
            raise InputError(f"label column {label!r} has more than 10,000 different values: it is not a class")
        classes = tuple(sorted((value for (value,) in found), key=natural))
        schema = replace(schema, nodes=replace(schema.nodes, classes=classes))
    database.number_words(classes)
    codes = database.run(
        f"SELECT coalesce(w.code, {UNLABELLED}) AS v FROM nodes AS n LEFT JOIN words AS w ON n.{column} = w.word "
        "ORDER BY n._pos"
    ).fetchnumpy()["v"]
    return np.asarray(codes, np.int64), schema


def read_clients(database: Database, schema: Schema, rows: Rows) -> tuple[NDArray[np.int64], tuple[str, ...]] | None:
    """[N]: the number of each node's client (-1: nobody's), and their names in order; None if all have one owner."""
    if schema.nodes.client is None and not rows.per_client:
        return None
    column = "_client" if schema.nodes.client is None else quoted(schema.nodes.client)
    names = sorted(name for (name,) in database.rows(f"SELECT DISTINCT {column} FROM nodes") if name is not None)
    if not names:
        raise InputError(f"column {schema.nodes.client!r} names no client, but at least one is needed")
    place = f"coalesce(list_position([{', '.join(map(literal, names))}], {column}), 0) - 1"
    return fetch(database, place), tuple(names)


def fixed_split(
    database: Database, schema: Schema, labels: NDArray[np.int64] | None, owner: NDArray[np.int64] | None
) -> Split | None:
    """The split of all nodes; None where every seed draws its own."""
    choice = schema.split
    if choice.kind == "random":
        return None
    if labels is None:
        raise InputError(f"[split] kind is {choice.kind!r}, but [nodes] has no label: only labelled nodes are split")
    if choice.kind == "column":
        column = quoted(str(choice.column))
        parts = (choice.train, choice.val, choice.test)
        given = (fetch(database, f"coalesce({column} = {literal(part)}, false)", np.bool_) for part in parts)
        return Split(*(mask & (labels >= 0) for mask in given))
    groups = labels if owner is None else labels * (int(owner.max()) + 1) + owner
    if choice.kind == "time":
        groups = np.zeros_like(labels) if owner is None else owner
        when = fetch(database, f"coalesce(epoch({moment(str(choice.column))}), 0)", np.float64)
    masks = np.zeros((3, len(labels)), np.bool_)
    for group in np.unique(groups[labels >= 0]):
        members = np.flatnonzero((groups == group) & (labels >= 0))
        if choice.kind == "time":
            order = members[np.argsort(when[members], kind="stable")]
        else:
            order = generator(choice.seed, "stratified split", int(group)).permutation(members)
        for mask, chosen in zip(masks, SplitRule(choice.parts).cut(order), strict=True):
            mask[chosen] = True
    return Split(*masks)
