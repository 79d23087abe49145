"""Metrics: each is one function from counts that clients send to a number, and this file is the list of them.

Sums first, one division at the end; an empty set gives None, never NaN. Whatever is declared with `metric` here is in
results, tables, pages and the choices of ``--selection`` and ``--criterion``. *Minority nodes* are those outside the
majority class of their own client's training labels (`fedspray.data.minority`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedspray.data.minority import is_minority
from fedspray.evaluation.counting import BUCKET_NAMES, BUDGETS, OF_ONE_CLIENT, PARTS
from fedspray.files import Json
from fedspray.nn.tree import Message

Pair = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Counts:
    """The counts of all clients that answered, clients on the first axis."""

    confusion: NDArray[np.int64]
    """[K, 3, C, C]: part, true class, predicted class."""
    loss: NDArray[np.float64]
    """[K, 3]: sums."""
    majority: NDArray[np.int64]
    """[K]: -1 where a client has no training node."""
    detail: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What `Counter.detail` writes, in the report at the end: of test nodes."""
    together: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Where clients were added up: what the sums of the others do not tell, by part."""

    @classmethod
    def from_message(cls, message: Message) -> Counts:
        """Reads the keys that `Counter` writes."""
        arrays = {name.removeprefix("evaluation."): value.numpy() for name, value in message.items()}
        confusion, loss, majority = (arrays.pop(name) for name in ("confusion", "loss", "majority"))
        return cls(confusion.astype(np.int64), loss, majority.astype(np.int64), arrays)

    def part(self, name: str) -> PartCounts:
        """The counts of train, val or test."""
        index = PARTS.index(name)
        detail = self.detail if name == "test" else {}
        together = {key: value[0, index] for key, value in self.together.items()}
        return PartCounts(self.confusion[:, index], self.loss[:, index], self.majority, detail, together)

    def summands(self) -> Message:
        """What clients send where counts are only added up: `SUM_KEYS`, [K, …], in double precision."""
        parts = [self.part(name) for name in PARTS]
        pairs = np.stack([np.stack([part.all_nodes, part.minority_nodes]) for part in parts])  # [3, 2, 2, K]
        right, total = pairs[:, :, 0], pairs[:, :, 1]
        means = np.stack([right / np.maximum(total, 1), total > 0], axis=2)  # [3, 2, 2, K]
        found = {
            "confusion": self.confusion,
            "loss": self.loss,
            "minority": np.moveaxis(pairs[:, 1], -1, 0),
            "client_means": np.moveaxis(means, -1, 0),
            **{name: value for name, value in self.detail.items() if f"evaluation.{name}" not in OF_ONE_CLIENT},
        }
        return {f"evaluation.{name}": torch.from_numpy(value.astype(np.float64)) for name, value in found.items()}

    @classmethod
    def of_sums(cls, sums: Message) -> Counts:
        """The counts of all clients together, from the sums of their `summands`."""
        arrays = {name.removeprefix("evaluation."): value[None].numpy() for name, value in sums.items()}
        apart = {name: arrays.pop(name) for name in ("minority", "client_means")}
        confusion = np.rint(arrays.pop("confusion")).astype(np.int64)
        return cls(confusion, arrays.pop("loss"), np.full(1, -1), arrays, apart)


@dataclass(frozen=True)
class PartCounts:
    """The counts of one part: [K, C, C], [K], [K]."""

    confusion: NDArray[np.int64]
    loss: NDArray[np.float64]
    majority: NDArray[np.int64]
    detail: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    together: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Where clients were added up, so that K is 1 and stands for all: ``minority`` [2], ``client_means`` [2, 2]."""

    def summary(self) -> Json:
        """All metrics that these counts suffice for, and the recall of each class."""
        pooled = self.pooled
        return {
            **{name: each.value(self) for name, each in METRICS.items() if self.detail or not each.closing},
            "recall": [_ratio(pooled[c, c], pooled[c].sum()) for c in range(len(pooled))],
        }

    def by_client(self) -> list[Json]:
        """Each client's own metrics; none where clients were added up."""
        rows = []
        for k, confusion in enumerate(() if self.together else self.confusion):
            rows.append(
                {
                    "overall": _ratio(*(count[k] for count in self.all_nodes)),
                    "minority": _ratio(*(count[k] for count in self.minority_nodes)),
                    "nodes": int(self.all_nodes[1][k]),
                    "minority_nodes": int(self.minority_nodes[1][k]),
                    "recall": [_ratio(confusion[c, c], confusion[c].sum()) for c in range(len(confusion))],
                    "loss": _ratio(self.loss[k], confusion.sum()),
                }
            )
            if self.detail:
                rows[-1] |= {name: each.value(self._client(k)) for name, each in METRICS.items() if each.closing}
        return rows

    def rows(self) -> list[Json]:
        """Each client's counts, to be kept."""
        columns = (self.confusion.tolist(), self.loss.tolist(), self.majority.tolist())
        return [{"confusion": c, "loss": s, "majority": m} for c, s, m in zip(*columns, strict=True)]

    @classmethod
    def of_rows(cls, rows: list[Json]) -> PartCounts:
        """The counts of several clients, from what `rows` gave."""
        confusion, loss, majority = (np.array([r[name] for r in rows]) for name in ("confusion", "loss", "majority"))
        return cls(confusion, loss, majority)

    @cached_property
    def pooled(self) -> NDArray[np.int64]:
        """[C, C]: the confusion matrix of all clients."""
        return np.asarray(self.confusion.sum(axis=0))

    @cached_property
    def all_nodes(self) -> Pair:
        """Correct and all predictions of each client, [K] and [K]."""
        return self._correct(np.ones(self.confusion.shape[:2], dtype=np.bool_))

    @cached_property
    def minority_nodes(self) -> Pair:
        """The same of minority nodes."""
        if self.together:
            right, total = np.rint(self.together["minority"]).astype(np.int64)
            return right[None], total[None]
        classes = np.arange(self.confusion.shape[1])
        return self._correct(is_minority(classes[None, :], self.majority[:, None]))

    def client_mean(self, pair: str) -> float | None:
        """The mean of the clients' own accuracies on ``all_nodes`` or ``minority_nodes``, over those that have one."""
        if self.together:
            return _ratio(*self.together["client_means"][("all_nodes", "minority_nodes").index(pair)])
        return _mean([_ratio(*own) for own in zip(*getattr(self, pair), strict=True)])

    def sums(self, name: str) -> NDArray[Any]:
        """What the clients sent under a name of `DETAIL_KEYS`, added up."""
        return np.asarray(self.detail[name].sum(axis=0))

    def _correct(self, mask: NDArray[np.bool_]) -> Pair:
        """Over the true classes in ``mask`` [K, C]."""
        diagonal = np.diagonal(self.confusion, axis1=1, axis2=2)
        return (diagonal * mask).sum(axis=1), (self.confusion.sum(axis=2) * mask).sum(axis=1)

    def _client(self, k: int) -> PartCounts:
        detail = {name: value[k : k + 1] for name, value in self.detail.items()}
        own = slice(k, k + 1)
        return PartCounts(self.confusion[own], self.loss[own], self.majority[own], detail)


