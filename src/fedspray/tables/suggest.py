"""A first schema from a look at the files, for a person to edit: every guess comes with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from fedspray.data.traps import gives_away, looks_like_time
from fedspray.errors import InputError
from fedspray.tables.database import Database, quoted
from fedspray.tables.schema import STRUCTURE, Edges, Feature, Nodes, Schema, natural
from fedspray.tables.sources import Source

ID_NAMES = ("id", "node", "key", "customer", "account", "user", "name", "number", "code")
LABEL_NAMES = ("label", "class", "target", "y", "category", "topic", "outcome", "fraud", "default", "churn")
CLIENT_NAMES = ("client", "bank", "site", "hospital", "owner", "organisation", "organization", "branch", "country")
SPLIT_NAMES = ("split", "part", "fold", "set")
ENDS = (("source", "target"), ("from", "to"), ("src", "dst"), ("payer", "payee"), ("sender", "receiver"), ("a", "b"))
MARKERS = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "-")
MOST_CLASSES, MOST_WORDS, WIDE = 50, 100, 20
SAMPLE = 20_000


@dataclass(frozen=True)
class _Profile:
    """What a column looks like, on a sample."""

    name: str
    rows: int
    distinct: int
    missing: int
    numeric: int
    dates: int
    lists: int
    words: float
    sample: tuple[str, ...]
    markers: tuple[str, ...]

    @property
    def present(self) -> int:
        return self.rows - self.missing


def suggest(database: Database, nodes: Source, edges: Source, paths: tuple[Sequence[str], Sequence[str]]) -> str:
    """The text of a schema; ``paths`` are the files of nodes and edges as they are to stand in it."""
    notes = {"edges": "", "nodes": ""}
    made = _edges(edges, tuple(paths[1])) if edges.files else Edges()
    if not nodes.files:
        notes["nodes"] = "No table of nodes: they are the ends of the edges, with features from the structure."
        return Schema(nodes=Nodes(structure=STRUCTURE), edges=made).to_toml(notes)
    profiles = [_profile(database, nodes, name) for name in nodes.columns]
    identity = _pick_id(database, profiles, edges, made)
    label = _named(profiles, LABEL_NAMES, lambda p: 2 <= p.distinct <= MOST_CLASSES and p is not identity)
    client = (
        None
        if nodes.per_client
        else _named(profiles, CLIENT_NAMES, lambda p: p.distinct <= 1_000 and p is not identity)
    )
    rest = [p for p in profiles if p not in (identity, label, client)]
    markers = tuple(dict.fromkeys(mark for p in profiles for mark in p.markers))
    features = [_feature(database, nodes, p, label, notes) for p in rest]
    classes = None
    if label is not None:
        values = database.rows(f"SELECT DISTINCT {quoted(label.name)} FROM ({nodes.union([label.name])})")
        classes = tuple(sorted((v for (v,) in values if v is not None), key=natural))
    notes["nodes"] = "\n".join(
        [
            "id names each node; label is the class; classes are numbered in this order, the same for all clients.",
            *([] if label else ['No column looked like a class: set label = "…" to train.']),
            *(
                []
                if client or nodes.per_client
                else ['Several owners? Set client = "column", or write {client} in files.']
            ),
        ]
    )
    table = Nodes(
        files=tuple(paths[0]),
        missing=("", *markers),
        id=identity.name,
        label=label.name if label else None,
        classes=classes,
        client=client.name if client else None,
    )
    return Schema(nodes=table, edges=made, features=tuple(_grouped(features))).to_toml(notes)


def _edges(edges: Source, paths: tuple[str, ...]) -> Edges:
    columns = edges.columns
    lower = {name.lower(): name for name in columns}
    pair = next(((lower[a], lower[b]) for a, b in ENDS if a in lower and b in lower), None)
    if pair is None:
        if len(columns) < 2:
            raise InputError(f"{edges.files[0].path} has one column, but an edge has two ends")
        pair = columns[0], columns[1]
    weight = next((lower[name] for name in ("weight", "amount", "value", "count") if name in lower), None)
    when = next((lower[name] for name in ("time", "timestamp", "date", "when") if name in lower), None)
    scale = "none" if weight is None or weight.lower() == "weight" else "log"
    return Edges(files=paths, source=pair[0], target=pair[1], weight=weight, weight_scale=scale, time=when)


def _profile(database: Database, nodes: Source, name: str) -> _Profile:
    column = quoted(name)
    marks = ", ".join(f"'{mark}'" for mark in MARKERS)
    table = f"(SELECT {column} AS v FROM ({nodes.union([name])}) LIMIT {SAMPLE})"
    rows, distinct, missing, numeric, dates, lists, words = database.rows(
        f"SELECT count(*), count(DISTINCT v), count_if(v IS NULL), count_if(isfinite(TRY_CAST(v AS DOUBLE))), "
        "count_if(TRY_CAST(v AS TIMESTAMP) IS NOT NULL AND TRY_CAST(v AS DOUBLE) IS NULL), count_if(v LIKE '[%]'), "
        f"coalesce(avg(len(string_split(v, ' '))), 0) FROM {table}"
    )[0]
    found = database.rows(f"SELECT DISTINCT v FROM {table} WHERE v IN ({marks})") if numeric else []
    marked = tuple(sorted(v for (v,) in found))
    sample = tuple(v for (v,) in database.rows(f"SELECT v FROM {table} WHERE v IS NOT NULL LIMIT 2000"))
    if marked:
        missing += database.number(f"SELECT count(*) FROM {table} WHERE v IN ({', '.join(repr(m) for m in marked)})")
    return _Profile(name, rows, distinct, missing, numeric, dates, lists, float(words), sample, marked)


def _pick_id(database: Database, profiles: Sequence[_Profile], edges: Source, made: Edges) -> _Profile:
    """The column whose values are the ends of edges; without edges, the first whose values all differ."""
    unique = [p for p in profiles if p.distinct == p.rows and not p.missing] or list(profiles)
    if edges.files:
        end = str(made.source)
        ends = {v for (v,) in database.rows(f"SELECT DISTINCT {quoted(end)} FROM ({edges.union([end])}) LIMIT 1000")}
        best = max(unique, key=lambda p: len(ends & set(p.sample)))
        if ends & set(best.sample):
            return best
    return _named(unique, ID_NAMES, lambda p: True) or unique[0]


def _named(profiles: Sequence[_Profile], names: Sequence[str], fits: object) -> _Profile | None:
    """The column whose name has one of some words, the earlier the better."""
    for word in names:
        for profile in profiles:
            parts = re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", profile.name).lower())
            if (word in parts or any(len(word) > 3 and part.startswith(word) for part in parts)) and fits(profile):  # type: ignore[operator]
                return profile
    return None


def _feature(database: Database, nodes: Source, p: _Profile, label: _Profile | None, notes: dict[str, str]) -> Feature:
    def made(kind: str, why: str, **keys: object) -> Feature:
        if label is not None and kind not in ("drop", "text") and _leaks(database, nodes, p.name, label.name):
            kind, why, keys = "drop", "the label follows from it: drop it, unless it is known in time", {}
        notes[p.name] = why
        return Feature((p.name,), kind, **keys)  # type: ignore[arg-type]

    if not p.present or p.distinct <= 1:
        return made("drop", "one value in every row")
    if p.lists == p.present:
        return made("set", "lists of values")
    if p.dates == p.present:
        return made("date", "dates, as years since 2000", scale="standard")
    if p.numeric >= p.present:
        values = np.array([float(v) for v in p.sample if v not in p.markers])
        if looks_like_time(values):
            form = "%Y%m%d" if values.max() < 1e8 else "unix" if values.max() < 1e10 else "unix_ms"
            return made("date", "numbers that are moments in time", time_format=form, scale="standard")
        if p.distinct == p.rows and re.search(r"(^|_)id$", p.name.lower()):
            return made("drop", "a number for each row: an id, not a measurement")
        skewed = (
            len(values)
            and values.min() >= 0
            and np.abs(values).max() > 50 * max(float(np.median(np.abs(values))), 1e-9)
        )
        if skewed and np.median(np.abs(values)) > 0:
            return made(
                "numeric",
                f"numbers from {values.min():g} to {values.max():g}: a long tail",
                scale="log",
                flag=p.missing > 0,
            )
        if p.distinct <= 2 and set(values) <= {0.0, 1.0}:
            return made("numeric", "0 or 1", **({} if p.missing else {"missing": 0.0}))
        return made(
            "numeric", f"numbers from {values.min():g} to {values.max():g}", scale="standard", flag=p.missing > 0
        )
    if p.words >= 3:
        return made("text", "text, as hashed words")
    if p.distinct <= MOST_WORDS:
        return made("category", f"{p.distinct} different values", flag=p.missing > 0)
    if p.distinct > 0.9 * p.present:
        return made("drop", "another value in almost every row")
    return made("category", f"{p.distinct} different values: rare ones become one", at_least=max(10, p.rows // 1000))


def _leaks(database: Database, nodes: Source, column: str, label: str) -> bool:
    pairs = f"SELECT {quoted(column)} AS a, {quoted(label)} AS b FROM ({nodes.union([column, label])}) LIMIT {SAMPLE}"
    rows = database.rows(f"SELECT a, b FROM ({pairs}) WHERE a IS NOT NULL AND b IS NOT NULL")
    values, classes = (
        (np.unique(np.array(part, dtype=str), return_inverse=True) for part in zip(*rows, strict=True))
        if rows
        else ((np.array([]),) * 2,) * 2
    )
    return len(values[0]) * 10 <= len(rows) and len(rows) > 0 and gives_away(values[1], classes[1])


def _grouped(features: Sequence[Feature]) -> list[Feature]:
    """Many columns such as w0 to w499 that are treated alike become one entry with a pattern."""
    result: list[Feature] = []
    for (stem, *_), group in groupby(
        features, key=lambda f: (re.sub(r"\d+$", "", f.columns[0]), f.kind in ("numeric", "drop"))
    ):
        listed = list(group)
        if len(listed) >= WIDE and stem != listed[0].columns[0]:
            result.append(Feature((f"{stem}*",), "numeric", missing=0.0))
        else:
            result += listed
    return result
