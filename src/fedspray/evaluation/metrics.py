"""Metrics from counts: sums first, one division at the end. An empty set gives None, never NaN.

*Minority nodes* are those outside the majority class of their own client's training labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray.evaluation.counting import BUCKET_NAMES, PARTS
from fedspray.nn.tree import Message

Json = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    """The counts of all clients that answered, clients on the first axis."""

    confusion: NDArray[np.int64]
    """[K, 3, C, C]: part, true class, predicted class."""
    loss: NDArray[np.float64]
    """[K, 3]: sums."""
    majority: NDArray[np.int64]
    """[K]: -1 where a client has no training node."""

    @classmethod
    def from_message(cls, message: Message) -> Counts:
        """Reads the keys that `Counter.count` writes."""
        return cls(
            message["evaluation.confusion"].numpy().astype(np.int64),
            message["evaluation.loss"].numpy(),
            message["evaluation.majority"].numpy().astype(np.int64),
        )

    def part(self, name: str) -> PartCounts:
        """The counts of train, val or test."""
        index = PARTS.index(name)
        return PartCounts(self.confusion[:, index], self.loss[:, index], self.majority)


@dataclass(frozen=True)
class PartCounts:
    """The counts of one part: [K, C, C], [K], [K]."""

    confusion: NDArray[np.int64]
    loss: NDArray[np.float64]
    majority: NDArray[np.int64]

    def summary(self) -> Json:
        """All pooled metrics and the two accuracies averaged over clients."""
        pooled = self.confusion.sum(axis=0)
        recalls = [_ratio(pooled[c, c], pooled[c].sum()) for c in range(len(pooled))]
        overall, minority = self._correct(None), self._correct(self._minority_rows())
        majority = tuple(a - b for a, b in zip(overall, minority, strict=True))
        majority_accuracy = _ratio(majority[0].sum(), majority[1].sum())
        minority_accuracy = _ratio(minority[0].sum(), minority[1].sum())
        return {
            "overall": _ratio(overall[0].sum(), overall[1].sum()),
            "minority": minority_accuracy,
            "majority": majority_accuracy,
            "balanced": _mean([majority_accuracy, minority_accuracy]),
            "overall_client_mean": _mean([_ratio(*pair) for pair in zip(*overall, strict=True)]),
            "minority_client_mean": _mean([_ratio(*pair) for pair in zip(*minority, strict=True)]),
            "macro_f1": _mean([_f1(pooled, c) for c in range(len(pooled))]),
            "recall": recalls,
            "loss": _ratio(self.loss.sum(), pooled.sum()),
        }

    def by_client(self) -> list[Json]:
        """Each client's own metrics."""
        rows = []
        overall, minority = self._correct(None), self._correct(self._minority_rows())
        for k, confusion in enumerate(self.confusion):
            rows.append(
                {
                    "overall": _ratio(overall[0][k], overall[1][k]),
                    "minority": _ratio(minority[0][k], minority[1][k]),
                    "nodes": int(overall[1][k]),
                    "minority_nodes": int(minority[1][k]),
                    "recall": [_ratio(confusion[c, c], confusion[c].sum()) for c in range(len(confusion))],
                    "loss": _ratio(self.loss[k], confusion.sum()),
                }
            )
        return rows

    def rows(self) -> list[Json]:
        """Each client's counts, to be kept."""
        columns = (self.confusion.tolist(), self.loss.tolist(), self.majority.tolist())
        return [{"confusion": c, "loss": s, "majority": m} for c, s, m in zip(*columns, strict=True)]

    @classmethod
    def of_rows(cls, rows: list[Json]) -> PartCounts:
        """The counts of several clients, from what `rows` gave."""
        return cls(*(np.array([row[name] for row in rows]) for name in ("confusion", "loss", "majority")))

    def _minority_rows(self) -> NDArray[np.bool_]:
        """[K, C]: the classes that are minority classes at each client."""
        classes = np.arange(self.confusion.shape[1])
        return np.asarray((classes[None, :] != self.majority[:, None]) & (self.majority >= 0)[:, None])

    def _correct(self, rows: NDArray[np.bool_] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Correct and all predictions of each client, over the given true classes."""
        mask = np.ones(self.confusion.shape[:2], dtype=np.bool_) if rows is None else rows
        diagonal = np.diagonal(self.confusion, axis1=1, axis2=2)
        return (diagonal * mask).sum(axis=1), (self.confusion.sum(axis=2) * mask).sum(axis=1)


def detail_summary(message: Message) -> Json:
    """Accuracy by local homophily and the AUC, from what `Counter.detail` writes.

    The AUC is one-against-rest, averaged over classes; its pairs are pairs of nodes of the same client, since
    the scores of different personal models are not on one scale.
    """
    right, total = message["evaluation.buckets"].numpy().astype(np.int64).sum(axis=0).T
    ranked, pairs = message["evaluation.ranks"].numpy().sum(axis=0).T
    return {
        "by_homophily": {
            name: {"accuracy": _ratio(r, t), "nodes": int(t)}
            for name, r, t in zip(BUCKET_NAMES, right, total, strict=True)
        },
        "auc": _mean([_ratio(r, p) for r, p in zip(ranked, pairs, strict=True)]),
    }


def _ratio(numerator: float | np.number[Any], denominator: float | np.number[Any]) -> float | None:
    return float(numerator / denominator) if denominator > 0 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _f1(confusion: NDArray[np.int64], c: int) -> float | None:
    """F1 of one class: 2·TP / (true + predicted); None for a class without a node or a prediction."""
    return _ratio(2.0 * confusion[c, c], confusion[c].sum() + confusion[:, c].sum())
