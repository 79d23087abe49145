"""What every partitioner promises, and what each does."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedspray import plugins
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.errors import InputError
from fedspray.partitioners.base import Partitioner
from fedspray.partitioners.label_skew import LabelSkew
from fedspray.partitioners.louvain import Louvain
from fedspray.partitioners.metis import Metis

Parts = dict[str, NDArray[np.int64]]
MAKERS: list[Callable[[int], Partitioner]] = [Louvain, Metis, LabelSkew]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs: any edges, any labels, some nodes isolated or unlabelled."""
    num_nodes = draw(st.integers(2, 30))
    node = st.integers(0, num_nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=80))
    labels = draw(st.lists(st.integers(UNLABELLED, 2), min_size=num_nodes, max_size=num_nodes))
    return Graph.from_arrays(np.ones((num_nodes, 1)), np.array(pairs).reshape(-1, 2).T, labels, num_classes=3)


def cliques(*sizes: int, order: NDArray[np.int64] | None = None) -> Graph:
    """Separate cliques of the given sizes, each with its own class; ``order`` renames the nodes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    u, v = np.triu_indices(len(labels), k=1)
    same = labels[u] == labels[v]
    names = np.arange(len(labels)) if order is None else order
    renamed = np.empty_like(labels)
    renamed[names] = labels
    return Graph.from_arrays(np.ones((len(labels), 1)), names[np.stack([u, v])[:, same]], renamed)


def same(a: Parts, b: Parts) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_folder_is_the_registry() -> None:
    names = plugins.names("fedspray.partitioners")
    assert names == ["files", "label-skew", "louvain", "metis"]
    for name in names:
        assert issubclass(plugins.load_class("fedspray.partitioners", "partitioner", name, Partitioner), Partitioner)


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=40)
@given(graph=graphs(), num_clients=st.integers(1, 5), seed=st.integers(0, 1_000))
def test_disjoint_in_range_sorted_and_seed_stable(
    make: Callable[[int], Partitioner], graph: Graph, num_clients: int, seed: int
) -> None:
    state = random.getstate()
    try:
        parts = make(num_clients).partition(graph, seed)
    except InputError as error:
        assert str(num_clients) in str(error)  # noqa: PT017 - too many clients for this graph
        return
    assert len(parts) == num_clients
    nodes = np.concatenate(list(parts.values()))
    assert len(np.unique(nodes)) == len(nodes)
    assert nodes.min() >= 0
    assert nodes.max() < graph.num_nodes
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts.values())
    if make is not Louvain:
        assert len(nodes) == graph.num_nodes
    assert same(parts, make(num_clients).partition(graph, seed))
    assert random.getstate() == state  # nothing global was touched


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=20)
@given(graph=graphs(), shuffle=st.randoms(use_true_random=False))
def test_order_and_direction_of_edges_do_not_matter(
    make: Callable[[int], Partitioner], graph: Graph, shuffle: random.Random
) -> None:
    listed = [shuffle.sample([u, v], 2) for u, v in graph.edges.T.tolist()]
    shuffle.shuffle(listed)
    other = Graph.from_arrays(
        graph.features, np.array(listed).reshape(-1, 2).T, graph.labels, num_classes=graph.num_classes
    )
    num_clients = 1 if make is Louvain else 2  # a connected graph may be one community
    assert same(make(num_clients).partition(graph, 0), make(num_clients).partition(other, 0))


@pytest.mark.parametrize("make", [Louvain, Metis])
@settings(max_examples=20)
@given(order=st.permutations(range(15)))
def test_numbering_of_nodes_does_not_matter(make: Callable[[int], Partitioner], order: list[int]) -> None:
    names = np.array(order)
    parts = make(3).partition(cliques(5, 5, 5, order=names), seed=0)
    expected = {frozenset(names[start : start + 5].tolist()) for start in (0, 5, 10)}
    assert {frozenset(part.tolist()) for part in parts.values()} == expected


@settings(max_examples=20)
@given(order=st.permutations(range(15)), seed=st.integers(0, 100))
def test_label_skew_counts_do_not_depend_on_the_numbering(order: list[int], seed: int) -> None:
    def counts(graph: Graph) -> list[list[int]]:
        parts = LabelSkew(2, alpha=5.0).partition(graph, seed)
        return [np.bincount(graph.labels[part], minlength=3).tolist() for part in parts.values()]

    assert counts(cliques(8, 4, 3)) == counts(cliques(8, 4, 3, order=np.array(order)))


def test_louvain_takes_the_largest_communities_largest_first() -> None:
    parts = Louvain(2).partition(cliques(3, 6, 5), seed=0)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "client_00": [3, 4, 5, 6, 7, 8],
        "client_01": [9, 10, 11, 12, 13],
    }


def test_louvain_names_the_number_of_communities() -> None:
    with pytest.raises(InputError, match="louvain finds 3 communities"):
        Louvain(4).partition(cliques(3, 6, 5), seed=0)


def test_louvain_hands_igraphs_generator_back() -> None:
    import igraph

    random.seed(7)
    expected = igraph.Graph.Erdos_Renyi(n=30, p=0.2).get_edgelist()
    Louvain(1).partition(cliques(3, 6), seed=0)
    random.seed(7)
    assert igraph.Graph.Erdos_Renyi(n=30, p=0.2).get_edgelist() == expected


@pytest.mark.parametrize("make", [Metis, LabelSkew])
def test_more_clients_than_nodes(make: Callable[[int], Partitioner]) -> None:
    with pytest.raises(InputError, match="6 clients are too"):
        make(6).partition(cliques(3, 2), seed=0)


def test_metis_parts_are_of_about_equal_size() -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_arrays(np.ones((1_000, 1)), rng.integers(0, 1_000, (2, 5_000)), np.zeros(1_000))
    sizes = [len(part) for part in Metis(4).partition(graph, seed=0).values()]
    assert sum(sizes) == 1_000
    assert max(sizes) < 1.05 * 250


def test_metis_without_edges_uses_every_node() -> None:
    graph = Graph.from_arrays(np.ones((12, 1)), np.zeros((2, 0)), np.zeros(12))
    assert sum(map(len, Metis(3).partition(graph, seed=0).values())) == 12


def test_seed_matters() -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_arrays(np.ones((300, 1)), rng.integers(0, 300, (2, 900)), rng.integers(0, 3, 300))
    for make in MAKERS:
        assert not same(make(3).partition(graph, 0), make(3).partition(graph, 1))


def label_shares(alpha: float) -> NDArray[np.float64]:
    graph = Graph.from_arrays(np.ones((6_000, 1)), np.zeros((2, 0)), np.arange(6_000) % 3)
    parts = LabelSkew(5, alpha=alpha).partition(graph, seed=0).values()
    counts = np.array([np.bincount(graph.labels[part], minlength=3) for part in parts])
    shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return shares


def test_small_alpha_is_skewed_and_large_alpha_is_even() -> None:
    assert label_shares(1e4) == pytest.approx(np.full((5, 3), 1 / 3), abs=0.02)
    assert label_shares(0.1).max(axis=1).mean() > 0.7


def test_unlabelled_nodes_are_shared_out_evenly() -> None:
    graph = Graph.from_arrays(np.ones((400, 1)), np.zeros((2, 0)), [UNLABELLED] * 400, num_classes=2)
    assert [len(part) for part in LabelSkew(4, alpha=0.1).partition(graph, 0).values()] == [100] * 4


def test_alpha_that_leaves_clients_empty() -> None:
    with pytest.raises(InputError, match="alpha 1e-06 leaves one of 3 clients empty"):
        LabelSkew(3, alpha=1e-6).partition(cliques(3, 3), seed=0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_alpha(alpha: float) -> None:
    with pytest.raises(InputError, match=f"alpha is {alpha}"):
        LabelSkew(2, alpha=alpha)


def test_bad_resolution() -> None:
    with pytest.raises(InputError, match="resolution is 0"):
        Louvain(2, resolution=0)


@pytest.mark.parametrize("make", MAKERS)
def test_no_clients(make: Callable[[int], Partitioner]) -> None:
    with pytest.raises(InputError, match="clients is 0"):
        make(0)
