"""Warnings before training about data that would train without an error but be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.data.graph import UNLABELLED
from fedspray.display import count, cut

if TYPE_CHECKING:
    from fedspray.data.federation import Client, Federation

WILD_RATIO, WILD_SPREAD = 100.0, 1_000.0
"""A feature is on another scale if its spread is this many times the median, or this large."""
GIVEN_AWAY = 0.05
"""A feature leaks the label if it leaves less than this share of the errors of guessing the largest class."""
MOST_NODES, MOST_BINS, FEWEST_NODES = 20_000, 50, 20
SHOWN = 5
"""Features named in a warning."""

SECONDS, MILLISECONDS, DATES = (1e8, 4.1e9), (1e11, 4.1e12), (19_000_101, 21_001_231)
"""Ranges of numbers that are time stamps (1973 to 2099), or dates written as one number."""


class TrapWarning(UserWarning):
    """A trap, said by the functions of the Python API."""


@dataclass(frozen=True)
class Trap:
    """Something that would silently go wrong."""

    kind: str
    """One of: scale, constant, time, leak, first class, phantom class, alike classes, lone class, untrained class,
    empty split."""
    sentence: str


def find_traps(federation: Federation) -> list[Trap]:
    """Looks at features, labels and splits of all clients together."""
    clients = federation.clients
    return [*_feature_traps(clients), *_class_traps(clients), *_split_traps(clients)]


def looks_like_time(values: NDArray[Any]) -> bool:
    """Whether numbers are time stamps, or dates written as 20241231, rather than amounts; zeros may be missing ones."""
    present = values[np.isfinite(values) & (values != 0)]
    if len(present) < 2 or present.min() == present.max() or (present != np.floor(present)).any():
        return False
    low, high = float(present.min()), float(present.max())
    if any(start <= low and high <= end for start, end in (SECONDS, MILLISECONDS)):
        return True
    return bool(DATES[0] <= low and high <= DATES[1] and _is_date(present).all())


def gives_away(codes: NDArray[np.int64], labels: NDArray[np.int64]) -> bool:
    """Whether the class follows from a code: guessing each code's largest class leaves hardly any error."""
    known = labels != UNLABELLED
    if known.sum() < FEWEST_NODES:
        return False
    groups, classes = codes[known] - codes[known].min(), labels[known]
    table = np.zeros((int(groups.max()) + 1, int(classes.max()) + 1))
    np.add.at(table, (groups, classes), 1)
    return _is_leak(table.max(axis=1).sum(), table.sum(axis=0).max(), len(classes))


def _is_leak(right: float, majority: float, total: int) -> bool:
    return bool(total - majority >= 2 and total - right < GIVEN_AWAY * (total - majority))


def _is_date(values: NDArray[Any]) -> NDArray[np.bool_]:
    numbers = values.astype(np.int64)
    month, day = numbers // 100 % 100, numbers % 100
    return np.asarray((month >= 1) & (month <= 12) & (day <= 32))  # float32 has every second number only


# ---- features -----------------------------------------------------------------------------------


def _feature_traps(clients: tuple[Client, ...]) -> Iterator[Trap]:
    graphs = [client.graph for client in clients]
    if not graphs[0].num_features:
        return
    sparse = any(graph.is_sparse for graph in graphs)
    stack: Any = sp.vstack if sparse else np.concatenate
    step = max(1, sum(graph.num_nodes for graph in graphs) // MOST_NODES)
    matrix = stack([graph.features[::step] for graph in graphs])
    labels = np.concatenate([graph.labels[::step] for graph in graphs])
    given = next((graph.feature_names for graph in graphs if graph.feature_names is not None), None)
    names = given or tuple(f"{i}" for i in range(graphs[0].num_features))
    spread = _spread(matrix)
    middle = float(np.median(spread))
    wild = (spread > WILD_SPREAD) | ((spread > WILD_RATIO * middle) & (spread > 10))
    if wild.any():
        yield Trap(
            "scale",
            f"{_named(names, wild)} {_on(wild, 'is', 'are')} on a scale of {spread[wild].max():,.0f}, while the median "
            f"feature has {middle:.3g}: scale {_on(wild, 'it', 'them')}, or nothing else will matter",
        )
    if sparse:
        leaks = _sparse_leaks(sp.csc_array(matrix), labels)
    else:
        low, high = (np.stack([pick(graph.dense_features(), axis=0) for graph in graphs]) for pick in (np.min, np.max))
        marks = np.array(["=" in name or name.endswith((" is another", " is missing")) for name in names])
        constant = (low.min(axis=0) == high.max(axis=0)) & ~marks  # an unused word of a vocabulary is no mistake
        if constant.any():
            yield Trap("constant", f"{_named(names, constant)} {_on(constant, 'has', 'have')} one value for every node")
        late = np.array([looks_like_time(column) for column in matrix.T])
        if late.any():
            yield Trap("time", f"{_named(names, late)} {_on(late, 'looks', 'look')} like time stamps used as numbers")
        leaks = _dense_leaks(matrix, labels)
    if leaks.any():
        yield Trap("leak", f"{_named(names, leaks)} {_on(leaks, 'gives', 'give')} the label away: is it known in time?")


def _spread(matrix: Any) -> NDArray[np.float64]:
    """[F]: standard deviations."""
    if not sp.issparse(matrix):
        return np.asarray(matrix.std(axis=0, dtype=np.float64))
    means = np.asarray(matrix.mean(axis=0), np.float64).ravel()
    squares = np.asarray(matrix.astype(np.float64).power(2).mean(axis=0)).ravel()
    return np.sqrt(np.maximum(squares - means**2, 0))


def _dense_leaks(matrix: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    chosen = np.flatnonzero(labels != UNLABELLED)
    found = np.zeros(matrix.shape[1], np.bool_)
    bins = min(MOST_BINS, len(chosen) // 10)
    if bins < 2:
        return found
    for place in range(matrix.shape[1]):
        values = matrix[chosen, place]
        edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1], method="nearest"))
        found[place] = gives_away(np.searchsorted(edges, values), labels[chosen])
    return found


