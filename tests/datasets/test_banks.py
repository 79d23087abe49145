"""The generator draws what its formulas say."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

from fedspray.data.graph import Graph
from fedspray.datasets.banks import Banks, _draw_pairs
from fedspray.errors import InputError


def majority_share(graph: Graph, majority_class: int, nodes_are_majority: bool) -> float:
    """The share of majority nodes among the neighbours of one group."""
    is_majority = graph.labels == majority_class
    ends, others = graph.both_directions()
    return float(is_majority[others[is_majority[ends] == nodes_are_majority]].mean())


def test_defaults_are_the_papers_story() -> None:
    clients = Banks().generate(seed=0)
    assert list(clients) == ["bank_00", "bank_01", "bank_02", "bank_03"]
    for index, graph in enumerate(clients.values()):
        assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1_500, 32, 2)
        assert graph.label_counts()[index % 2] == 1_200  # q = 0.25
        assert graph.degrees.mean() == pytest.approx(6, abs=0.35)


@pytest.mark.parametrize(("p", "q", "degree"), [(0.8, 0.25, 6.0), (0.6, 0.5, 10.0), (0.9, 0.2, 8.0)])
@pytest.mark.parametrize("num_classes", [2, 4])
def test_neighbours_and_degrees_in_both_groups(p: float, q: float, degree: float, num_classes: int) -> None:
    banks = Banks(
        num_clients=1,
        num_nodes=60_000,
        num_features=4,
        num_classes=num_classes,
        degree=degree,
        majority_neighbour_share=p,
        minority_ratio=q,
    )
    graph = banks.generate(seed=3)["bank_00"]
    minority = graph.labels != 0
    assert minority.sum() / (~minority).sum() == pytest.approx(q, rel=1e-3)
    assert majority_share(graph, 0, nodes_are_majority=True) == pytest.approx(p, abs=0.01)
    assert majority_share(graph, 0, nodes_are_majority=False) == pytest.approx(p, abs=0.01)
    assert graph.degrees[~minority].mean() == pytest.approx(degree, rel=0.02)
    assert graph.degrees[minority].mean() == pytest.approx(degree * (1 - p) / (q * p), rel=0.03)
    assert banks.minority_degree == pytest.approx(degree * (1 - p) / (q * p))


def test_other_neighbours_come_by_class_share() -> None:
    banks = Banks(num_clients=1, num_nodes=60_000, num_features=4, num_classes=4)
    graph = banks.generate(seed=1)["bank_00"]
    ends, others = graph.both_directions()
    for label in range(4):
        seen = graph.labels[others[graph.labels[ends] == label]]
        assert np.bincount(seen, minlength=4) / len(seen) == pytest.approx([0.8] + [0.2 / 3] * 3, abs=0.015)


def test_majority_class_rotates() -> None:
    clients = Banks(num_clients=7, num_nodes=2_100, num_classes=3).generate(seed=0)
    assert [int(graph.label_counts().argmax()) for graph in clients.values()] == [0, 1, 2, 0, 1, 2, 0]


def test_features_are_gaussian_around_means_at_equal_distance() -> None:
    banks = Banks(num_clients=2, num_nodes=60_000, num_features=6, num_classes=3, separation=1.7)
    means = banks.class_means(seed=5)
    for a, b in itertools.combinations(means, 2):
        assert np.linalg.norm(a - b) == pytest.approx(1.7, rel=1e-5)
    graph = banks.generate(seed=5)["bank_01"]
    for label in range(3):
        rows = graph.features[graph.labels == label]
        assert rows.mean(axis=0) == pytest.approx(means[label], abs=0.06)
        assert np.cov(rows.T) == pytest.approx(np.eye(6), abs=0.08)


def test_total_is_shared_out_evenly() -> None:
    assert Banks(num_clients=3, num_nodes=100).client_sizes == [34, 33, 33]
    assert Banks(num_clients=5).client_sizes == [1_500] * 5


def test_same_seed_same_bits_and_clients_do_not_depend_on_each_other() -> None:
    first, again = Banks().generate(seed=2), Banks().generate(seed=2)
    assert all(first[name].equals(again[name]) for name in first)
    assert not first["bank_00"].equals(Banks().generate(seed=3)["bank_00"])
    more = Banks(num_clients=6).generate(seed=2)
    assert all(first[name].equals(more[name]) for name in first)


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 6])
def test_every_pair_is_named_once(num_nodes: int) -> None:
    pairs = _draw_pairs(np.random.default_rng(0), num_nodes, probability=1.0)
    expected = set(itertools.combinations(range(num_nodes), 2))
    assert {(min(u, v), max(u, v)) for u, v in pairs.T.tolist()} == expected
    assert pairs.shape[1] == len(expected)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_clients": 0}, "num_clients is 0"),
        ({"num_classes": 1}, "num_classes is 1"),
        ({"num_features": 1}, "num_features is 1"),
        ({"majority_neighbour_share": 1.0}, "majority_neighbour_share is 1.0"),
        ({"majority_neighbour_share": float("nan")}, "majority_neighbour_share is nan"),
        ({"minority_ratio": 0.0}, r"\(q\) is 0.0"),
        ({"minority_ratio": 1.5}, r"\(q\) is 1.5"),
        ({"separation": -1.0}, "separation is -1.0"),
        ({"separation": 1e308}, r"separation is 1e\+308"),
        ({"degree": -1.0}, "degree is -1.0"),
        ({"degree": float("inf")}, "degree is inf"),
        ({"degree": 50.0, "num_nodes": 80}, "clients of 20 nodes"),
        ({"num_nodes": 4}, "4 nodes over 4 clients leave 1 for one"),
        ({"num_nodes": 0}, "0 nodes over 4 clients"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Banks(**settings)


def test_a_hundred_thousand_nodes_in_a_moment() -> None:
    started = time.process_time()
    Banks(num_clients=100, num_nodes=100_000).generate(seed=0)
    assert time.process_time() - started < 5  # 0.2 s when this was written
