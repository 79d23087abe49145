"""Steps before clients are made: by hand, and equal to PyTorch Geometric's transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspray import build_federation
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.data.preparation import STEPS, largest_component, normalise_rows, prepare, steps_of
from fedspray.errors import InputError

EDGES = [[1, 4, 2, 6], [4, 5, 6, 7]]  # components {0}, {1, 4, 5}, {2, 6, 7}, {3}
FEATURES = np.array([[1, 3], [0, 0], [2, 0], [5, 5], [0, 1], [4, 12], [1, 1], [0, 9]], dtype=np.float32)


def graph(*, sparse: bool = False) -> Graph:
    features: Any = sp.csr_array(FEATURES) if sparse else FEATURES
    names = [f"n{node}" for node in range(8)]
    return Graph.from_arrays(features, EDGES, [0, 1, 0, 1, 1, 0, -1, 0], node_names=names)


def test_of_two_largest_components_the_first_is_kept() -> None:
    kept = largest_component(graph())
    assert kept.node_names == ("n1", "n4", "n5")
    assert kept.edges.tolist() == [[0, 1], [1, 2]]
    assert kept.labels.tolist() == [1, 1, 0]
    assert largest_component(kept).equals(kept)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_add_up_to_one(sparse: bool) -> None:
    made = normalise_rows(graph(sparse=sparse))
    assert made.is_sparse == sparse
    assert made.dense_features().dtype == np.float32
    expected = [[0.25, 0.75], [0, 0], [1, 0], [0.5, 0.5], [0, 1], [0.25, 0.75], [0.5, 0.5], [0, 1]]
    assert made.dense_features().tolist() == expected
    signed = Graph.from_arrays(sp.csr_array(-FEATURES) if sparse else -FEATURES, EDGES)
    assert np.array_equal(normalise_rows(signed).dense_features(), -made.dense_features())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyG's import
def test_steps_are_those_of_pyg() -> None:
    from torch_geometric.transforms import Compose, LargestConnectedComponents, NormalizeFeatures

    rng = np.random.default_rng(0)
    words = rng.binomial(3, 0.1, size=(200, 40))
    random = Graph.from_arrays(words, rng.integers(0, 200, size=(2, 180)), rng.integers(0, 3, 200))
    made = prepare(random, steps_of("largest-component,normalise-rows"))
    oracle = Compose([LargestConnectedComponents(), NormalizeFeatures()])(random.to_pyg())
    assert 20 < made.num_nodes < 200
    assert made.num_nodes == oracle.num_nodes
    assert np.allclose(made.dense_features(), oracle.x.numpy(), rtol=1e-6, atol=0)
    assert np.array_equal(made.edges, Graph.from_pyg(oracle).edges)
    assert np.array_equal(made.labels, oracle.y.numpy())


def test_names() -> None:
    assert steps_of(None) == []
    assert steps_of("normalise-rows, largest-component") == [normalise_rows, largest_component]
    assert list(STEPS) == ["largest-component", "normalise-rows"]
    for text in ("", "largest-component,", "rows"):
        with pytest.raises(InputError, match=r"unknown step.*largest-component, normalise-rows"):
            build_federation("banks", prepare=text)


def sums(federation: Federation) -> set[float]:
    rows = np.concatenate([abs(client.graph.dense_features()).sum(axis=1) for client in federation.clients])
    return set(np.round(rows, 5).tolist())


def test_a_graph_is_prepared_before_it_is_cut(tmp_path: Path) -> None:
    graph().to_npz(tmp_path / "graph.npz")
    cut: dict[str, Any] = {"dataset": tmp_path / "graph.npz", "partitioner": "metis", "clients": 1}
    whole, made = build_federation(**cut), build_federation(**cut, prepare="largest-component,normalise-rows")
    assert (whole.clients[0].graph.num_nodes, made.clients[0].graph.num_nodes) == (8, 3)
    assert sums(made) == {0.0, 1.0}
    assert made.settings["prepare"] == "largest-component,normalise-rows"
    assert "prepare" not in whole.settings


def test_separate_clients_are_prepared_one_by_one(tmp_path: Path) -> None:
    plain = build_federation("banks", clients=2, nodes=200)
    made = build_federation("banks", clients=2, nodes=200, prepare="normalise-rows")
    assert sums(made) == {1.0}
    assert made.split_fingerprint() == plain.split_fingerprint()
    assert build_federation("banks", clients=2, nodes=200, prepare=None).fingerprint() == plain.fingerprint()
    plain.save(tmp_path / "saved")
    with pytest.raises(InputError, match=r"prepare 'normalise-rows'.* clients are fixed"):
        build_federation(tmp_path / "saved", prepare="normalise-rows")


def test_node_lists_are_for_the_whole_graph(tmp_path: Path) -> None:
    graph().to_npz(tmp_path / "graph.npz")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("1\n4\n")
    cut: dict[str, Any] = {"dataset": tmp_path / "graph.npz", "partition_dir": tmp_path / "lists"}
    assert build_federation(**cut, prepare="normalise-rows").clients[0].node_ids.tolist() == [1, 4]
    with pytest.raises(InputError, match="lists are for 8"):
        build_federation(**cut, prepare="largest-component")


@pytest.mark.data
def test_computers_and_photo_have_small_components(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    for dataset, nodes, edges in (("photo", 7_487, 119_043), ("computers", 13_381, 245_778)):
        (client,) = build_federation(dataset, partitioner="metis", clients=1, prepare="largest-component").clients
        assert (client.graph.num_nodes, client.graph.num_edges) == (nodes, edges)
