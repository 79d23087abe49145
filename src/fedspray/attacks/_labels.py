"""How well a guess of every client's label distribution is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedspray.attacks.base import Finding
from fedspray.data.federation import Federation

Array = NDArray[np.float64]


def true_shares(truth: Federation) -> tuple[Array, Array]:
    """[K, C] of each client's training nodes, and [C] of all together, which the attacker knows."""
    counts = np.stack([client.train_class_counts for client in truth.clients]).astype(np.float64)
    return as_shares(counts), as_shares(counts.sum(axis=0, keepdims=True))[0]


def as_shares(counts: Array, otherwise: Array | None = None) -> Array:
    """Rows that add up to 1; what is below 0 counts as 0, and a row of nothing as ``otherwise``."""
    kept = np.clip(np.nan_to_num(counts), 0, None)
    sums = kept.sum(axis=1, keepdims=True)
    usual = np.full(counts.shape[1], 1 / counts.shape[1]) if otherwise is None else otherwise
    found: Array = np.where(sums > 0, kept / np.where(sums > 0, sums, 1), usual)
    return found


def scored(guess: Array, truth: Federation, source: str, usual: Array | None = None) -> list[Finding]:
    """Total variation of a guess [K, C], and the rank correlation of how clients differ from ``usual``.

    ``usual`` [K, C] is what the attacker would say without updates; None: the mean of all.
    """
    from scipy.stats import spearmanr

    shares, mean = true_shares(truth)
    base = np.tile(mean, (len(shares), 1)) if usual is None else usual
    distance, without = (float(np.abs(each - shares).sum(axis=1).mean() / 2) for each in (guess, base))
    apart, believed = (np.round(each - base, 6).ravel() for each in (shares, guess))  # rounding makes no order
    is_flat = np.ptp(believed) == 0 or np.ptp(apart) == 0
    order = 0.0 if is_flat else float(spearmanr(believed, apart).statistic)
    return [Finding("total variation", distance, without, source), Finding("rank correlation", order, 0.0, source)]
