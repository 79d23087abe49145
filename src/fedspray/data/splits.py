"""Splits into training, validation and test nodes, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedspray.display import line
from fedspray.errors import InputError, unknown
from fedspray.seeds import generator

if TYPE_CHECKING:
    from fedspray.data.graph import Graph

SPLIT = "40/30/30"
"""Percent of the labelled nodes for training, validation and test: the paper's."""

SCOPES = ("client", "graph")
"""Whether every client draws its own split, or one is drawn on the graph that the clients were cut from."""


@dataclass(frozen=True, eq=False)
class Split:
    """Which nodes of a client are for training, validation and test: three disjoint masks [N]."""

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    test: NDArray[np.bool_]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many nodes each part has."""
        return int(self.train.sum()), int(self.val.sum()), int(self.test.sum())

    def __repr__(self) -> str:
        train, val, test = self.sizes
        return line(self, f"{train:,} train", f"{val:,} val", f"{test:,} test")


@dataclass(frozen=True)
class SplitRule:
    """How splits are drawn."""

    split: str = SPLIT
    split_scope: str = SCOPES[0]

    def __post_init__(self) -> None:
        if self.split_scope not in SCOPES:
            raise unknown("split-scope", str(self.split_scope), SCOPES)
        _ = self.shares

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> SplitRule:
        """From the settings of a federation."""
        return cls(**{name: settings[name] for name in ("split", "split_scope") if settings.get(name) is not None})

    def settings(self) -> dict[str, str]:
        """The non-default values, as a federation stores them."""
        return {name: value for name, value in vars(self).items() if value != getattr(SplitRule, name)}

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the labelled nodes, for training, validation and test."""
        try:
            train, val, test = (float(part) for part in str(self.split).split("/"))
        except ValueError:
            train = val = test = -1.0
        if not (train > 0 and val >= 0 and test >= 0 and abs(train + val + test - 100) < 1e-6):
            raise InputError(
                f"split is {self.split!r}, but must be three percentages that add up to 100, such as {SPLIT}: "
                "for training (above 0), validation and test"
            )
        return train / 100, val / 100, test / 100

    def cut(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Nodes in a random order as those for training (at least one, if there is any), validation and test."""
        train, val, _ = self.shares
        num_train = min(len(order), max(1, round(train * len(order))))
        num_val = min(len(order) - num_train, round(val * len(order)))
        return np.split(order, [num_train, num_train + num_val])

    def draw(self, graphs: Mapping[str, Graph], node_ids: Sequence[NDArray[np.int64]], seed: int) -> list[Split]:
        """The split of every client; ``node_ids`` are each node's index in the graph that they were cut from."""
        if self.split_scope == "client":
            return [draw_split(graph, seed, name, self) for name, graph in graphs.items()]
        labelled = [graph.labelled for graph in graphs.values()]
        everyone = np.concatenate([ids[known] for ids, known in zip(node_ids, labelled, strict=True)])
        if len(np.unique(everyone)) < len(everyone):
            raise InputError("split-scope is 'graph', but these clients were not cut from one graph: use 'client'")
        parts = self.cut(generator(seed, "split", "whole graph").permutation(np.sort(everyone)))
        return [
            Split(*(known & np.isin(ids, part) for part in parts))
            for ids, known in zip(node_ids, labelled, strict=True)
        ]


USUAL = SplitRule()


def draw_split(graph: Graph, seed: int, client_name: str, rule: SplitRule = USUAL) -> Split:
    """Splits a client's labelled nodes at random.

    The draw depends only on the seed and the client's name, so a client on its own machine
    gets the same split as in the whole federation. A client with any label has a training node.
    """
    if rule.split_scope != "client":
        raise InputError(f"split-scope is {rule.split_scope!r}, but a client alone can only draw its own split")
    order = generator(seed, "split", client_name).permutation(np.flatnonzero(graph.labelled))
    return Split(*(np.isin(np.arange(graph.num_nodes), part) for part in rule.cut(order)))
