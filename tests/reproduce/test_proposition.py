from __future__ import annotations

import math

import numpy as np
import pytest

from reproduction.proposition import CASES, KINDS, TwoClasses, class_means, embeddings, estimate

BANKS, UNEVEN, UNBALANCED = CASES


def test_the_factor_by_hand() -> None:
    assert BANKS.factor == pytest.approx(1 + 4 * 0.75 * 0.3)  # 1.9
    assert UNEVEN.factor == pytest.approx(1 + 0.8 * 0.4 + 0.6 * 0.2 + 0.6 * 0.3 + 0.8 * 0.1)  # 1.7
    assert UNBALANCED.factor == pytest.approx(1 + 0.8 * 0.3 + 0.4 * 0.3)  # 1.36


def test_distances_by_hand() -> None:
    assert BANKS.paper_distance("local") == 1.0  # half the separation of banks
    assert BANKS.paper_distance("sum") == pytest.approx(1.9)
    assert BANKS.paper_distance("average") == pytest.approx(1 + 0.9 / (2 + 2 * 0.25))  # W = M + Σ q over the others


@pytest.mark.parametrize("case", [BANKS, UNEVEN])
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_balanced_federation_the_formula_is_exact(case: TwoClasses, kind: str) -> None:
    assert case.imbalance == pytest.approx(0)
    assert case.exact_distance(kind) == pytest.approx(case.paper_distance(kind))


def test_equal_classes_are_not_balance() -> None:
    assert UNBALANCED.class_counts == (5000 + 6000, 1000 + 10_000)
    assert UNBALANCED.imbalance == pytest.approx(0.8 - 0.4)
    # Classes differ by 1.36 Δ and by 0.4 times their middle, which is 2 long and at a right angle to Δ (2 long).
    assert UNBALANCED.exact_distance("sum") == pytest.approx(math.hypot(1.36 * 2, 0.4 * 2) / 2)


def test_without_an_offset_imbalance_does_no_harm() -> None:
    centred = TwoClasses("centred", UNBALANCED.p, UNBALANCED.q, UNBALANCED.majority_nodes)
    assert centred.exact_distance("sum") == pytest.approx(centred.paper_distance("sum"))


def test_weights_of_clients() -> None:
    case = TwoClasses("two", (0.8, 0.8), (0.2, 0.6), (10, 10))
    np.testing.assert_allclose(case.weights("sum"), [[1, 0.6], [0.2, 1]])
    np.testing.assert_allclose(case.weights("average"), [[1 / 1.6, 0.6 / 1.6], [0.2 / 1.2, 1 / 1.2]])


def test_means_lie_where_the_case_says() -> None:
    first, second = class_means(UNBALANCED, 3)
    middle = (first + second) / 2
    assert np.linalg.norm(first - second) == pytest.approx(2.0, abs=1e-5)
    assert np.linalg.norm(middle) == pytest.approx(2.0, abs=1e-5)
    assert middle @ (first - second) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_monte_carlo_finds_the_exact_distances_and_not_the_formula_without_balance(case: TwoClasses) -> None:
    found = estimate(case, draws=4, seed=50)
    for kind in KINDS:
        assert found[kind].distance == pytest.approx(case.exact_distance(kind), abs=0.025)
    if case is UNBALANCED:
        assert abs(found["sum"].distance - case.paper_distance("sum")) > 0.03
    assert found["sum"].wrong < found["average"].wrong < found["local"].wrong


def test_own_neighbours_make_more_mistakes_than_features_alone() -> None:
    wrong = estimate(BANKS, draws=2)["local"].wrong
    assert 0.18 < wrong < 0.21  # features alone: Φ(-1) = 0.159


def test_global_embeddings_hold_every_node_once() -> None:
    ((embedded, labels),) = embeddings(BANKS, "sum", 0)
    assert embedded.shape == (4 * 7500, BANKS.banks.num_features)
    assert np.bincount(labels).tolist() == list(BANKS.class_counts)