def _sparse_leaks(matrix: Any, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    known = labels != UNLABELLED
    total = int(known.sum())
    if total < FEWEST_NODES:
        return np.zeros(matrix.shape[1], np.bool_)
    one_hot = sp.csr_array(
        (np.ones(total), (labels[known], np.flatnonzero(known))), shape=(int(labels.max()) + 1, len(labels))
    )
    present = (one_hot @ (matrix != 0).astype(np.float64)).toarray()  # [C, F]: nodes of each class with the feature
    sizes = np.bincount(labels[known])[:, None]
    right = present.max(axis=0) + (sizes - present).max(axis=0)
    return np.array([_is_leak(number, sizes.max(), total) for number in right])


def _named(names: tuple[str, ...], chosen: NDArray[np.bool_]) -> str:
    places = np.flatnonzero(chosen)
    listed = ", ".join(cut(repr(names[place]), 60) for place in places[:SHOWN])
    more = f" and {len(places) - SHOWN:,} more" if len(places) > SHOWN else ""
    return f"feature{'s' if len(places) > 1 else ''} {listed}{more}"


def _on(chosen: NDArray[np.bool_], one: str, many: str) -> str:
    return one if chosen.sum() == 1 else many


# ---- classes and splits -------------------------------------------------------------------------


def _class_traps(clients: tuple[Client, ...]) -> Iterator[Trap]:
    counts = np.sum([client.graph.label_counts() for client in clients], axis=0)
    if not counts.any():
        return
    names = next((c.graph.class_names for c in clients if c.graph.class_names is not None), None)
    empty = np.flatnonzero(counts == 0)
    first = int(np.argmax(counts > 0))
    if first and names is None:
        yield Trap("first class", f"labels start at {first}, but classes count from 0: class 0 has no node")
        empty = empty[empty > first]
    if len(empty):
        yield Trap("phantom class", f"no node of {_classes(empty, names)}: nothing to learn or test")
    yield from _label_traps(counts, names)
    trained = np.sum([client.train_class_counts for client in clients], axis=0)
    lacking = np.flatnonzero((counts > 0) & (trained == 0))
    if trained.any() and len(lacking):
        yield Trap("untrained class", f"no training node of {_classes(lacking, names)}: never learned")


def _label_traps(counts: NDArray[np.int64], names: Sequence[str] | None) -> Iterator[Trap]:
    """Labels that were mistyped: they are classes of their own."""
    alike: dict[str, list[int]] = {}
    for place, name in enumerate(names or ()):
        alike.setdefault("".join(name.split()).casefold(), []).append(place)
    for places in alike.values():
        if len(places) > 1:
            yield Trap("alike classes", f"{_classes(places, names)} differ only in case or spaces: are they one class?")
    lone = np.flatnonzero(counts == 1)
    if len(lone) and counts.sum() >= FEWEST_NODES:
        each = "each " if len(lone) > 1 else ""
        yield Trap("lone class", f"only one node {each}of {_classes(lone, names)}: is its label mistyped?")


def _split_traps(clients: tuple[Client, ...]) -> Iterator[Trap]:
    labelled = [client for client in clients if client.graph.labelled.any()]
    for part, title, why in (
        ("train", "training", "they learn nothing"),
        ("val", "validation", "they can't help choose a round"),
        ("test", "test", "they have no results"),
    ):
        without = [client.name for client in labelled if not getattr(client.split, part).any()]
        if labelled and len(without) == len(labelled):
            yield Trap("empty split", f"no client has a {title} node: {why}")
        elif without:
            listed = ", ".join(without[:SHOWN]) + (" …" if len(without) > SHOWN else "")
            yield Trap("empty split", f"{count(len(without), 'client')} ({listed}) without a {title} node: {why}")


def _classes(places: Sequence[int] | NDArray[np.int64], names: Sequence[str] | None) -> str:
    """``class 2``, or ``classes 'a', 'b' and 3 more``."""
    listed = ", ".join(str(place) if names is None else cut(repr(names[place]), 60) for place in places[:SHOWN])
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"{'class' if len(places) == 1 else 'classes'} {listed}{more}"
