"""A client reports counts about its model's predictions, never the predictions.

Counts of different clients add up, so pooled metrics are exact, wherever they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import GraphBatch
from fedspray.data.minority import is_minority, majority_class
from fedspray.messages import COUNTS, Key, each, total
from fedspray.nn.tree import Message

PARTS = ("train", "val", "test")
"""The second axis of all counts."""

BUCKETS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Lower ends of the local-homophily buckets; the last one includes 1. Nodes without neighbours have their own."""

BUCKET_NAMES = (*(f"{low:.1f}-{low + 0.2:.1f}" for low in BUCKETS), "isolated")

BUDGETS = (0.01, 0.05, 0.10)
"""Shares of a client's test nodes that someone reviews."""

CALIBRATION_BINS = 15
"""Equal steps of confidence."""

_FIGURES = "figures of single clients"


def _count(text: str, reveals: str) -> Key:
    return each(text, _FIGURES, COUNTS, reveals=reveals)


COUNT_KEYS: Mapping[str, Key] = {
    "evaluation.confusion": _count(
        "predictions by part (train, val, test), true class and predicted class",
        "the label distribution of each part, exactly (the sums of its rows), and which classes are mistaken for which",
    ),
    "evaluation.loss": _count("sum of the cross-entropy over each part", "how sure the model is of each part's nodes"),
    "evaluation.majority": _count(
        "the majority class of the training nodes (-1: no training node)", "the most frequent class of the client"
    ),
}
DETAIL_KEYS: Mapping[str, Key] = {
    "evaluation.buckets": _count(
        "correct and all test predictions by local homophily (last: no neighbours)",
        "how many test nodes have neighbours of their own class, or none at all",
    ),
    "evaluation.ranks": _count(
        "per class, pairs of test nodes ranked correctly and all pairs (for the AUC)",
        "the label distribution of the test nodes, and how well they are told apart",
    ),
    "evaluation.precision": _count(
        "per class, sum over its test nodes of the precision at their rank, and their number",
        "the label distribution of the test nodes, and how well they are found",
    ),
    "evaluation.alerts": _count(
        "minority test nodes among the few that look least like the majority, by budget; and all",
        "how many test nodes are outside the client's largest class, and how well they are found",
    ),
    "evaluation.calibration": _count(
        "test nodes by confidence: sum of confidences, correct predictions, all", "how sure the model is of test nodes"
    ),
    "evaluation.round": _count("the round that the client's kept model is from", "in which rounds the client answered"),
}
"""What the report at the end adds."""

OF_ONE_CLIENT = ("evaluation.majority", "evaluation.round")
"""Keys that only make sense for one client."""

SUM_KEYS: Mapping[str, Key] = {
    **{
        name: total(key.text, key.kind, reveals=key.reveals)
        for name, key in {**COUNT_KEYS, **DETAIL_KEYS}.items()
        if name not in OF_ONE_CLIENT
    },
    "evaluation.minority": total(
        "correct and all predictions on minority nodes, by part",
        COUNTS,
        reveals="how many nodes of each part are outside the client's largest class, and how many of them are right",
    ),
    "evaluation.client_means": total(
        "by part: the client's own accuracy on all and on minority nodes, and 1 if it has one",
        reveals="how well the model does at the client",
    ),
}
"""Replaces the counts where only sums over clients are seen."""


def bucket_of(homophily: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N]: the index in `BUCKET_NAMES` of each node's bucket; NaN marks a node without a labelled neighbour."""
    buckets = np.searchsorted(BUCKETS, np.nan_to_num(homophily), side="right") - 1
    buckets[np.isnan(homophily)] = len(BUCKETS)
    return buckets


def blank(counts: Message) -> Message:
    """The counts of clients that say nothing: of no node at all."""
    empty = {name: torch.zeros_like(value) for name, value in counts.items()}
    exact = {"evaluation.majority": -1, "evaluation.round": 0}
    return empty | {name: torch.full_like(empty[name], value) for name, value in exact.items() if name in empty}


