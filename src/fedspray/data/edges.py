"""Edges, from pairs as they were given to canonical ones: each undirected edge once as (u < v), in sorted order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedspray.errors import InputError

_AT_ONCE = 1 << 22
"""Edges that are worked on at a time, where there may be many millions."""


@dataclass(frozen=True)
class Cleaning:
    """What was tidied when the edges were read."""

    self_loops: int = 0
    """Edges from a node to itself, dropped."""
    duplicates: int = 0
    """Repetitions of an edge in the same direction, merged."""
    one_way: int = 0
    """Edges given in one direction only, made undirected."""


def canonical_edges(edges: ArrayLike, num_nodes: int) -> tuple[NDArray[np.int64], Cleaning]:
    """Canonical edges [2, E] from pairs of nodes, and what was tidied; refuses nodes that are not there."""
    pairs = as_integers("edges", edges)
    if pairs.size == 0:
        pairs = pairs.reshape(2, 0)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise InputError(f"edges have shape {list(pairs.shape)}, but must be [2, E]")
    outside = (pairs < 0) | (pairs >= num_nodes)
    if outside.any():
        raise InputError(f"edges contain node {pairs[outside][0]}, but nodes are 0 to {num_nodes - 1}")
    u, v = pairs[:, pairs[0] != pairs[1]]
    return tidy_edges(u * num_nodes + v, pairs.shape[1] - len(u), num_nodes)


def tidy_edges(
    keys: NDArray[np.int64], self_loops: int, num_nodes: int, mutual: bool = False
) -> tuple[NDArray[np.int64], Cleaning]:
    """Canonical edges [2, E], and what was tidied; needs little more memory than the result.

    ``keys`` are ``u · N + v`` of every edge between two different nodes, and are changed in place; ``mutual`` keeps
    only edges that are given in both directions.
    """
    total = len(keys)
    directed = distinct(keys)
    num_directed = len(directed)
    for start in range(0, len(directed), _AT_ONCE):
        part = directed[start : start + _AT_ONCE]
        part[:] = edge_keys(*np.divmod(part, num_nodes), num_nodes)
    if mutual:
        directed.sort()
        undirected = directed[:-1][directed[1:] == directed[:-1]]
    else:
        undirected = distinct(directed)
    one_way = 0 if mutual else 2 * len(undirected) - num_directed
    cleaning = Cleaning(self_loops=self_loops, duplicates=total - num_directed, one_way=one_way)
    return pairs_of(undirected, num_nodes), cleaning


def weigh_edges(
    pairs: NDArray[np.int64], weights: NDArray[np.float64], edges: NDArray[np.int64], num_nodes: int
) -> NDArray[np.float64]:
    """[E]: the weights of canonical ``edges`` from those of the ``pairs`` that made them; see `Graph.from_arrays`."""
    chosen = pairs[0] != pairs[1]
    u, v = pairs[:, chosen]
    known, keys = edge_keys(edges[0], edges[1], num_nodes), edge_keys(u, v, num_nodes)
    place = np.searchsorted(known, keys)
    inside = (place < len(known)) & (known[np.minimum(place, len(known) - 1)] == keys) if len(known) else place < 0
    there = u < v
    one, other = (np.zeros(len(known)) for _ in range(2))
    np.add.at(one, place[inside & there], weights[chosen][inside & there])
    np.add.at(other, place[inside & ~there], weights[chosen][inside & ~there])
    return one if np.allclose(one, other, rtol=1e-9, atol=0) else one + other


def edge_keys(u: NDArray[np.int64], v: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """One number for each edge, whichever way it points; in the order of (smaller end, larger end)."""
    return np.minimum(u, v) * num_nodes + np.maximum(u, v)


def pairs_of(keys: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """[2, E]: the edges that `edge_keys` numbered."""
    pairs = np.empty((2, len(keys)), np.int64)
    np.divmod(keys, max(1, num_nodes), out=(pairs[0], pairs[1]))
    return pairs


def distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted, each once; in place. NumPy's `unique` hashes, which takes ten times longer for millions of edges."""
    keys.sort()
    kept = min(1, len(keys))
    for start in range(1, len(keys), _AT_ONCE):  # what is kept never overtakes what is read
        part = keys[start : start + _AT_ONCE]
        fresh = part[part != keys[start - 1 : start - 1 + len(part)]]
        keys[kept : kept + len(fresh)] = fresh
        kept += len(fresh)
    return keys[:kept]


def check_weights(weights: NDArray[np.float64] | None, num_edges: int) -> None:
    """Refuses weights that are not one positive number for each edge."""
    if weights is None:
        return
    if weights.shape != (num_edges,):
        raise InputError(f"edge weights have shape {list(weights.shape)}, but there must be one for {num_edges} edges")
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        raise InputError(f"edge {int(np.argmax(wrong))} has weight {weights[wrong][0]}, but weights must be above 0")


def as_integers(what: str, values: ArrayLike, allowed: str = "whole numbers") -> NDArray[np.int64]:
    """``values`` as int64, copied; refuses all but whole numbers. ``what`` and ``allowed`` are for the message."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} are not a regular array: all rows must be equally long") from None
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        kind = "text" if array.dtype.kind in "US" else f"of type {array.dtype}"
        raise InputError(f"{what} are {kind}, but must be {allowed}")
    with np.errstate(invalid="ignore"):  # NaN and inf are caught by the comparison
        whole = array.astype(np.int64)
    wrong = np.flatnonzero(np.asarray(whole != array).ravel())
    if len(wrong):
        raise InputError(f"{what} contain {array.ravel()[wrong[0]]}, but must be {allowed}")
    return whole
