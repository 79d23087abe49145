"""Confidence intervals of accuracies and of their differences, from counts.

Score intervals rather than bootstraps: cells of a report are often small, and where no node (or every node) is
right a bootstrap gives an interval of width 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Z = 1.959963984540054
"""95%."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``gain`` or ``loss`` if the interval leaves 0 out, otherwise ``unclear``."""
        return "gain" if self.low > 0 else "loss" if self.high < 0 else "unclear"


def wilson(rate: float, size: float) -> Estimate:
    """Wilson's score interval of a proportion that was seen on ``size`` nodes."""
    spread = Z * Z / size
    centre = (rate + spread / 2) / (1 + spread)
    half = Z * math.sqrt(rate * (1 - rate) / size + spread / (4 * size)) / (1 + spread)
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half))


def paired_difference(both: float, gained: float, lost: float, neither: float, size: float | None = None) -> Estimate:
    """Newcombe's interval of the difference of two accuracies on the same nodes (1998, method 10).

    It joins the Wilson intervals of the two accuracies and allows for their correlation, with his correction of
    continuity.

    Args:
        both: predictions that are right in both.
        gained: those that only the first has right.
        lost: those that only the second has right.
        neither: the rest.
        size: how many independent nodes they come from, if fewer than predictions: a node that was tested under
            several seeds is one piece of evidence.
    """
    total = both + gained + lost + neither
    scale = 1.0 if size is None else size / total
    both, gained, lost, neither = (scale * count for count in (both, gained, lost, neither))
    total *= scale
    first, second = wilson((both + gained) / total, total), wilson((both + lost) / total, total)
    phi = _correlation(both, gained, lost, neither)
    value = first.value - second.value
    below, above = first.value - first.low, second.high - second.value
    low = value - math.sqrt(max(0.0, below**2 - 2 * phi * below * above + above**2))
    above, below = first.high - first.value, second.value - second.low
    high = value + math.sqrt(max(0.0, above**2 - 2 * phi * above * below + below**2))
    return Estimate(value, max(-1.0, low), min(1.0, high))


def _correlation(both: float, gained: float, lost: float, neither: float) -> float:
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if margins == 0:
        return 0.0
    product = both * neither - gained * lost
    if product > 0:
        product = max(product - (both + gained + lost + neither) / 2, 0.0)
    return product / math.sqrt(margins)
