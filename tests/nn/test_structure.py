from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from toys import awkward_federation, ragged_federation, stack

from fedspray.data.batch import GraphBatch
from fedspray.data.graph import Graph
from fedspray.nn import structure
from fedspray.nn.structure import StructureEmbedding, return_probabilities
from fedspray.seeds import generator


def graph_batch(edges: list[list[int]] | np.ndarray, num_nodes: int) -> GraphBatch:
    pairs = np.asarray(edges, dtype=np.int64).reshape(2, -1)
    return GraphBatch.from_graph(Graph.from_arrays(np.ones((num_nodes, 1)), pairs, num_classes=2), dtype=torch.float64)


def random_edges(num_nodes: int, count: int) -> np.ndarray:
    return generator(3, "structure").integers(0, num_nodes, size=(2, count))


def walk_matrix(batch: GraphBatch) -> np.ndarray:
    """M = A D⁻¹, dense; columns of isolated nodes 0."""
    adjacency = np.zeros((batch.num_nodes, batch.num_nodes))
    adjacency[tuple(batch.edges)] = 1
    adjacency += adjacency.T
    return np.asarray(adjacency / np.maximum(adjacency.sum(axis=0), 1))


def test_square_a_walk_is_back_only_after_even_steps() -> None:
    walks = StructureEmbedding(4, 0).of(graph_batch([[0, 1, 2, 3], [1, 2, 3, 0]], 4))
    assert torch.allclose(walks, torch.tensor([0, 1 / 2, 0, 1 / 2]).double().expand(4, -1), rtol=0, atol=1e-12)


def test_triangle_closed_form() -> None:
    """On K3 the chance to be back is (1 + 2 (-1/2)^t) / 3: 0, 1/2, 1/4, 3/8 …"""
    walks = StructureEmbedding(6, 0).of(graph_batch([[0, 1, 2], [1, 2, 0]], 3))
    expected = [(1 + 2 * (-1 / 2) ** t) / 3 for t in range(1, 7)]
    assert expected[:3] == pytest.approx([0, 1 / 2, 1 / 4])
    assert torch.allclose(walks, torch.tensor(expected).double().expand(3, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 7, 16])
def test_diagonals_and_traces_of_dense_powers(steps: int) -> None:
    batch = graph_batch(random_edges(40, 90), 43)  # the last three nodes are isolated
    walks = StructureEmbedding(steps, 0).of(batch).numpy()
    power = np.eye(batch.num_nodes)
    for t in range(steps):
        power = power @ walk_matrix(batch)
        np.testing.assert_allclose(walks[:, t], np.diag(power), atol=1e-12)
        assert walks[:, t].sum() == pytest.approx(np.trace(power))


def test_blocks_of_any_size_give_the_same() -> None:
    dense = (generator(5, "blocks").random((30, 30)) < 0.1).astype(float)
    adjacency = sp.csr_array(np.triu(dense, 1) + np.triu(dense, 1).T)
    whole = return_probabilities(adjacency, 9)
    for entries in (1, 70, 10_000):
        np.testing.assert_allclose(return_probabilities(adjacency, 9, block_entries=entries), whole, atol=1e-14)


def test_memory_is_bounded_by_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """No dense array is larger than a block, however many nodes there are."""
    sizes, zeros = [], np.zeros

    def watched(shape: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        sizes.append(int(np.prod(shape)))
        return zeros(shape, *args, **kwargs)

    monkeypatch.setattr(np, "zeros", watched)
    adjacency = sp.csr_array((np.ones(2), ([0, 1], [1, 0])), shape=(100, 100))
    return_probabilities(adjacency, 2, block_entries=100)
    assert max(sizes) == 200  # a column of 100, and the result of 100 x 2


def test_degree_buckets() -> None:
    """A star with five leaves and an isolated node: degrees 5, 1, 1, 1, 1, 1, 0."""
    batch = graph_batch([[0] * 5, [1, 2, 3, 4, 5]], 7)
    linear = StructureEmbedding(0, 3).of(batch)
    assert linear.argmax(dim=1).tolist() == [2, 0, 0, 0, 0, 0, 0]  # 5 is cut at 3; 0 shares the first bucket
    # ⌊2 log2(1+d)⌋: 5 → 5, 1 → 2, 0 → 0, which shares bucket 1
    assert StructureEmbedding(0, 6, log_degrees=True).of(batch).argmax(dim=1).tolist() == [4, 1, 1, 1, 1, 1, 0]
    isolated = StructureEmbedding(0, 3, isolated_bucket=True).of(batch)
    assert isolated.argmax(dim=1).tolist() == [2, 0, 0, 0, 0, 0, 3]
    for embedding in (linear, isolated):
        assert torch.equal(embedding.sum(dim=1), torch.ones(7).double())


def test_clients_without_edges_are_finite_and_stacking_changes_nothing() -> None:
    for federation in (awkward_federation(), ragged_federation()):
        kind = StructureEmbedding()
        together = kind.of(stack(federation))
        assert torch.isfinite(together).all()
        assert together.shape[1] == kind.width == 32
        apart = [kind.of(stack(federation, [k])) for k in range(federation.num_clients)]
        assert torch.equal(together, torch.cat(apart))
    assert not kind.of(stack(awkward_federation(), [1]))[:, :16].any()  # no edges, no walks


def test_renaming_nodes_renames_rows() -> None:
    edges = random_edges(25, 50)
    order = generator(4, "order").permutation(25)
    plain, renamed = (StructureEmbedding().of(graph_batch(e, 25)) for e in (edges, order[edges]))
    assert torch.allclose(plain, renamed[torch.from_numpy(order)], rtol=0, atol=1e-12)


def test_computed_once_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = stack(ragged_federation())
    first = StructureEmbedding().of(batch)
    monkeypatch.setattr(structure, "return_probabilities", None)  # a second computation would fail
    assert StructureEmbedding().of(batch) is first
