from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from fedspray.evaluation.intervals import paired_difference, wilson


@pytest.mark.parametrize(("right", "size"), [(0, 7), (3, 7), (7, 7), (81, 263)])
def test_wilson_is_scipys(right: int, size: int) -> None:
    interval = binomtest(right, size).proportion_ci(method="wilson")
    ours = wilson(right / size, size)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_paired_difference_by_hand() -> None:
    # 36 right in both, 12 only in the first, 2 only in the second: accuracies 48/50 and 38/50.
    first, second = (binomtest(n, 50).proportion_ci(method="wilson") for n in (48, 38))
    # 36·0 - 12·2 is negative, so there is no correction of continuity.
    phi = -24 / math.sqrt(48 * 2 * 38 * 12)
    below, above = 0.96 - first.low, second.high - 0.76
    low = 0.2 - math.sqrt(below**2 - 2 * phi * below * above + above**2)
    above, below = first.high - 0.96, 0.76 - second.low
    high = 0.2 + math.sqrt(above**2 - 2 * phi * above * below + below**2)
    ours = paired_difference(36, 12, 2, 0)
    assert (ours.value, ours.low, ours.high) == pytest.approx((0.2, low, high))
    assert (ours.low, ours.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    assert ours.verdict == "gain"


def test_correction_of_continuity() -> None:
    # 20·20 - 5·5 = 375 is positive and loses 50/2; all margins are 25.
    phi = (375 - 25) / 625
    half = wilson(0.5, 50)
    width = (0.5 - half.low) * math.sqrt(2 - 2 * phi)
    ours = paired_difference(20, 5, 5, 20)
    assert (ours.value, ours.low, ours.high) == pytest.approx((0.0, -width, width))
    assert ours.verdict == "unclear"


def test_the_two_sides_are_mirror_images() -> None:
    there, back = paired_difference(40, 3, 15, 9), paired_difference(40, 15, 3, 9)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert there.verdict == "loss"


def test_agreement_everywhere_is_no_certainty() -> None:
    ours = paired_difference(10, 0, 0, 0)
    assert ours.value == 0
    assert ours.low < -0.1
    assert ours.high > 0.1


def test_a_node_tested_twice_is_one_piece_of_evidence() -> None:
    twice = paired_difference(20, 10, 4, 6, size=20)
    once = paired_difference(10, 5, 2, 3)
    assert (twice.value, twice.low, twice.high) == pytest.approx((once.value, once.low, once.high))
