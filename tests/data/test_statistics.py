from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspray.data.federation import Federation
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.data.statistics import describe, label_divergence, node_homophily


def make_graph(labels: list[int], edges: list[tuple[int, int]], num_classes: int = 2) -> Graph:
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Graph.from_arrays(np.zeros((len(labels), 1)), pairs, labels, num_classes=num_classes)


HOUSE = make_graph([0, 0, 0, 1, 1], [(0, 1), (0, 2), (1, 2), (2, 3)])
"""A triangle of class 0, node 3 of class 1 hanging on node 2, node 4 of class 1 alone."""


def test_node_homophily_by_hand() -> None:
    # 0: 1, 2 → 2/2; 1: 0, 2 → 2/2; 2: 0, 1, 3 → 2/3; 3: 2 → 0/1; 4 has no neighbour
    assert node_homophily(HOUSE) == pytest.approx([1, 1, 2 / 3, 0, math.nan], nan_ok=True)


def test_neighbours_without_a_label_are_not_counted() -> None:
    graph = make_graph([0, 0, UNLABELLED, 1], [(0, 1), (0, 2), (2, 3)])
    # 0 has neighbours 1 and 2, of which only 1 says something; 3 has only the silent 2; 2 itself has no label
    assert node_homophily(graph) == pytest.approx([1, 1, math.nan, math.nan], nan_ok=True)


@given(
    st.lists(st.integers(UNLABELLED, 2), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30),
)
def test_node_homophily_equals_the_definition(labels: list[int], pairs: list[tuple[int, int]]) -> None:
    graph = make_graph(labels, [(u, v) for u, v in pairs if max(u, v) < len(labels)], num_classes=3)
    neighbours: list[list[int]] = [[] for _ in labels]
    for u, v in graph.edges.T.tolist():
        neighbours[u].append(v)
        neighbours[v].append(u)
    for node, homophily in enumerate(node_homophily(graph)):
        known = [labels[other] for other in neighbours[node] if labels[other] != UNLABELLED]
        if labels[node] == UNLABELLED or not known:
            assert math.isnan(homophily)
        else:
            assert homophily == pytest.approx(known.count(labels[node]) / len(known))


@pytest.mark.parametrize(
    ("counts", "reference", "bits"),
    [
        ([1, 1], [10, 10], 0.0),
        ([3, 0], [0, 5], 1.0),
        # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4):
        # KL(p‖m) = log2 4/3; KL(q‖m) = 1/2 log2 2/3 + 1/2 log2 2; half their sum
        ([4, 0], [5, 5], (math.log2(4 / 3) + 0.5 * math.log2(2 / 3) + 0.5) / 2),
        ([0, 0], [5, 5], None),
    ],
)
def test_label_divergence_by_hand(counts: list[int], reference: list[int], bits: float | None) -> None:
    assert label_divergence(np.array(counts), np.array(reference)) == (None if bits is None else pytest.approx(bits))


def test_a_client_in_numbers() -> None:
    other = make_graph([1, 1], [(0, 1)])
    first, second = describe(Federation.from_graphs({"house": HOUSE, "other": other})).clients
    assert (first.num_nodes, first.num_edges, first.isolated_nodes, first.unlabelled_nodes) == (5, 4, 1, 0)
    assert first.label_counts == (3, 2)
    assert (first.majority_class, first.majority_nodes, first.minority_nodes) == (0, 3, 2)
    assert first.majority_homophily == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert first.minority_homophily == 0  # node 3; node 4 has no neighbour and is left out
    assert list(first.class_homophily) == pytest.approx([8 / 9, 0])
    assert (second.majority_class, second.minority_nodes, second.minority_homophily) == (1, 0, None)
    assert second.class_homophily == (None, 1)


def test_a_federation_in_numbers() -> None:
    statistics = describe(Federation.from_graphs({"house": HOUSE, "other": make_graph([1, 1], [(0, 1)])}))
    assert (statistics.num_clients, statistics.num_features, statistics.num_classes) == (2, 1, 2)
    assert (statistics.average_nodes, statistics.average_edges) == (3.5, 2.5)
    assert (statistics.total_nodes, statistics.total_edges, statistics.isolated_nodes) == (7, 5, 1)
    assert statistics.label_counts == (3, 4)


def test_ties_go_to_the_lowest_class() -> None:
    graph = make_graph([2, 1, 2, 1], [(0, 1)], num_classes=3)
    assert describe(Federation.from_graphs([graph])).clients[0].majority_class == 1


def test_lost_edges_come_from_the_cut() -> None:
    federation = Federation.from_graph(HOUSE, [np.array([0, 1]), np.array([2, 3])])
    assert [client.edges_lost for client in describe(federation).clients] == [2, 2]


def test_a_client_without_labels_has_no_majority() -> None:
    blank = make_graph([UNLABELLED] * 3, [(0, 1)])
    client = describe(Federation.from_graphs({"house": HOUSE, "blank": blank})).clients[1]
    assert (client.majority_class, client.majority_nodes, client.minority_nodes) == (None, 0, 0)
    assert (client.majority_homophily, client.minority_homophily, client.label_divergence) == (None, None, None)
    assert (client.unlabelled_nodes, client.isolated_nodes) == (3, 1)


@pytest.mark.parametrize(
    "graph",
    [
        make_graph([0, 1], []),  # no edge
        make_graph([0, 0], [(0, 1)]),  # one class
        make_graph([0, UNLABELLED], [(0, 1)]),  # one labelled node
    ],
)
def test_json_is_strict_whatever_the_client(graph: Graph) -> None:
    content = describe(Federation.from_graphs([graph])).to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_documented_keys() -> None:
    content: dict[str, Any] = describe(Federation.from_graphs({"house": HOUSE})).to_json()
    assert list(content) == [
        "name",
        "num_clients",
        "num_features",
        "num_classes",
        "class_names",
        "average_nodes",
        "average_edges",
        "total_nodes",
        "total_edges",
        "isolated_nodes",
        "label_counts",
        "unlabelled_nodes",
        "clients",
        "settings",
    ]
    assert list(content["clients"][0]) == [
        "name",
        "num_nodes",
        "num_edges",
        "isolated_nodes",
        "label_counts",
        "unlabelled_nodes",
        "majority_class",
        "majority_nodes",
        "minority_nodes",
        "majority_homophily",
        "minority_homophily",
        "class_homophily",
        "label_divergence",
        "edges_lost",
    ]
