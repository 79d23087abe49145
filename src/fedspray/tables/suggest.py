"""A first schema from a look at the files, for a person to edit: every guess comes with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from fedspray.data.traps import gives_away, looks_like_time
from fedspray.errors import InputError
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.feature import Feature, natural
from fedspray.tables.schema import STRUCTURE, Edges, Nodes, Schema
from fedspray.tables.sources import Source

ID_NAMES = ("id", "node", "key", "customer", "account", "user", "name", "number", "code")
LABEL_NAMES = ("label", "class", "target", "y", "category", "topic", "outcome", "fraud", "default", "churn", "segment")
CLIENT_NAMES = ("client", "bank", "site", "hospital", "owner", "organisation", "organization", "branch", "country")
ENDS = (("source", "target"), ("from", "to"), ("src", "dst"), ("payer", "payee"), ("sender", "receiver"), ("a", "b"))
MARKERS = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "-")
MOST_CLASSES, MOST_WORDS, WIDE, LONG_TAIL = 50, 100, 20, 50
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
    notes = {
        "edges": 'Taken as undirected, unless direction = "mutual" keeps only those given both ways.',
        "split": 'At random, 40/30/30 for each seed; or kind = "stratified", "time" or "column".',
    }
    made = _edges(edges, tuple(paths[1])) if edges.files else Edges()
    if not nodes.files:
        notes["nodes"] = "No table of nodes: they are the ends of the edges, with features from the structure."
        return Schema(nodes=Nodes(structure=STRUCTURE), edges=made).to_toml(notes)
    profiles = [_profile(database, nodes, name) for name in nodes.columns]
    identity = _pick_id(database, profiles, edges, made)
    label = _named(profiles, LABEL_NAMES, lambda p: 2 <= p.distinct <= MOST_CLASSES and p is not identity)
    owners = [] if nodes.per_client else [p for p in profiles if p is not identity and not p.missing]
    client = _named(owners, CLIENT_NAMES, lambda p: 2 <= p.distinct <= 1_000)
    rest = [p for p in profiles if p not in (identity, label, client)]
    markers = tuple(dict.fromkeys(mark for p in profiles for mark in p.markers))
    features = []
    for profile in rest:
        feature, notes[profile.name] = _feature(database, nodes, profile, label)
        features.append(feature)
    classes = None
    if label is not None:
        values = database.rows(f"SELECT DISTINCT {quoted(label.name)} FROM ({nodes.union([label.name])}) ORDER BY 1")
        classes = tuple(sorted((v for (v,) in values if v is not None), key=natural))
    notes["nodes"] = (
        "id names each node; label is the class; classes are numbered in this order, the same for all clients."
    )
    if label is None:
        notes["nodes"] += '\nNo column looked like a class: set label = "…" to train.'
    if client is None and not nodes.per_client:
        notes["nodes"] += '\nSeveral owners? Set client = "column", or write {client} in files.'
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
    when = next((lower[name] for name in ("time", "timestamp", "date", "day", "when") if name in lower), None)
    scale = "none" if weight is None or weight.lower() == "weight" else "log"
    return Edges(files=paths, source=pair[0], target=pair[1], weight=weight, weight_scale=scale, time=when)


def _profile(database: Database, nodes: Source, name: str) -> _Profile:
    table = f"(SELECT {quoted(name)} AS v FROM ({nodes.union([name])}) LIMIT {SAMPLE})"
    marks = f"v IN ({', '.join(map(literal, MARKERS))})"
    rows, distinct, missing, numeric, dates, lists, words = database.rows(
        "SELECT count(*), count(DISTINCT v), count_if(v IS NULL), count(*) FILTER (isfinite(TRY_CAST(v AS DOUBLE))), "
        "count(*) FILTER (TRY_CAST(v AS TIMESTAMP) IS NOT NULL AND TRY_CAST(v AS DOUBLE) IS NULL), "
        f"count(*) FILTER (v LIKE '[%]'), coalesce(avg(len(string_split(v, ' '))), 0) FROM {table}"
    )[0]
    marked: dict[str, int] = {}
    if numeric:
        marked = dict(database.rows(f"SELECT v, count(*) FROM {table} WHERE {marks} GROUP BY v ORDER BY v"))
    sample = tuple(v for (v,) in database.rows(f"SELECT v FROM {table} WHERE v IS NOT NULL LIMIT 2000"))
    absent = missing + sum(marked.values())
    return _Profile(name, rows, distinct, absent, numeric, dates, lists, float(words), sample, tuple(marked))


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


def _named(profiles: Sequence[_Profile], names: Sequence[str], fits: Callable[[_Profile], bool]) -> _Profile | None:
    """The column whose name has one of some words, the earlier the better."""
    for word in names:
        for profile in profiles:
            parts = re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", profile.name).lower())
            if (word in parts or any(len(word) > 3 and part.startswith(word) for part in parts)) and fits(profile):
                return profile
    return None


def _feature(database: Database, nodes: Source, p: _Profile, label: _Profile | None) -> tuple[Feature, str]:
    """What a column is taken for, and why."""
    feature, why = _numbers(p) if p.present and p.numeric >= p.present and p.distinct > 1 else _others(p)
    if label is not None and feature.kind not in ("drop", "text") and _leaks(database, nodes, p.name, label.name):
        return Feature((p.name,), "drop"), "the label follows from it: drop it, unless it is known in time"
    return feature, why


def _others(p: _Profile) -> tuple[Feature, str]:
    own = (p.name,)
    if not p.present or p.distinct <= 1:
        return Feature(own, "drop"), "one value in every row"
    if p.lists == p.present:
        return Feature(own, "set"), "lists of values"
    if p.dates == p.present:
        return Feature(own, "date", scale="standard"), "dates, as years since 2000"
    if p.words >= 3:
        return Feature(own, "text"), "text, as hashed words"
    if p.distinct <= MOST_WORDS:
        return Feature(own, "category", flag=p.missing > 0), f"{p.distinct} different values"
    if p.distinct > 0.9 * p.present:
        return Feature(own, "drop"), "another value in almost every row"
    return Feature(
        own, "category", at_least=max(10, p.rows // 1000)
    ), f"{p.distinct} different values, most of them rare"


def _numbers(p: _Profile) -> tuple[Feature, str]:
    own = (p.name,)
    values = np.array([float(v) for v in p.sample if v not in p.markers])
    span = f"numbers from {values.min():g} to {values.max():g}"
    if looks_like_time(values):
        form = "%Y%m%d" if values.max() < 1e8 else "unix" if values.max() < 1e10 else "unix_ms"
        return Feature(own, "date", time_format=form, scale="standard"), f"{span}: moments in time"
    if p.distinct == p.rows and re.search(r"(^|_)id$", p.name.lower()):
        return Feature(own, "drop"), f"{span}, another in each row: an id, not a measurement"
    if set(values) <= {0.0, 1.0}:
        return Feature(own, "numeric", missing=None if p.missing else 0.0), "0 or 1"
    middle = float(np.median(values))
    if values.min() >= 0 and middle > 0 and values.max() > LONG_TAIL * middle:
        return Feature(own, "numeric", scale="log", flag=p.missing > 0), f"{span}: a long tail"
    return Feature(own, "numeric", scale="standard", flag=p.missing > 0), span


def _leaks(database: Database, nodes: Source, column: str, label: str) -> bool:
    pairs = f"SELECT {quoted(column)} AS a, {quoted(label)} AS b FROM ({nodes.union([column, label])}) LIMIT {SAMPLE}"
    ranks = "dense_rank() OVER (ORDER BY a) AS a, dense_rank() OVER (ORDER BY b) - 1 AS b"
    found = database.run(f"SELECT {ranks} FROM ({pairs}) WHERE a IS NOT NULL AND b IS NOT NULL").fetchnumpy()
    codes, classes = (np.asarray(found[key], np.int64) for key in ("a", "b"))
    return bool(len(codes) and 10 * codes.max() <= len(codes) and gives_away(codes, classes))


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
