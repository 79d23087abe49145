"""From columns of text to a matrix of features: which columns, what is wrong in them, and all kinds side by side.

A feature is *resolved* when nothing about it depends on the rows at hand any more: scales and vocabularies are filled
in, so that new rows, or another organisation's, become the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.data.graph import repeated
from fedspray.errors import InputError, unknown
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.feature import REFUSE, Feature, natural
from fedspray.tables.numbers import NUMBERS, Block, fetch_numbers, moment, number_columns
from fedspray.tables.words import hashed, listed, one_hot

FLOAT32_MAX = float(np.finfo(np.float32).max)
SPARSE_WIDTH, SPARSE_SHARE = 64, 0.25
"""Features are stored sparse from so many columns on, if at most this share of the entries is not 0."""
DATES = {
    None: "look like 2024-12-31 or 2024-12-31 23:59:00",
    "unix": "be seconds since 1970",
    "unix_ms": "be milliseconds since 1970",
}
"""What cells must be, by `time_format`."""


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
    twice = repeated(feature.title for feature in result if feature.kind != "drop")
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
    odd = said = ""
    if feature.kind == "numeric":
        value = f"TRY_CAST({column} AS DOUBLE)"
        odd = f"{value} IS NULL OR NOT isfinite({value}) OR abs({value}) > {FLOAT32_MAX!r}"
        said = "but values must be finite numbers"
    elif feature.kind == "date":
        odd = f"{moment(feature.columns[0], feature.time_format)} IS NULL"
        said = f"but dates must {DATES.get(feature.time_format, f'have the format {feature.time_format}')}"
    elif feature.kind == "category" and not feature.other and feature.vocabulary is not None:
        odd = f"NOT list_contains([{', '.join(map(literal, feature.vocabulary))}]::VARCHAR[], {column})"
        said = "which is not in the vocabulary"
    elif feature.kind == "set":
        odd, said = f"{listed(feature)} IS NULL", "but values must be lists"
    if odd:
        yield f"{column} IS NOT NULL AND ({odd})", f"{title} holds {{value}}, {said}"


def encode(
    database: Database, features: Sequence[Feature], sparse: bool | None, structure: Mapping[str, NDArray[np.float32]]
) -> tuple[Block, tuple[str, ...], tuple[Feature, ...]]:
    """Makes the features of the rows of the table ``nodes``, in their order, and puts those of the structure first.

    Returns them with their names, and the features resolved.
    """
    blocks: list[Block] = [column[:, None] for column in structure.values()]
    names = list(structure)
    resolved: list[Feature] = []
    numbers = fetch_numbers(database, [feature for feature in features if feature.kind in NUMBERS])
    for feature in features:
        titles: list[str] = []
        known = feature
        if feature.kind in NUMBERS:
            block, titles, known = number_columns(feature, next(numbers))
        elif feature.kind in ("category", "set"):
            block, titles, known = one_hot(database, feature)
        elif feature.kind == "text":
            block, titles = hashed(database, feature)
        resolved.append(known)
        if titles:
            blocks.append(block)
            names += titles
    return _stack(blocks, database.number("SELECT count(*) FROM nodes"), sparse), tuple(names), regroup(resolved)


def structural_features(
    edges: NDArray[np.int64], num_nodes: int, names: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Features that the edges alone give: [N] by name, each on a scale of a few units.

    ``degree`` and ``neighbour_degree`` (the mean over neighbours) are log(1 + x), as is ``core``, the largest k such
    that the node is in a part of the graph where everybody has k neighbours there; ``clustering`` is the share of a
    node's pairs of neighbours that are neighbours too, 0 with fewer than two.
    """
    if not names:
        return {}
    degrees = np.bincount(edges.ravel(), minlength=num_nodes).astype(np.float64)
    columns = {"degree": np.log1p(degrees)}
    if "neighbour_degree" in names:
        u, v = edges
        total = np.bincount(u, degrees[v], num_nodes) + np.bincount(v, degrees[u], num_nodes)
        columns["neighbour_degree"] = np.log1p(total / np.maximum(degrees, 1))
    if {"clustering", "core"} & set(names):
        import igraph

        graph = igraph.Graph(n=num_nodes, edges=edges.T)
        columns["core"] = np.log1p(np.array(graph.coreness(), np.float64))
        columns["clustering"] = np.array(graph.transitivity_local_undirected(mode="zero"), np.float64)
    return {name: columns[name].astype(np.float32) for name in names}


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
