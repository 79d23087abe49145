"""Every statistic against a value derived by hand, or against SciPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedspray.runs.nodes import NodeTable
from fedspray.studies.statistics import bootstrap, holm, paired_t, tally, wilcoxon


def table(test: list[bool], correct: list[bool], counts: list[list[list[int]]] | None = None) -> NodeTable:
    """By default one client, one class, one step of homophily; nobody is a minority node."""
    shape = np.array(counts or [[[len(test)]]])
    names = tuple(f"client_{k}" for k in range(len(shape)))
    return NodeTable(names, shape, np.zeros(len(shape), dtype=np.int64), np.array(test), np.array(correct))


def test_paired_t_is_the_textbook_value() -> None:
    # Differences 1 … 5: mean 3, deviation √2.5, t = 3 / (√2.5 / √5) = 3√2 with 4 degrees of freedom.
    assert paired_t([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 * stats.t.sf(3 * np.sqrt(2), df=4), rel=1e-12)
    first, second = np.random.default_rng(0).normal(size=(2, 7))
    assert paired_t((first - second).tolist()) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-12)


def test_wilcoxon_is_the_exact_value() -> None:
    # All ten differences positive: 2 of the 2^10 signs are at least as extreme.
    assert wilcoxon([0.01 * k for k in range(1, 11)]) == pytest.approx(2 / 2**10, rel=1e-12)
    # The smallest one negative: rank sums 0 and 1 at either end, 4 of 2^10.
    assert wilcoxon([-0.01, *(0.01 * k for k in range(2, 11))]) == pytest.approx(4 / 2**10, rel=1e-12)


def test_equal_differences_are_equal_whatever_their_last_bit() -> None:
    """Accuracies over 120 nodes: 0.8 - 94/120 and 0.7 - 82/120 are both 2/120, but not as floating-point numbers."""
    right = [(96, 94), (84, 82), (90, 88), (91, 94), (80, 83), (77, 78), (64, 63), (70, 66), (88, 84), (59, 60)]
    differences = [a / 120 - b / 120 for a, b in right]
    assert len({abs(value) for value in differences}) > len({abs(a - b) for a, b in right})
    exact = stats.wilcoxon([a - b for a, b in right]).pvalue
    assert wilcoxon(differences) == pytest.approx(exact, rel=1e-12)


def test_too_few_seeds_give_no_p() -> None:
    assert paired_t([1.0, 2.0, 3.0, 4.0]) is None
    assert wilcoxon([1.0] * 9) is None


def test_no_difference_at_all_is_p_1_and_differences_without_a_spread_are_not_tested() -> None:
    assert paired_t([0.0] * 5) == 1.0
    assert wilcoxon([0.0] * 10) == 1.0
    # One node of 20 more under every seed: as floating-point numbers these differ in the last bit.
    differences = [0.75 - 0.7, 0.8 - 0.75, 0.85 - 0.8, 0.6 - 0.55, 0.5 - 0.45]
    assert len(set(differences)) > 1
    assert paired_t(differences) is None


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.5.
    assert holm([0.5, 0.02, 0.01, 0.03]) == pytest.approx([0.5, 0.06, 0.04, 0.06])
    # Sorted 0.01, 0.04, 0.3: times 3, 2, 1; the unknown one does not count.
    assert holm([0.04, None, 0.01, 0.3]) == [pytest.approx(0.08), None, pytest.approx(0.03), pytest.approx(0.3)]
    # 0.6 times 2 is more than 1, and 0.7 may not fall below it.
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([None, None]) == [None, None]


def test_tally() -> None:
    assert tally([0.2, 0.01, -0.01, 0.0, -0.2, -0.3], margin=0.01) == {"win": 1, "tie": 3, "loss": 2}
    assert tally([0.801 - 0.8], margin=0.001) == {"win": 0, "tie": 1, "loss": 0}


def test_the_interval_is_that_of_a_binomial() -> None:
    # The method is always right, the reference on 30 of 40: 40 times the difference is Binomial(40, 1/4).
    right = table([True] * 40, [True] * 40)
    reference = table([True] * 40, [True] * 30 + [False] * 10)
    found = bootstrap({"a": {0: right}, "b": {0: reference}}, "b", draws=4000)["a", "overall"]
    low, high = stats.binom.ppf([0.025, 0.975], 40, 0.25) / 40
    assert found == pytest.approx((low, high), abs=1 / 40)


def test_the_interval_is_that_of_an_explicit_resampling() -> None:
    # Two clients with two classes each; a node of each stratum is replaced by nodes of the same stratum only.
    counts = [[[12], [8]], [[5], [15]]]
    rng = np.random.default_rng(3)
    ours, theirs = (rng.random(40) < share for share in (0.8, 0.6))
    everyone = [True] * 40
    tables = {"a": {0: table(everyone, ours.tolist(), counts)}, "b": {0: table(everyone, theirs.tolist(), counts)}}
    found = bootstrap(tables, "b", draws=6000)
    strata = np.split(np.arange(40), [12, 20, 25])
    minority = np.isin(np.arange(40), np.concatenate([strata[1], strata[3]]))  # class 0 is each client's largest
    differences = []
    for _ in range(6000):
        drawn = np.concatenate([rng.choice(part, size=len(part)) for part in strata])
        gain = ours[drawn].astype(float) - theirs[drawn]
        differences.append((gain.mean(), gain[minority[drawn]].mean()))
    for column, metric in enumerate(("overall", "minority")):
        low, high = np.quantile(np.array(differences)[:, column], [0.025, 0.975])
        assert found["a", metric] == pytest.approx((low, high), abs=0.03)


def test_pairs_stay_pairs() -> None:
    # Right and wrong on the same nodes: the difference is 0 in every draw, however uncertain each accuracy is.
    same = table([True] * 20, [True] * 10 + [False] * 10)
    found = bootstrap({"a": {0: same}, "b": {0: same}}, "b", draws=200)["a", "overall"]
    assert found == (0.0, 0.0)


def test_a_node_under_five_seeds_is_one_node() -> None:
    ours = table([True] * 30, [True] * 20 + [False] * 10)
    theirs = table([True] * 30, [False] * 5 + [True] * 10 + [False] * 15)
    once = bootstrap({"a": {0: ours}, "b": {0: theirs}}, "b", draws=500)
    five = bootstrap({"a": dict.fromkeys(range(5), ours), "b": dict.fromkeys(range(5), theirs)}, "b", draws=500)
    assert five == once


def test_nodes_that_are_never_tested_are_never_drawn() -> None:
    ours = table([True] * 30, [True] * 20 + [False] * 10)
    theirs = table([True] * 30, [False] * 5 + [True] * 10 + [False] * 15)
    wider = [
        table([True] * 30 + [False] * 25, [*t.correct.tolist(), *([False] * 25)], [[[55]]]) for t in (ours, theirs)
    ]
    narrow = bootstrap({"a": {0: ours}, "b": {0: theirs}}, "b", draws=300)
    assert bootstrap({"a": {0: wider[0]}, "b": {0: wider[1]}}, "b", draws=300) == narrow


def test_only_common_seeds_are_compared_and_a_seed_draws_the_same_nodes() -> None:
    ours = table([True] * 30, [True] * 20 + [False] * 10)
    theirs = table([True] * 30, [True] * 10 + [False] * 20)
    tables = {"a": {0: ours, 1: replace(ours, correct=~ours.correct)}, "b": {0: theirs}, "c": {7: ours}}
    found = bootstrap(tables, "b", draws=300)
    assert found["a", "overall"] == bootstrap({"a": {0: ours}, "b": {0: theirs}}, "b", draws=300)["a", "overall"]
    assert ("c", "overall") not in found
    assert found == bootstrap(tables, "b", draws=300)
    assert found != bootstrap(tables, "b", draws=300, seed=1)


def test_without_a_minority_node_there_is_no_interval_for_them() -> None:
    ours = table([True] * 10, [True] * 10)
    assert set(bootstrap({"a": {0: ours}, "b": {0: ours}}, "b", draws=10)) == {("a", "overall")}
