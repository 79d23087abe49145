"""Statistics of comparisons: paired tests over seeds, Holm's correction, a bootstrap over test nodes.

Tests over seeds ask whether a difference would persist with other splits and initial weights; the bootstrap
asks whether it would persist with other nodes of the same clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedspray.runs.nodes import NodeTable
from fedspray.seeds import generator

T_TEST_SEEDS = 5
"""Fewest seeds for a paired t-test: fewer say little about the spread of a difference."""
WILCOXON_SEEDS = 10
"""From this many on, Wilcoxon's signed-rank test: with 5, its smallest two-sided p is 0.0625."""

COMPARED = ("overall", "minority")
"""The metrics that methods are compared in, node by node."""

_CHUNK = 100


def tally(differences: Sequence[float], margin: float) -> dict[str, int]:
    """How often a method is better than another by more than ``margin``, about equal, and worse."""
    values = _without_rounding_errors(differences)
    win, loss = int((values > margin).sum()), int((values < -margin).sum())
    return {"win": win, "tie": len(differences) - win - loss, "loss": loss}


def paired_t(differences: Sequence[float]) -> float | None:
    """The two-sided p of a paired t-test; None with fewer than `T_TEST_SEEDS` pairs, or if they do not vary.

    Equal differences other than 0 have no spread: p would always be 0.
    """
    values = _without_rounding_errors(differences)
    if len(values) < T_TEST_SEEDS:
        return None
    if not values.any():
        return 1.0
    if (values == values[0]).all():
        return None
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def wilcoxon(differences: Sequence[float]) -> float | None:
    """The two-sided p of Wilcoxon's signed-rank test; None with fewer than `WILCOXON_SEEDS` pairs."""
    if len(differences) < WILCOXON_SEEDS:
        return None
    values = _without_rounding_errors(differences)
    if not values.any():
        return 1.0
    from scipy.stats import wilcoxon as signed_rank

    return float(signed_rank(values).pvalue)


def _without_rounding_errors(differences: Sequence[float]) -> NDArray[np.float64]:
    """Rounds differences so that equal fractions become equal numbers, which ranks and ties need."""
    return np.asarray(differences, dtype=np.float64).round(9)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction over the known p values; each is at least as large as before.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[i] = largest
    return corrected


def bootstrap(
    tables: Mapping[str, Mapping[int, NodeTable]], reference: str, *, draws: int = 2000, seed: int = 0
) -> dict[tuple[str, str], tuple[float, float]]:
    """95% intervals of each method's difference in accuracy to the reference, over other draws of the test nodes.

    Nodes are drawn with replacement inside every (client, class), from those that are a test node under any
    seed. A drawn node counts in all methods and under all seeds in which it is a test node: pairs stay pairs,
    and five seeds don't turn one node into five. A figure is the mean over seeds of the pooled accuracy.

    Args:
        tables: by method and seed; all of the same clients.
        reference: the method that is subtracted.
        draws: how many.
        seed: of the draws.

    Returns:
        Both bounds by (method, metric); without methods that share no seed with the reference, and metrics without a
        node.
    """
    anyone = next(iter(tables[reference].values()))
    used = np.zeros(len(anyone.test), dtype=np.bool_)
    for by_seed in tables.values():
        for table in by_seed.values():
            used |= table.test
    strata = (anyone.client * anyone.counts.shape[1] + anyone.label)[used]
    sizes = np.unique(strata, return_counts=True)[1]
    columns = {(method, s): _columns(table, used) for method, by_seed in tables.items() for s, table in by_seed.items()}
    rng = generator(seed, "bootstrap")
    samples: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for start in range(0, draws, _CHUNK):
        weights = _resample(sizes, min(_CHUNK, draws - start), rng)
        accuracies = {key: _accuracies(weights, counted) for key, counted in columns.items()}
        for method in tables:
            common = sorted(set(tables[method]) & set(tables[reference]))
            if method == reference or not common:
                continue
            difference = np.mean([accuracies[method, s] - accuracies[reference, s] for s in common], axis=0)
            for i, metric in enumerate(COMPARED):
                samples.setdefault((method, metric), []).append(difference[:, i])
    tails = [(1 - 0.95) / 2, (1 + 0.95) / 2]
    drawn = {key: np.concatenate(parts) for key, parts in samples.items()}
    known = {key: values[np.isfinite(values)] for key, values in drawn.items()}
    bounds = {key: np.quantile(values, tails) for key, values in known.items() if len(values)}
    return {key: (float(low), float(high)) for key, (low, high) in bounds.items()}


def _columns(table: NodeTable, used: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[N, 4]: right and all, over all test nodes and over minority ones."""
    minority = table.minority
    masks = (table.correct, table.test, table.correct & minority, table.test & minority)
    return np.stack([mask[used] for mask in masks], axis=1).astype(np.float32)


def _accuracies(weights: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.float64]:
    """[draws, 2]: overall and minority; NaN where no node was drawn."""
    sums = (weights @ columns).astype(np.float64)
    result = np.full((len(sums), 2), np.nan)
    np.divide(sums[:, 0::2], sums[:, 1::2], out=result, where=sums[:, 1::2] > 0)
    return result


def _resample(sizes: NDArray[np.int64], draws: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """[draws, N]: how often each node is drawn, with replacement inside its stratum."""
    weights = []
    for size in sizes:
        chosen = rng.integers(0, size, size=(draws, size)) + size * np.arange(draws)[:, None]
        weights.append(np.bincount(chosen.ravel(), minlength=draws * size).reshape(draws, size))
    return np.concatenate(weights, axis=1).astype(np.float32)