class Counter:
    """Counts for the clients of one batch; ``homophily`` [N] is each node's, NaN if undefined."""

    def __init__(self, batch: GraphBatch, homophily: NDArray[np.float64]) -> None:
        self._shape = (batch.num_clients, len(PARTS), batch.num_classes, batch.num_classes)
        owners = batch.rows.client_of
        indices = (batch.train, batch.val, batch.test)
        self._nodes = torch.cat(indices)
        parts = torch.repeat_interleave(torch.arange(len(PARTS)), torch.tensor([len(i) for i in indices]))
        self._labels = batch.labels[self._nodes]
        self._slots = owners[self._nodes] * len(PARTS) + parts
        self._owners, self._test = owners, batch.test
        self._all_labels = batch.labels
        self._majority = majority_class(batch.train_class_counts.numpy())
        self._buckets = torch.from_numpy(bucket_of(homophily))

    def count(self, logits: Tensor, loss_logits: Tensor | None = None) -> Message:
        """Confusion matrices and losses (of ``loss_logits`` if given) of the three parts, from logits [N, C]."""
        chosen = logits[self._nodes]
        num_clients, num_parts, num_classes, _ = self._shape
        cells = (self._slots * num_classes + self._labels) * num_classes + chosen.argmax(dim=1)
        confusion = torch.bincount(cells, minlength=int(np.prod(self._shape))).view(self._shape)
        scored = chosen if loss_logits is None else loss_logits[self._nodes]
        losses = functional.cross_entropy(scored, self._labels, reduction="none").double()
        sums = torch.zeros(num_clients * num_parts, dtype=torch.float64).index_add(0, self._slots, losses)
        return {
            "evaluation.confusion": confusion.to(torch.int32),
            "evaluation.loss": sums.view(num_clients, num_parts),
            "evaluation.majority": torch.from_numpy(self._majority.astype(np.int32)),
        }

    def detail(self, logits: Tensor) -> Message:
        """What `DETAIL_KEYS` lists but the round, on the test nodes."""
        labels, owners = self._all_labels[self._test], self._owners[self._test]
        scores = logits[self._test]
        num_clients, num_buckets = self._shape[0], len(BUCKETS) + 1
        slots = owners * num_buckets + self._buckets[self._test]
        correct = scores.argmax(dim=1) == labels
        totals = torch.bincount(slots, minlength=num_clients * num_buckets)
        rights = torch.bincount(slots[correct], minlength=num_clients * num_buckets)
        buckets = torch.stack([rights, totals], dim=1).view(num_clients, num_buckets, 2)
        found: dict[str, list[NDArray[np.float64]]] = {"ranks": [], "precision": [], "alerts": [], "calibration": []}
        for k, majority in enumerate(self._majority):
            probabilities = scores[owners == k].double().softmax(dim=1).numpy()
            own = labels[owners == k].numpy()
            found["ranks"].append(_ranked_pairs(probabilities, own))
            found["precision"].append(_precisions(probabilities, own))
            found["alerts"].append(_alerts(probabilities, own, int(majority)))
            found["calibration"].append(_calibration(probabilities, own))
        sums = {f"evaluation.{name}": torch.from_numpy(np.stack(rows)) for name, rows in found.items()}
        return {"evaluation.buckets": buckets.to(torch.int32), **sums}


def _ranked_pairs(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """[C, 2]: for each class, (member, other) pairs that its probability ranks rightly (ties half), and all."""
    rows = []
    for c, scores in enumerate(probabilities.T):
        members, others = scores[labels == c], np.sort(scores[labels != c])
        below = np.searchsorted(others, members, side="left").sum()
        up_to = np.searchsorted(others, members, side="right").sum()
        rows.append([(below + up_to) / 2, len(members) * len(others)])
    return np.array(rows, dtype=np.float64)


def _precisions(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """[C, 2]: for each class, over its members: the share of members among nodes not ranked below; and how many."""
    rows = []
    for c, scores in enumerate(probabilities.T):
        members, everyone = np.sort(scores[labels == c]), np.sort(scores)
        not_below = [len(nodes) - np.searchsorted(nodes, members, side="left") for nodes in (members, everyone)]
        rows.append([(not_below[0] / not_below[1]).sum(), len(members)])
    return np.array(rows, dtype=np.float64)


def _alerts(probabilities: NDArray[np.float64], labels: NDArray[np.int64], majority: int) -> NDArray[np.float64]:
    """[B+1]: minority nodes among those with the least probability of the majority class, by budget; and all.

    Nodes that are equally likely to be the last within a budget count with their share of what is left of it.
    """
    sought = is_minority(labels, majority)
    found = []
    for budget in BUDGETS if sought.any() else ():
        scores = probabilities[:, majority]
        count = math.ceil(round(budget * len(scores), 9))
        last = np.partition(scores, count - 1)[count - 1]
        tied = scores == last
        found.append(sought[scores < last].sum() + (count - (scores < last).sum()) * sought[tied].mean())
    return np.array([*(found or [0.0] * len(BUDGETS)), sought.sum()], dtype=np.float64)


def _calibration(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """[15, 3]: by step of confidence, the sum of confidences, correct predictions and all."""
    confidence = probabilities.max(axis=1, initial=0.0)
    step = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    columns = (confidence, probabilities.argmax(axis=1) == labels, np.ones_like(confidence))
    sums = [np.bincount(step, weights=column, minlength=CALIBRATION_BINS) for column in columns]
    return np.stack(sums, axis=1).astype(np.float64)  # without a node they are whole numbers
