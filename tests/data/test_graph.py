from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedspray.data.edges import Cleaning
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.errors import InputError, MissingDataError

# PyTorch Geometric itself uses it when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

FEATURES = np.arange(6, dtype=np.float32).reshape(3, 2)
PATH = [[0, 1], [1, 2]]  # 0 - 1 - 2


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Anything that `from_arrays` must take: both directions, self-loops, duplicates, missing labels."""
    num_nodes = draw(st.integers(1, 8))
    node = st.integers(0, num_nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=20))
    labels = draw(st.lists(st.integers(UNLABELLED, 3), min_size=num_nodes, max_size=num_nodes))
    width = draw(st.integers(0, 3))
    values = st.floats(-100, 100, width=32)
    rows = draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=num_nodes, max_size=num_nodes))
    features: Any = np.array(rows, dtype=np.float32).reshape(num_nodes, width)
    if draw(st.booleans()):
        features = sp.csr_array(features)
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return {"features": features, "edges": edges, "labels": labels, "num_classes": 4}


# ---- edges are tidied ---------------------------------------------------------------------------


def test_edges_become_undirected_and_what_was_tidied_is_counted() -> None:
    # 0→1 twice, 1→0, 2→1 one way, 2→2 a loop
    graph = Graph.from_arrays(FEATURES, [[0, 0, 1, 2, 2], [1, 1, 0, 1, 2]])
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.cleaning == Cleaning(self_loops=1, duplicates=1, one_way=1)
    assert graph.degrees.tolist() == [1, 2, 1]
    assert graph.both_directions().tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]]


@pytest.mark.parametrize(
    ("edges", "sentence"),
    [
        ([[0, 1], [1, 2]], ""),
        ([[0, 1, 1, 2], [1, 0, 2, 1]], ""),
        (
            [[0, 0, 1, 2, 2], [1, 1, 0, 1, 2]],
            "1 edge from a node to itself left out, 1 edge given again merged, "
            "1 edge given one way only taken both ways",
        ),
        ([[0, 1, 1], [1, 0, 2]], "1 edge given one way only taken both ways"),
    ],
    ids=["once", "twice", "untidy", "directed"],
)
def test_what_was_tidied_is_said_in_words(edges: list[list[int]], sentence: str) -> None:
    assert Graph.from_arrays(FEATURES, edges).tidied() == sentence


def test_classes_that_are_named_or_counted_may_be_empty() -> None:
    assert Graph.from_arrays(FEATURES, PATH, [1, 2, 3]).num_classes == 4
    assert Graph.from_arrays(FEATURES, PATH, [0, 4711, 0], num_classes=5000).num_classes == 5000


@given(arrays())
def test_every_edge_is_there_once(given_arrays: dict[str, Any]) -> None:
    graph = Graph.from_arrays(**given_arrays)
    expected = sorted({(min(u, v), max(u, v)) for u, v in given_arrays["edges"].T.tolist() if u != v})
    assert [tuple(edge) for edge in graph.edges.T.tolist()] == expected


@given(arrays())
def test_from_arrays_is_idempotent(given_arrays: dict[str, Any]) -> None:
    graph = Graph.from_arrays(**given_arrays)
    again = Graph.from_arrays(graph.features, graph.both_directions(), graph.labels, num_classes=graph.num_classes)
    assert again.equals(graph)
    assert again.cleaning == Cleaning()


@given(arrays(), st.randoms(use_true_random=False))
def test_order_and_direction_of_edges_do_not_matter(given_arrays: dict[str, Any], random: Any) -> None:
    pairs = [pair if random.random() < 0.5 else pair[::-1] for pair in given_arrays["edges"].T.tolist()]
    random.shuffle(pairs)
    shuffled = {**given_arrays, "edges": np.array(pairs, dtype=np.int64).reshape(-1, 2).T}
    assert Graph.from_arrays(**shuffled).equals(Graph.from_arrays(**given_arrays))


def test_sparse_input_is_not_changed() -> None:
    unsorted = sp.csr_array((np.array([1, 2], dtype=np.float32), [1, 0], [0, 2]), shape=(1, 2))
    graph = Graph.from_arrays(unsorted, [[], []])
    assert unsorted.indices.tolist() == [1, 0]
    assert graph.dense_features().tolist() == [[2, 1]]


@given(arrays(), st.data())
def test_subgraph_keeps_exactly_the_inner_edges(given_arrays: dict[str, Any], data: st.DataObject) -> None:
    graph = Graph.from_arrays(**given_arrays)
    nodes = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, unique=True))
    part = graph.subgraph(np.array(nodes))
    inside = {frozenset((nodes[u], nodes[v])) for u, v in part.edges.T.tolist()}
    assert inside == {frozenset(e) for e in graph.edges.T.tolist() if set(e) <= set(nodes)}
    assert part.labels.tolist() == graph.labels[nodes].tolist()
    assert np.array_equal(part.dense_features(), graph.dense_features()[nodes])


# ---- what is allowed though unusual -------------------------------------------------------------


def test_a_graph_may_have_no_edge_no_label_one_class_or_no_feature() -> None:
    assert Graph.from_arrays(FEATURES, [[], []]).num_edges == 0
    assert not Graph.from_arrays(FEATURES, PATH).labelled.any()
    assert Graph.from_arrays(FEATURES, PATH, [0, 0, 0]).num_classes == 1
    assert Graph.from_arrays(np.zeros((3, 0)), PATH).num_features == 0


def test_label_counts_leave_out_unlabelled_nodes() -> None:
    graph = Graph.from_arrays(FEATURES, PATH, [2, UNLABELLED, 2], num_classes=4)
    assert graph.label_counts().tolist() == [0, 0, 2, 0]
    assert graph.labelled.tolist() == [True, False, True]


def test_number_of_classes_comes_from_names_or_from_the_largest_label() -> None:
    assert Graph.from_arrays(FEATURES, PATH, [0, 1, 0]).num_classes == 2
    assert Graph.from_arrays(FEATURES, PATH, [0, 1, 0], class_names=["a", "b", "c"]).num_classes == 3


# ---- what is refused, and with which sentence ---------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"features": [[0, 0], [np.nan, 0], [0, 0]]}, "features of node 1 contain nan, but must be finite"),
    "inf": ({"features": [[0, 0], [0, 0], [0, -np.inf]]}, "features of node 2 contain -inf, but must be finite"),
    "sparse inf": (
        {"features": sp.csr_array([[0, 0], [0, 0], [0, np.inf]])},
        "features of node 2 contain inf, but must be finite",
    ),
    "too large for float32": ({"features": np.full((3, 1), 1e300)}, "features of node 0 contain inf"),
    "text features": ({"features": [["a"]] * 3}, "features are not a matrix of numbers"),
    "flat features": ({"features": [1.0, 2.0, 3.0]}, "features have 1 dimensions, but must be a matrix [N, F]"),
    "empty graph": ({"features": np.zeros((0, 2)), "edges": [[], []]}, "the graph has no nodes"),
    "label too large": (
        {"labels": [0, 1, 2], "num_classes": 2},
        "node 2 has label 2, but labels are 0 to 1, or -1 for unlabelled",
    ),
    "label too small": ({"labels": [0, -2, 1]}, "node 1 has label -2, but labels are 0 to 1"),
    "labels without classes": ({"labels": [-2, -2, -1]}, "node 0 has label -2, but labels are -1 for unlabelled"),
    "fractional label": ({"labels": [0, 0.5, 1]}, "labels contain 0.5, but must be whole numbers"),
    "NaN label": ({"labels": [0, np.nan, 1]}, "labels contain nan, but must be whole numbers, -1 for unlabelled"),
    "text labels": (
        {"labels": ["a", "b", "c"]},
        "labels are text, but must be whole numbers, -1 for unlabelled: class_names",
    ),
    "too few labels": ({"labels": [0, 1]}, "there are 2 labels for 3 nodes"),
    "label matrix": ({"labels": [[0], [1], [0]]}, "labels have shape [3, 1], but must be [N]"),
    "edge too large": ({"edges": [[0], [3]]}, "edges contain node 3, but nodes are 0 to 2"),
    "edge too small": ({"edges": [[-1], [0]]}, "edges contain node -1, but nodes are 0 to 2"),
    "fractional edge": ({"edges": [[0], [1.5]]}, "edges contain 1.5, but must be whole numbers"),
    "edges by row": ({"edges": [[0, 1], [1, 2], [2, 0]]}, "edges have shape [3, 2], but must be [2, E]"),
    "ragged edges": ({"edges": [[0, 1], [1]]}, "edges are not a regular array"),
    "node names": ({"node_names": ["a"]}, "there are 1 node names, but there must be 3"),
    "equal node names": (
        {"node_names": ["a", "b", "a"]},
        "nodes 0 and 2 have the same name, but node names must differ",
    ),
    "class names": (
        {"labels": [0, 1, 0], "num_classes": 2, "class_names": ["a"]},
        "there are 1 class names, but there must be 2",
    ),
    "equal class names": (
        {"labels": [0, 1, 0], "class_names": ["a", "a"]},
        "two classes are called 'a', but class names must differ",
    ),
    "codes for labels": (
        {"labels": [1001, 4711, 1001]},
        "labels go up to 4711, but have 2 different values: number the classes 0 to 1, or say how many there are",
    ),
    "feature names": ({"feature_names": ["a"]}, "there are 1 feature names, but there must be 2"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_arrays_are_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.from_arrays(**{"features": FEATURES, "edges": PATH, **changes})
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("edges", [[[1], [0]], [[0, 0], [1, 1]], [[1, 0], [2, 1]], [[0], [0]], [[0], [3]]])
def test_the_constructor_takes_canonical_edges_only(edges: list[list[int]]) -> None:
    with pytest.raises(InputError, match="not canonical"):
        Graph(FEATURES, np.array(edges), np.zeros(3, dtype=np.int64), num_classes=1)


# ---- round trips --------------------------------------------------------------------------------


@given(given_arrays=arrays())
def test_npz_round_trip(given_arrays: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("npz")
    graph = Graph.from_arrays(**given_arrays)
    graph.to_npz(folder / "a.npz")
    read = Graph.from_npz(folder / "a.npz")
    assert read.equals(graph)
    read.to_npz(folder / "b.npz")
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()


def test_npz_keeps_names(tmp_path: Path) -> None:
    graph = Graph.from_arrays(
        FEATURES, PATH, [0, 1, 0], node_names=["ä", "b", "c d"], class_names=["x", "y"], feature_names=["f", "g"]
    )
    graph.to_npz(tmp_path / "graph.npz")
    assert Graph.from_npz(tmp_path / "graph.npz").equals(graph)


def test_npz_of_others_needs_edges_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "foreign.npz", edge_index=np.array(PATH), y=np.array([1, 0, 1]))
    graph = Graph.from_npz(tmp_path / "foreign.npz")
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (3, 2, 0)
    assert graph.labels.tolist() == [1, 0, 1]


@given(arrays())
def test_pyg_round_trip(given_arrays: dict[str, Any]) -> None:
    graph = Graph.from_arrays(**given_arrays)
    back = Graph.from_pyg(graph.to_pyg(), num_classes=4)
    assert np.array_equal(back.dense_features(), graph.dense_features())
    assert np.array_equal(back.edges, graph.edges)
    assert np.array_equal(back.labels, graph.labels)
    assert back.cleaning == Cleaning()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr"])
def test_sparse_pyg_features_stay_sparse(layout: str) -> None:
    data = Graph.from_arrays(FEATURES, PATH, [0, 1, 0]).to_pyg()
    data.x = getattr(data.x, layout)()
    assert Graph.from_pyg(data).equals(Graph.from_arrays(sp.csr_array(FEATURES), PATH, [0, 1, 0]))


def test_a_pyg_copy_does_not_share_memory() -> None:
    graph = Graph.from_arrays(FEATURES, PATH, [0, 1, 0])
    data = graph.to_pyg()
    data.x += 1
    data.y += 1
    assert graph.labels.tolist() == [0, 1, 0]
    assert np.array_equal(graph.dense_features(), FEATURES)


@pytest.mark.parametrize("as_given", [np.array, sp.csr_array], ids=["dense", "sparse"])
def test_a_graph_does_not_share_memory_with_what_it_was_made_of(as_given: Any) -> None:
    features, edges, labels = as_given(FEATURES), np.array(PATH), np.array([0, 1, 0])
    graph = Graph.from_arrays(features, edges, labels)
    features *= 2
    edges[:] = 0
    labels[:] = 1
    assert graph.equals(Graph.from_arrays(as_given(FEATURES), PATH, [0, 1, 0]))


def test_pyg_features_of_any_number_type_are_copied() -> None:
    import torch

    data = Graph.from_arrays(FEATURES, PATH, [0, 1, 0]).to_pyg()
    for tensor in (data.x.bfloat16(), data.x.double(), data.x.clone().requires_grad_()):
        data.x = tensor
        graph = Graph.from_pyg(data)
        with torch.no_grad():
            data.x += 1
        assert np.array_equal(graph.dense_features(), FEATURES)


def test_pyg_data_without_edges_is_refused() -> None:
    from torch_geometric.data import Data

    with pytest.raises(InputError, match="no edge_index"):
        Graph.from_pyg(Data())


@given(arrays())
def test_networkx_round_trip(given_arrays: dict[str, Any]) -> None:
    graph = Graph.from_arrays(**given_arrays)
    back = Graph.from_networkx(graph.to_networkx(), num_classes=4)
    assert np.array_equal(back.dense_features(), graph.dense_features())
    assert np.array_equal(back.edges, graph.edges)
    assert np.array_equal(back.labels, graph.labels)
    assert back.node_names == tuple(map(str, range(graph.num_nodes)))


def test_networkx_directed_graph_with_names_and_missing_labels() -> None:
    source = nx.DiGraph()
    source.add_node("ann", x=[1.0, 2.0], y=1)
    source.add_node("bob", x=[3.0, 4.0])
    source.add_edges_from([("ann", "bob"), ("bob", "ann")])
    graph = Graph.from_networkx(source)
    assert graph.node_names == ("ann", "bob")
    assert graph.labels.tolist() == [1, UNLABELLED]
    assert graph.edges.tolist() == [[0], [1]]


def _networkx(**nodes: Any) -> nx.Graph:
    graph = nx.Graph()
    for name, features in nodes.items():
        graph.add_node(name, **({} if features is None else {"x": features}))
    return graph


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (_networkx(), "graph has no"),
        (_networkx(a=[1], b=None), "no attribute 'x'"),
        (_networkx(a=[1], b=[1, 2]), "different lengths [1, 2]"),
        (_networkx(a=np.zeros((2, 2)), b=np.zeros((2, 3))), "different lengths [4, 6]"),
        (_networkx(a="word"), "not a matrix"),
    ],
)
def test_bad_networkx_graphs_are_refused_with_a_sentence(graph: nx.Graph, sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.from_networkx(graph)
    assert sentence in str(refusal.value)


# ---- bad files ----------------------------------------------------------------------------------

EDGE = np.array([[0], [1]])
BAD_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no edges": ({"x": np.zeros((2, 2))}, "has no array 'edge_index', only x"),
    "text edges": ({"edge_index": np.array([["a"], ["b"]])}, "edges are text"),
    "scalar labels": ({"edge_index": EDGE, "y": np.array(3)}, "does not hold a graph"),
    "half a sparse matrix": ({"edge_index": EDGE, "features_indptr": np.array([0, 1, 1])}, "features_data"),
    "sparse index outside": (
        {
            "edge_index": EDGE,
            "features_data": np.ones(1),
            "features_indices": np.array([7]),
            "features_indptr": np.array([0, 1, 1]),
            "features_shape": np.array([2, 2]),
        },
        "features are not a matrix of numbers",
    ),
    "pickles": ({"edge_index": EDGE, "y": np.array([{}, {}])}, "is not a readable npz file of plain arrays"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_npz_is_refused_by_name(tmp_path: Path, content: dict[str, Any], sentence: str) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, **content)
    with pytest.raises(InputError) as refusal:
        Graph.from_npz(file)
    assert str(file) in str(refusal.value)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_files_that_are_no_npz_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(InputError, match="not an npz"):
        Graph.from_npz(tmp_path / "bad.npz")


def test_a_damaged_npz_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    """Every byte of a small file is changed in turn: the graph is refused by name, or is still a graph."""
    file = tmp_path / "mine.npz"
    np.savez_compressed(file, edge_index=np.array(PATH), x=FEATURES, y=np.array([0, 1, 0]))
    whole, refused = file.read_bytes(), 0
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            Graph.from_npz(file)
        except InputError as error:
            refused += 1
            assert str(file) in str(error)  # noqa: PT017 - what is not refused is no failure
    assert refused > len(whole) / 6


def test_missing_npz() -> None:
    with pytest.raises(MissingDataError, match=r"nowhere\.npz is not"):
        Graph.from_npz("nowhere.npz")


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
def test_edges_are_tidied_alike_however_many_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = np.random.default_rng(0).integers(0, 9, (2, 120))
    distinct = sorted({(min(u, v), max(u, v)) for u, v in pairs.T.tolist() if u != v})
    monkeypatch.setattr("fedspray.data.edges._AT_ONCE", at_once)
    graph = Graph.from_arrays(np.zeros((9, 1)), pairs)
    assert [tuple(pair) for pair in graph.edges.T.tolist()] == distinct
    directed = {(u, v) for u, v in pairs.T.tolist() if u != v}
    assert graph.cleaning.one_way == sum((v, u) not in directed for u, v in directed)
    assert graph.cleaning.duplicates == sum(u != v for u, v in pairs.T.tolist()) - len(directed)
