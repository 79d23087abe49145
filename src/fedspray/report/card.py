"""The report card: which method is right about which client's nodes, by class and local homophily.

Two methods are compared on the very same test nodes under the same seeds, node by node. All counts are sums over
seeds; for intervals, a node that several seeds tested counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedspray.evaluation.counting import BUCKET_NAMES
from fedspray.evaluation.intervals import Estimate, paired_difference, wilson
from fedspray.report.methods import Contender
from fedspray.runs.nodes import NodeTable

GROUPS = ("minority", "majority")
_VIEWS = (*GROUPS, None)
"""What nodes are counted by; None is all of them, since a client's majority class may change with the split."""


@dataclass(frozen=True)
class Tally:
    """Some test nodes under a method and, if there is one, under its reference."""

    nodes: int
    """Distinct nodes."""
    both: int
    """Predictions that are right under both."""
    gained: int
    """Predictions that are right under the method only."""
    lost: int
    """Predictions that are right under the reference only."""
    neither: int

    @property
    def tests(self) -> int:
        """Predictions: every node once for each seed that tested it."""
        return self.both + self.gained + self.lost + self.neither

    @property
    def accuracy(self) -> Estimate | None:
        """The method's accuracy."""
        return wilson((self.both + self.gained) / self.tests, self.nodes) if self.tests else None

    @property
    def reference_accuracy(self) -> Estimate | None:
        """The reference's."""
        return wilson((self.both + self.lost) / self.tests, self.nodes) if self.tests else None

    @property
    def difference(self) -> Estimate | None:
        """The first minus the second."""
        if not self.tests:
            return None
        return paired_difference(self.both, self.gained, self.lost, self.neither, self.nodes)


@dataclass(frozen=True, eq=False)
class Card:
    """Counts of one method against its reference."""

    method: str
    reference: str | None
    """None: the card shows accuracies, not differences (and `lost` and `neither` are all wrong ones)."""
    seeds: tuple[int, ...]
    """The seeds that both were run with."""
    counts: NDArray[np.int64]
    """[3, K, C, B, 5]: minority, majority or all, client, class, bucket, and the fields of `Tally`."""
    coarse: bool = False
    """Whether only sums over a client's classes and buckets are known; they are in the first of each."""

    def cell(
        self,
        group: str | None = "minority",
        client: int | None = None,
        label: int | None = None,
        bucket: int | None = None,
    ) -> Tally:
        """The nodes with these properties; None is any."""
        keys = (_VIEWS.index(group), client, label, bucket)
        chosen = self.counts[tuple(slice(None) if key is None else slice(key, key + 1) for key in keys)]
        return Tally(*map(int, chosen.sum(axis=(0, 1, 2, 3))))

    def verdicts(self, group: str = "minority") -> dict[str, list[int]]:
        """The clients that gain, lose or are unclear, the largest differences first."""
        found: dict[str, list[tuple[float, int]]] = {"gain": [], "loss": [], "unclear": []}
        for k in range(self.counts.shape[1]):
            difference = self.cell(group, k).difference
            if difference is not None:
                found[difference.verdict].append((-abs(difference.value), k))
        return {name: [k for _, k in sorted(pairs)] for name, pairs in found.items()}


def make_card(method: Contender, reference: Contender | None, num_clients: int, num_classes: int) -> Card | None:
    """The card of a method: beside a reference, or without one its own accuracies.

    None if the runs did not keep their nodes, or no test node is common to both.
    """
    shape = (len(_VIEWS), num_clients, num_classes, len(BUCKET_NAMES))
    own = {seed.seed: seed.nodes for seed in method.seeds if seed.nodes is not None}
    base = own if reference is None else {s.seed: s.nodes for s in reference.seeds if s.nodes is not None}
    seeds = tuple(seed for seed in own if seed in base and (own[seed].test & base[seed].test).any())
    if not seeds:
        return None
    parts = [_tested(own[seed], base[seed], shape) for seed in seeds]
    slots, first, second, names = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    size = int(np.prod(shape))
    # A node keeps its class and its neighbours under every seed, so in each of the views it lies in one cell.
    distinct = np.unique(np.stack([slots, names]), axis=1)[0]
    rights = (first & second, first & ~second, ~first & second, ~first & ~second)
    columns = [np.bincount(each, minlength=size) for each in (distinct, *(slots[right] for right in rights))]
    label = None if reference is None else reference.label
    return Card(method.label, label, seeds, np.stack(columns, axis=1).reshape(*shape, len(fields(Tally))))


def count_card(method: Contender, clients: Sequence[str]) -> Card:
    """The card of a method of which only counts are known, as between organisations: accuracies of each client.

    Which nodes several seeds have in common is not known; there are at least as many as in the largest test set.
    """
    counts = np.zeros((len(_VIEWS), len(clients), 1, len(BUCKET_NAMES), len(fields(Tally))), dtype=np.int64)
    for seed in method.seeds:
        for k, row in enumerate(seed.metrics["clients"].get(client) for client in clients):
            if row is None:  # the client did not answer at the end
                continue
            minority = row["minority_nodes"], round((row["minority"] or 0) * row["minority_nodes"])
            every = row["nodes"], round((row["overall"] or 0) * row["nodes"])
            majority = every[0] - minority[0], every[1] - minority[1]
            for view, (nodes, right) in enumerate((minority, majority, every)):
                cell = counts[view, k, 0, 0]
                cell[:] = max(cell[0], nodes), cell[1] + right, 0, 0, cell[4] + nodes - right
    return Card(method.label, None, tuple(seed.seed for seed in method.seeds), counts, coarse=True)


def _tested(
    own: NodeTable, base: NodeTable, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """For each node that both tested: its cell, whether each is right, and its place in the table, which names it.

    Every node is there twice: in its group, and among all.
    """
    tested = np.flatnonzero(own.test & base.test)
    rows = np.concatenate([tested, tested])
    group = np.where(own.minority[tested], 0, 1)
    view = np.concatenate([group, np.full(len(tested), _VIEWS.index(None))])
    where = (view, own.client[rows], own.label[rows], own.bucket[rows])
    return np.ravel_multi_index(where, shape), own.correct[rows], base.correct[rows], rows
