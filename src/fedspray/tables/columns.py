"""From columns of text to a matrix of features: what each kind of feature checks, learns and makes.

A feature is *resolved* when nothing about it depends on the rows at hand any more: scales and vocabularies are filled
in, so that new rows, or another organisation's, become the same columns.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.errors import InputError, unknown
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.schema import REFUSE, Feature, natural
from fedspray.tables.statistics import Moments

FLOAT32_MAX = float(np.finfo(np.float32).max)
REFERENCE = "2000-01-01"
"""Dates become years since then, unless the schema says otherwise."""
YEAR = 365.25 * 86_400
AT_ONCE = 64
"""Columns that are fetched together."""
SPARSE_WIDTH, SPARSE_SHARE = 64, 0.25
"""Features are stored sparse from so many columns on, if at most this share of the entries is not 0."""

Block = Any
"""[N, k]: NDArray[np.float32], or sp.csr_array."""


@dataclass(frozen=True)
class Encoded:
    """The features of a table's rows."""

    matrix: Block
    names: tuple[str, ...]
    features: tuple[Feature, ...]
    """Resolved."""


def expand(features: Sequence[Feature], columns: Sequence[str], where: str) -> list[Feature]:
    """One feature for each column, in the schema's order; columns of a pattern by name, w2 before w10."""
    exact = {name for feature in features for name in feature.columns if "*" not in name}
    taken: set[str] = set()
    result = []
    for feature in features:
        for pattern in feature.columns:
            found = [pattern]
            if "*" in pattern:
                free = (name for name in columns if name not in exact | taken)
                found = sorted((name for name in free if fnmatchcase(name, pattern)), key=natural)
            if not found or found[0] not in columns:
                raise InputError(f"{where}: {unknown('column in [[features]]', pattern, columns)}")
            taken.update(found)
            result += [replace(feature, columns=(name,)) for name in found]
    titles = Counter(feature.title for feature in result if feature.kind != "drop")
    twice = next((title for title, times in titles.items() if times > 1), None)
    if twice is not None:
        raise InputError(f"two features are called {twice!r}, but names must differ")
    return result


