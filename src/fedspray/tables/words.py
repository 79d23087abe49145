"""Features that are words: categories, sets of words, and text that is hashed."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.feature import Feature, natural
from fedspray.tables.numbers import Block


def word_counts(database: Database, feature: Feature) -> dict[str, int]:
    """How many rows hold each value of a category, or of a set."""
    found = f"SELECT word, count(*) FROM ({_words(feature)}) WHERE word IS NOT NULL GROUP BY word ORDER BY word"
    return dict(database.rows(found))


def listed(feature: Feature) -> str:
    """SQL: a column as a list of texts: a JSON list, or text with a separator."""
    column = quoted(feature.columns[0])
    if feature.separator is not None:
        return f"string_split({column}, {literal(feature.separator)})"
    return f"TRY(from_json({column}, '[\"VARCHAR\"]'))"


def _words(feature: Feature) -> str:
    """SQL: _pos and word of every row, for a set once for each of its words."""
    word = f"unnest(list_distinct({listed(feature)}))" if feature.kind == "set" else quoted(feature.columns[0])
    return f"SELECT _pos, {word} AS word FROM nodes"


def one_hot(database: Database, feature: Feature) -> tuple[Block, list[str], Feature]:
    """1 where a row has a word of the vocabulary, one that is not in it ("other"), or none ("flag")."""
    if feature.vocabulary is None:
        known = (word for word, rows in word_counts(database, feature).items() if rows >= feature.at_least)
        feature = replace(feature, vocabulary=tuple(sorted(known, key=natural)))
    words = feature.vocabulary or ()
    database.number_words(words)
    found = database.run(
        f"SELECT DISTINCT r._pos AS pos, coalesce(w.code, {len(words)}) AS code FROM ({_words(feature)}) AS r "
        "LEFT JOIN words AS w ON r.word = w.word WHERE r.word IS NOT NULL"
    ).fetchnumpy()
    places, codes = (np.asarray(found[key], np.int64) for key in ("pos", "code"))
    names = [f"{feature.title}={word}" for word in words]
    if feature.other:
        names.append(f"{feature.title} is another")
    else:
        places, codes = places[codes < len(words)], codes[codes < len(words)]
    if feature.flag:
        absent = database.run(f"SELECT _pos FROM nodes WHERE {quoted(feature.columns[0])} IS NULL").fetchnumpy()
        missing = np.asarray(absent["_pos"], np.int64)
        places = np.concatenate([places, missing])
        codes = np.concatenate([codes, np.full(len(missing), len(names))])
        names.append(f"{feature.title} is missing")
    shape = (database.number("SELECT count(*) FROM nodes"), len(names))
    return sp.csr_array((np.ones(len(places), np.float32), (places, codes)), shape=shape), names, feature


def hashed(database: Database, feature: Feature) -> tuple[Block, list[str]]:
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
    return matrix.tocsr(), [f"{feature.title}#{i}" for i in range(width)]
