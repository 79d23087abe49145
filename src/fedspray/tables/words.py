"""Features that are words: categories, sets of words, and text that is hashed."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.feature import Feature, natural
from fedspray.tables.numbers import Block, Numbers


def word_counts(database: Database, feature: Feature) -> dict[str, int]:
    """How many rows hold each value of a category, or of a set."""
    column = quoted(feature.columns[0])
    if feature.kind == "set":
        rows = f"SELECT unnest(list_distinct({listed(feature)})) AS word FROM nodes"
    else:
        rows = f"SELECT {column} AS word FROM nodes"
    return dict(database.rows(f"SELECT word, count(*) FROM ({rows}) WHERE word IS NOT NULL GROUP BY word"))


def _with_vocabulary(database: Database, feature: Feature) -> Feature:
    if feature.vocabulary is not None:
        return feature
    counts = word_counts(database, feature)
    words = (word for word, rows in counts.items() if rows >= feature.at_least)
    return replace(feature, vocabulary=tuple(sorted(words, key=natural)))


def category(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    """One column for each word of the vocabulary, and one for all others."""
    known = _with_vocabulary(database, feature)
    column = quoted(feature.columns[0])
    return _one_hot(database, known, f"SELECT _pos, {column} AS word FROM nodes", f"{column} IS NULL")


def word_set(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
    """The same for several words at once."""
    known = _with_vocabulary(database, feature)
    rows = f"SELECT _pos, unnest(list_distinct({listed(feature)})) AS word FROM nodes"
    return _one_hot(database, known, rows, f"{quoted(feature.columns[0])} IS NULL")


def listed(feature: Feature) -> str:
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


def text(database: Database, feature: Feature, numbers: Numbers) -> tuple[Block, list[str], Feature]:
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
