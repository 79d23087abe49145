"""What a client says about its model's predictions: counts, never predictions.

Counts of different clients add up, so pooled metrics are exact whoever computed them and wherever.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import GraphBatch
from fedspray.nn.tree import Message

PARTS = ("train", "val", "test")
"""The second axis of all counts."""

BUCKETS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Lower ends of the local-homophily buckets; the last one includes 1. Nodes without neighbours have their own."""

BUCKET_NAMES = (*(f"{low:.1f}-{low + 0.2:.1f}" for low in BUCKETS), "isolated")

COUNT_KEYS = {
    "evaluation.confusion": "predictions by part (train, val, test), true class and predicted class",
    "evaluation.loss": "sum of the cross-entropy over each part",
    "evaluation.majority": "the majority class of the training nodes (-1: no training node)",
}
DETAIL_KEYS = {
    "evaluation.buckets": "correct and all test predictions by local homophily (last: no neighbours)",
    "evaluation.ranks": "per class, pairs of test nodes ranked rightly and all pairs (for the AUC)",
    "evaluation.round": "the round that the client's kept model is from",
}


def bucket_of(homophily: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N]: the index in `BUCKET_NAMES` of each node's bucket; NaN is a node without a labelled neighbour."""
    buckets = np.searchsorted(BUCKETS, np.nan_to_num(homophily), side="right") - 1
    buckets[np.isnan(homophily)] = len(BUCKETS)
    return buckets


class Counter:
    """Counts for the clients of one batch.

    Args:
        batch: the clients.
        homophily: [N] local homophily of each node, NaN where it is not defined.
    """

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
        counts = batch.train_class_counts
        self._majority = torch.where(counts.sum(dim=1) > 0, counts.argmax(dim=1), -1)
        self._buckets = torch.from_numpy(bucket_of(homophily))

    def count(self, logits: Tensor) -> Message:
        """Confusion matrices and losses of the three parts, from logits [N, C]."""
        chosen = logits[self._nodes]
        num_clients, num_parts, num_classes, _ = self._shape
        cells = (self._slots * num_classes + self._labels) * num_classes + chosen.argmax(dim=1)
        confusion = torch.bincount(cells, minlength=int(np.prod(self._shape))).view(self._shape)
        losses = functional.cross_entropy(chosen, self._labels, reduction="none").double()
        sums = torch.zeros(num_clients * num_parts, dtype=torch.float64).index_add(0, self._slots, losses)
        return {
            "evaluation.confusion": confusion.to(torch.int32),
            "evaluation.loss": sums.view(num_clients, num_parts),
            "evaluation.majority": self._majority.to(torch.int32),
        }

    def detail(self, logits: Tensor) -> Message:
        """Counts by local homophily, and ranked pairs for the AUC, on the test nodes."""
        labels, owners = self._all_labels[self._test], self._owners[self._test]
        scores = logits[self._test]
        num_clients, num_buckets = self._shape[0], len(BUCKETS) + 1
        slots = owners * num_buckets + self._buckets[self._test]
        correct = scores.argmax(dim=1) == labels
        totals = torch.bincount(slots, minlength=num_clients * num_buckets)
        rights = torch.bincount(slots[correct], minlength=num_clients * num_buckets)
        buckets = torch.stack([rights, totals], dim=1).view(num_clients, num_buckets, 2)
        ranks = torch.stack([self._ranked_pairs(scores[owners == k], labels[owners == k]) for k in range(num_clients)])
        return {"evaluation.buckets": buckets.to(torch.int32), "evaluation.ranks": ranks}

    def _ranked_pairs(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[C, 2]: for each class, (member, other) pairs that its probability ranks rightly (ties half), and all."""
        probabilities = logits.double().softmax(dim=1).numpy()
        rows = []
        for c in range(self._shape[2]):
            members = probabilities[labels.numpy() == c, c]
            others = np.sort(probabilities[labels.numpy() != c, c])
            below = np.searchsorted(others, members, side="left").sum()
            up_to = np.searchsorted(others, members, side="right").sum()
            rows.append([(below + up_to) / 2, float(len(members) * len(others))])
        return torch.tensor(rows, dtype=torch.float64)