Value = Callable[[PartCounts], float | None]


# ---- the metrics ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A number about predictions."""

    name: str
    title: str
    """For the head of a column."""
    description: str
    """One line: what it is of."""
    value: Value
    smaller_is_better: bool = False
    closing: bool = False
    """It needs what clients report once, at the end, about test nodes."""
    percent: bool = True
    """It is a share, and shown in percent."""
    headline: bool = False
    """It is a column of the report's first table."""

    def score(self, value: float | None) -> float | None:
        """Larger is better."""
        return value if value is None or not self.smaller_is_better else -value


METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order of tables."""


def metric(title: str, description: str, **more: bool) -> Callable[[Value], Value]:
    """Declares a metric: a function of counts; its name is the key in results."""

    def declare(value: Value) -> Value:
        METRICS[value.__name__] = Metric(value.__name__, title, description, value, **more)
        return value

    return declare


@metric("overall", "accuracy on all nodes", headline=True)
def overall(counts: PartCounts) -> float | None:
    """Correct predictions / nodes."""
    return _pooled_ratio(*counts.all_nodes)


@metric("minority", "accuracy on nodes outside their client's majority class", headline=True)
def minority(counts: PartCounts) -> float | None:
    """The same over minority nodes."""
    return _pooled_ratio(*counts.minority_nodes)


@metric("majority", "accuracy on nodes of their client's majority class", headline=True)
def majority(counts: PartCounts) -> float | None:
    """The same over all others."""
    right, total = (a - b for a, b in zip(counts.all_nodes, counts.minority_nodes, strict=True))
    return _pooled_ratio(right, total)


@metric("balanced", "mean of the accuracies on majority and on minority nodes")
def balanced(counts: PartCounts) -> float | None:
    """One of them alone if the other does not exist."""
    return _mean([majority(counts), minority(counts)])


@metric("overall, mean of clients", "mean of the clients' own accuracies")
def overall_client_mean(counts: PartCounts) -> float | None:
    """Over clients that have a node."""
    return counts.client_mean("all_nodes")


@metric("minority, mean of clients", "mean of the clients' own accuracies on minority nodes")
def minority_client_mean(counts: PartCounts) -> float | None:
    """Over clients that have a minority node."""
    return counts.client_mean("minority_nodes")


@metric("macro F1", "mean of F1 over classes", headline=True)
def macro_f1(counts: PartCounts) -> float | None:
    """F1 is 2·TP / (true + predicted); a class without a node and a prediction is left out."""
    pooled = counts.pooled
    return _mean([_ratio(2.0 * pooled[c, c], pooled[c].sum() + pooled[:, c].sum()) for c in range(len(pooled))])


@metric("balanced accuracy", "mean of the recall over classes")
def balanced_accuracy(counts: PartCounts) -> float | None:
    """Over classes that have a node."""
    pooled = counts.pooled
    return _mean([_ratio(pooled[c, c], pooled[c].sum()) for c in range(len(pooled))])


@metric("loss", "mean cross-entropy", smaller_is_better=True, percent=False)
def loss(counts: PartCounts) -> float | None:
    """Sum of the cross-entropy / nodes."""
    return _ratio(counts.loss.sum(), counts.pooled.sum())


@metric("AUC", "area under the ROC curve of a class against the rest, mean over classes", closing=True, headline=True)
def auc(counts: PartCounts) -> float | None:
    """Pairs are of nodes of the same client, since the scores of different personal models are not on one scale."""
    ranked, pairs = counts.sums("ranks").T
    return _mean([_ratio(r, p) for r, p in zip(ranked, pairs, strict=True)])


@metric("AUPRC", "average precision of a class against the rest, mean over classes", closing=True, headline=True)
def auprc(counts: PartCounts) -> float | None:
    """Nodes are ranked within their client; clients weigh by their members of the class."""
    precisions, members = counts.sums("precision").T
    return _mean([_ratio(p, m) for p, m in zip(precisions, members, strict=True)])


@metric(
    f"recall at {BUDGETS[1]:.0%}",
    f"share of minority nodes among each client's {BUDGETS[1]:.0%} of nodes that look least like its majority class",
    closing=True,
    headline=True,
)
def recall_at_budget(counts: PartCounts) -> float | None:
    """The share of minority nodes found by reviewing only a few alerts."""
    return _recall_at_budgets(counts)[1]


@metric("calibration error", "mean distance of confidence and accuracy (ECE)", smaller_is_better=True, closing=True)
def calibration_error(counts: PartCounts) -> float | None:
    """Σ over bins of confidence |Σ confidence - correct| / nodes."""
    confidence, correct, nodes = counts.sums("calibration").T
    return _ratio(np.abs(confidence - correct).sum(), nodes.sum())


def breakdowns(counts: PartCounts) -> Json:
    """What the report at the end says beside metrics: by local homophily, by budget of alerts."""
    right, total = counts.sums("buckets").astype(np.int64).T
    return {
        "by_homophily": {
            name: {"accuracy": _ratio(r, t), "nodes": int(t)}
            for name, r, t in zip(BUCKET_NAMES, right, total, strict=True)
        },
        "recall_by_budget": {
            f"{budget:.0%}": value for budget, value in zip(BUDGETS, _recall_at_budgets(counts), strict=True)
        },
    }


def _recall_at_budgets(counts: PartCounts) -> list[float | None]:
    *found, total = counts.sums("alerts")
    return [_ratio(count, total) for count in found]


def _pooled_ratio(right: NDArray[np.int64], total: NDArray[np.int64]) -> float | None:
    return _ratio(right.sum(), total.sum())


def _ratio(numerator: float | np.number[Any], denominator: float | np.number[Any]) -> float | None:
    return float(numerator / denominator) if denominator > 0 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
