"""Label distributions from evaluation counts: the sums of the rows of a confusion matrix are class counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspray.attacks._labels import as_shares, scored, true_shares
from fedspray.attacks.base import Attack, Finding, Seen
from fedspray.data.federation import Federation

CONFUSION = "evaluation.confusion"


@dataclass(frozen=True)
class Evaluation(Attack):
    """Reads class counts off the confusion matrix of the training nodes."""

    summary: ClassVar[str] = "each client's label distribution, from the counts of its evaluation"

    def findings(self, seen: Seen, truth: Federation) -> list[Finding]:
        """Scores of the last counts of each client."""
        last = {k: counts for each in seen.exchanges for k, counts in each.counts.items() if CONFUSION in counts}
        if len(last) < truth.num_clients:
            return []
        _, mean = true_shares(truth)
        counts = [last[k][CONFUSION][0, 0].sum(dim=1).double().numpy() for k in range(truth.num_clients)]
        return scored(as_shares(np.stack(counts), mean), truth, CONFUSION)