def regroup(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """The opposite of `expand`: neighbours that are treated alike as one."""
    result: list[Feature] = []
    for feature in features:
        last = result[-1] if result else None
        if last and feature.name is None and replace(last, columns=feature.columns) == feature:
            result[-1] = replace(last, columns=(*last.columns, *feature.columns))
        else:
            result.append(feature)
    return tuple(result)


def bad_cells(feature: Feature) -> Iterator[tuple[str, str]]:
    """Conditions in SQL under which a cell cannot be used, and what is then said of it."""
    column = quoted(feature.columns[0])
    title = f"column {feature.columns[0]!r}"
    if feature.missing == REFUSE:
        yield f"{column} IS NULL", f"{title} is empty, but the schema refuses missing values there"
    if feature.kind == "numeric":
        value = f"TRY_CAST({column} AS DOUBLE)"
        odd = f"{value} IS NULL OR NOT isfinite({value}) OR abs({value}) > {FLOAT32_MAX!r}"
        yield f"{column} IS NOT NULL AND ({odd})", f"{title} holds {{value}}, but must hold finite numbers"
    elif feature.kind == "date":
        form = feature.time_format or "2024-12-31 or 2024-12-31 23:59:00"
        yield f"{column} IS NOT NULL AND {moment(feature)} IS NULL", f"{title} holds {{value}}, but must hold {form}"
    elif feature.kind == "category" and not feature.other and feature.vocabulary is not None:
        known = f"[{', '.join(map(literal, feature.vocabulary))}]"
        yield (
            f"{column} IS NOT NULL AND NOT list_contains({known}::VARCHAR[], {column})",
            f"{title} holds {{value}}, which is not in the vocabulary",
        )
    elif feature.kind == "set":
        yield f"{column} IS NOT NULL AND {_listed(feature)} IS NULL", f"{title} holds {{value}}, but must hold a list"


def moment(feature: Feature, column: str | None = None) -> str:
    """SQL: a column as a time stamp, or NULL."""
    text = quoted(column or feature.columns[0])
    if feature.time_format in ("unix", "unix_ms"):
        scale = 1e6 if feature.time_format == "unix" else 1e3
        return f"make_timestamp(TRY_CAST(TRY_CAST({text} AS DOUBLE) * {scale} AS BIGINT))"
    if feature.time_format is not None:
        return f"try_strptime({text}, {literal(feature.time_format)})"
    return f"TRY_CAST({text} AS TIMESTAMP)"


def encode(
    database: Database, features: Sequence[Feature], sparse: bool | None, structure: Mapping[str, NDArray[np.float32]]
) -> Encoded:
    """Makes the features of the rows of the table ``nodes``, in their order, and puts those of the structure first."""
    blocks: list[Block] = [column[:, None] for column in structure.values()]
    names = list(structure)
    resolved: list[Feature] = []
    numbers = Numbers(database, [f for f in features if f.kind in ("numeric", "date")])
    for feature in features:
        block, titles, known = _KINDS[feature.kind](database, feature, numbers)
        resolved.append(known)
        if titles:
            blocks.append(block)
            names += titles
    return Encoded(_stack(blocks, database.number("SELECT count(*) FROM nodes"), sparse), tuple(names), tuple(resolved))


def number_moments(database: Database, features: Sequence[Feature]) -> dict[str, Moments]:
    """Moments of the numeric features, on the scale that they ask for."""
    asked = [feature for feature in features if feature.kind in ("numeric", "date")]
    numbers = Numbers(database, asked)
    result = {}
    for feature in asked:
        values = numbers.of(feature)
        result[feature.title] = Moments.of(_shaped(feature, values[~np.isnan(values)]))
    return result


def word_counts(database: Database, feature: Feature) -> dict[str, int]:
    """How many rows hold each value of a category, or of a set."""
    column = quoted(feature.columns[0])
    if feature.kind == "set":
        rows = f"SELECT unnest(list_distinct({_listed(feature)})) AS word FROM nodes"
    else:
        rows = f"SELECT {column} AS word FROM nodes"
    return dict(database.rows(f"SELECT word, count(*) FROM ({rows}) WHERE word IS NOT NULL GROUP BY word"))


# ---- numbers and dates --------------------------------------------------------------------------


class Numbers:
    """Numeric columns, fetched a few at a time when the first of them is asked for."""

    def __init__(self, database: Database, features: Sequence[Feature]) -> None:
        self._database = database
        self._order = {feature.columns[0]: place for place, feature in enumerate(features)}
        self._features = features
        self._fetched: dict[str, NDArray[np.float64]] = {}

    def of(self, feature: Feature) -> NDArray[np.float64]:
        """The column's values (dates as seconds since 1970), NaN where they are missing."""
        column = feature.columns[0]
        if column not in self._fetched:
            start = self._order[column]
            self._fetched = self._fetch(self._features[start : start + AT_ONCE])
        return self._fetched[column]

    def _fetch(self, features: Sequence[Feature]) -> dict[str, NDArray[np.float64]]:
        chosen = ", ".join(f"CAST({_as_number(f)} AS DOUBLE) AS c{i}" for i, f in enumerate(features))
        found = self._database.run(f"SELECT {chosen} FROM nodes ORDER BY _pos").fetchnumpy()
        arrays = (np.ma.filled(np.ma.asarray(found[f"c{i}"], np.float64), np.nan) for i in range(len(features)))
        return {f.columns[0]: array for f, array in zip(features, arrays, strict=True)}


def _as_number(feature: Feature) -> str:
    if feature.kind == "date":
        return f"epoch({moment(feature)})"
    return f"TRY_CAST({quoted(feature.columns[0])} AS DOUBLE)"


def _numeric(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    return _scaled(feature, numbers.of(feature))


def _scaled(feature: Feature, values: NDArray[np.float64]) -> tuple[Block, list[str], Feature]:
    absent = np.isnan(values)
    known = _resolved(feature, values[~absent])
    shaped = _shaped(feature, np.where(absent, 0.0, values))
    if isinstance(feature.missing, float):
        shaped[absent] = _shaped(feature, np.array([feature.missing]))[0]
    elif known.mean is not None:
        shaped[absent] = known.mean
    if known.scale in ("standard", "log"):
        shaped = (shaped - (known.mean or 0.0)) / (known.sd or 1.0)
    elif known.scale == "range":
        shaped = (shaped - (known.low or 0.0)) / ((known.high or 0.0) - (known.low or 0.0))
    columns = [shaped, absent.astype(np.float64)] if feature.flag else [shaped]
    names = [feature.title, *([f"{feature.title} is missing"] if feature.flag else [])]
    return np.stack(columns, axis=1).astype(np.float32), names, known


def _shaped(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """On the scale on which means are taken: dates in years, logarithms where asked for."""
    if feature.kind == "date":
        start = np.datetime64(feature.reference or REFERENCE, "s").astype(np.int64)
        values = (values - float(start)) / YEAR
    return np.sign(values) * np.log1p(np.abs(values)) if feature.scale == "log" else np.array(values, np.float64)


def _resolved(feature: Feature, present: NDArray[np.float64]) -> Feature:
    shaped = _shaped(feature, present)
    scaled = feature.scale in ("standard", "log")
    changes: dict[str, Any] = {}
    if feature.mean is None and (scaled or feature.missing in (None, "mean")):
        changes["mean"] = Moments.of(shaped).mean
    if feature.sd is None and scaled:
        changes["sd"] = Moments.of(shaped).sd
    if feature.scale == "range":
        low, high = (float(shaped.min()), float(shaped.max())) if len(shaped) else (0.0, 1.0)
        low = low if feature.low is None else feature.low
        high = high if feature.high is None else feature.high
        changes |= {"low": low, "high": high if high > low else low + 1.0}
    return replace(feature, **changes)


def _date(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    seconds = numbers.of(feature)
    blocks: list[Block] = []
    names: list[str] = []
    known = feature
    for part in feature.parts:
        if part == "years":
            block, titles, known = _scaled(feature, seconds)
            blocks.append(block)
            names += titles
        else:
            blocks.append(_circle(seconds, part))
            names += [f"{feature.title} {part} {wave}" for wave in ("sin", "cos")]
    return np.concatenate(blocks, axis=1), names, known


def _circle(seconds: NDArray[np.float64], part: str) -> NDArray[np.float32]:
    """[N, 2]: the place in the year, the week or the day as a point on a circle; 0, 0 where it is missing."""
    absent = np.isnan(seconds)
    stamps = np.where(absent, 0.0, seconds).astype("datetime64[s]")
    days = stamps.astype("datetime64[D]")
    if part == "month":
        share = (stamps.astype("datetime64[M]").astype(np.int64) % 12) / 12
    elif part == "weekday":
        share = ((days.astype(np.int64) + 3) % 7) / 7  # 1 January 1970 was a Thursday
    else:
        share = (stamps - days).astype(np.float64) / 86_400
    points = np.stack([np.sin(2 * np.pi * share), np.cos(2 * np.pi * share)], axis=1)
    points[absent] = 0.0
    return points.astype(np.float32)


# ---- words --------------------------------------------------------------------------------------


def _with_vocabulary(database: Database, feature: Feature) -> Feature:
    if feature.vocabulary is not None:
        return feature
    counts = word_counts(database, feature)
    words = (word for word, rows in counts.items() if rows >= feature.at_least)
    return replace(feature, vocabulary=tuple(sorted(words, key=natural)))


def _category(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    known = _with_vocabulary(database, feature)
    column = quoted(feature.columns[0])
    return _one_hot(database, known, f"SELECT _pos, {column} AS word FROM nodes", f"{column} IS NULL")


def _set(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    known = _with_vocabulary(database, feature)
    rows = f"SELECT _pos, unnest(list_distinct({_listed(feature)})) AS word FROM nodes"
    return _one_hot(database, known, rows, f"{quoted(feature.columns[0])} IS NULL")


def _listed(feature: Feature) -> str:
    """SQL: a column as a list of texts: a JSON list, or text with a separator."""
    column = quoted(feature.columns[0])
    if feature.separator is not None:
        return f"string_split({column}, {literal(feature.separator)})"
    return f"TRY(from_json({column}, '[\"VARCHAR\"]'))"


def _one_hot(database: Database, feature: Feature, rows: str, absent: str) -> tuple[Block, list[str], Feature]:
    """1 where a row (of ``rows``: _pos, word) has a word of the vocabulary, or one that is not in it ("other")."""
    words = feature.vocabulary or ()
    num_nodes = database.number("SELECT count(*) FROM nodes")
    database.number_words(words)
    found = database.run(
        f"SELECT DISTINCT r._pos AS pos, coalesce(w.code, {len(words)}) AS code FROM ({rows}) AS r "
        "LEFT JOIN words AS w ON r.word = w.word WHERE r.word IS NOT NULL"
    ).fetchnumpy()
    places, codes = (np.asarray(found[key], np.int64) for key in ("pos", "code"))
    names = [f"{feature.title}={word}" for word in words]
    if feature.other:
        names.append(f"{feature.title} is another")
    else:
        places, codes = places[codes < len(words)], codes[codes < len(words)]
    if feature.flag:
        missing = np.asarray(database.run(f"SELECT _pos FROM nodes WHERE {absent}").fetchnumpy()["_pos"], np.int64)
        places = np.concatenate([places, missing])
        codes = np.concatenate([codes, np.full(len(missing), len(names))])
        names.append(f"{feature.title} is missing")
    ones = np.ones(len(places), np.float32)
    return sp.csr_array((ones, (places, codes)), shape=(num_nodes, len(names))), names, feature


def _text(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    """Words hashed into columns with a sign (Weinberger et al., 2009), and every row of length 1."""
    width = feature.width
    matrix = sp.lil_array((database.number("SELECT count(*) FROM nodes"), width), dtype=np.float32)
    result = database.run(
        f"SELECT _pos, lower({quoted(feature.columns[0])}) FROM nodes WHERE {quoted(feature.columns[0])} IS NOT NULL"
    )
    while rows := result.fetchmany(10_000):
        for place, text in rows:
            buckets: Counter[int] = Counter()
            for word in "".join(c if c.isalnum() else " " for c in text).split():
                code = zlib.crc32(word.encode())
                buckets[code % width] += 1 if code & 0x80000000 else -1
            length = np.sqrt(sum(n * n for n in buckets.values()))
            for bucket, n in buckets.items():
                if n:
                    matrix[place, bucket] = n / length
    return matrix.tocsr(), [f"{feature.title}#{i}" for i in range(width)], feature


def _drop(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    return np.zeros((0, 0), np.float32), [], feature


_KINDS: dict[str, Callable[[Database, Feature, Numbers], tuple[Block, list[str], Feature]]] = {
    "numeric": _numeric,
    "date": _date,
    "category": _category,
    "set": _set,
    "text": _text,
    "drop": _drop,
}


def _stack(blocks: Sequence[Block], num_nodes: int, sparse: bool | None) -> Block:
    if not blocks:
        return np.zeros((num_nodes, 0), np.float32)
    width = sum(block.shape[1] for block in blocks)
    if sparse is None:
        filled = sum(block.nnz if sp.issparse(block) else int(np.count_nonzero(block)) for block in blocks)
        sparse = width >= SPARSE_WIDTH and filled <= SPARSE_SHARE * num_nodes * width
    if sparse:
        return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks], format="csr", dtype=np.float32))
    dense: list[Any] = [block.toarray() if sp.issparse(block) else block for block in blocks]
    return np.concatenate(dense, axis=1, dtype=np.float32)
