"""Weights of edges: from arrays to a batch, through files, and absent where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.errors import InputError

FEATURES = np.eye(4)
EDGES = np.array([[0, 2, 1, 0], [1, 1, 0, 3]])  # 0-1 in both directions, 2-1, 0-3
WEIGHTS = [1.0, 2.0, 4.0, 8.0]


def weighted(edges: object = EDGES, weights: object = WEIGHTS) -> Graph:
    return Graph.from_arrays(FEATURES, edges, [0, 1, 0, 1], edge_weights=weights)  # type: ignore[arg-type]


def test_repeated_edges_add_up_but_a_list_of_both_directions_counts_once() -> None:
    graph = weighted()
    assert graph.edges.tolist() == [[0, 0, 1], [1, 3, 2]]
    assert graph.edge_weights is not None
    assert graph.edge_weights.tolist() == [5, 8, 2]
    both = weighted(np.concatenate([graph.edges, graph.edges[::-1]], axis=1), [5, 8, 2, 5, 8, 2])
    assert both.equals(graph)
    assert not graph.equals(weighted(weights=None))


def test_weights_go_with_their_edges_through_cuts_and_files(tmp_path: Path) -> None:
    graph = weighted()
    assert graph.subgraph(np.array([3, 1, 0])).edges.tolist() == [[0, 1], [2, 2]]
    cut = graph.subgraph(np.array([3, 1, 0])).edge_weights
    assert cut is not None
    assert cut.tolist() == [8, 5]
    federation = Federation.from_graph(graph, [np.array([0, 1, 3]), np.array([2])])
    federation.save(tmp_path / "saved")
    again = Federation.load(tmp_path / "saved")
    assert all(a.graph.equals(b.graph) for a, b in zip(again.clients, federation.clients, strict=True))
    bare = Federation.from_graph(weighted(weights=None), [np.array([0, 1, 3]), np.array([2])])
    assert bare.fingerprint() != federation.fingerprint()
    pyg = graph.to_pyg()
    assert Graph.from_pyg(pyg).equals(graph)


def test_a_batch_normalises_by_weights_as_pyg_does() -> None:
    graph = weighted()
    batch = GraphBatch.from_graph(graph, dtype=torch.float64)
    data: Data = graph.to_pyg()
    index, norm = gcn_norm(data.edge_index, data.edge_weight, 4, dtype=torch.float64)
    expected = torch.zeros(4, 4, dtype=torch.float64).index_put((index[0], index[1]), norm)
    dense = batch.gcn_adjacency.matrix.to_dense()
    torch.testing.assert_close(dense, expected)


@pytest.mark.parametrize("wrong", [[1, 2, 3], [1, 2, 3, 0], [1, 2, 3, -4], [1, 2, 3, np.nan], [1, 2, 3, np.inf]])
def test_weights_are_positive_and_one_for_each_edge(wrong: list[float]) -> None:
    with pytest.raises(InputError, match="weight"):
        weighted(weights=wrong)
