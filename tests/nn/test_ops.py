from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from toys import awkward_federation, ragged_federation, stack

from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.nn import ops


def dense(matrix: Tensor) -> Tensor:
    return matrix.to_dense()


@pytest.mark.parametrize("sparse", [False, True])
def test_each_client_meets_its_own_weights(sparse: bool) -> None:
    federation = ragged_federation(sparse=sparse)
    batch = stack(federation)
    weight = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bias = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    result = ops.feature_linear(batch.rows, weight, bias)
    for k, client in enumerate(federation.clients):
        plain = torch.as_tensor(client.graph.dense_features(), dtype=torch.float64)
        rows = result[batch.rows.ptr[k] : batch.rows.ptr[k + 1]]
        assert torch.allclose(rows, plain @ weight[k] + bias[k], atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_of_products_are_right(sparse: bool) -> None:
    batch = stack(ragged_federation(sparse=sparse))
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 5, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(3, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    second = torch.randn(3, 2, 3, dtype=torch.float64, generator=generator, requires_grad=True)

    def network(weight: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        hidden = ops.propagate(batch.mean_adjacency, ops.feature_linear(batch.rows, weight), batch.rows.ptr, bias)
        return ops.linear(hidden, batch.rows.ptr, second, torch.cat([bias, bias[:, :1]], dim=1))

    assert torch.autograd.gradcheck(network, (weight, bias, second))


def test_mean_of_neighbours_beside_the_node_itself() -> None:
    """A L + R + b in one operation is what its parts are, and so are its gradients."""
    batch = stack(ragged_federation())
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(batch.num_nodes, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(3, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    left, right = both.chunk(2, dim=1)
    parts = ops.propagate(batch.mean_adjacency, left.contiguous(), batch.rows.ptr, bias) + right
    result = ops.propagate_beside(batch.mean_adjacency, both, batch.rows.ptr, bias)
    assert torch.allclose(result, parts, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda both, bias: ops.propagate_beside(batch.mean_adjacency, both, batch.rows.ptr, bias), (both, bias)
    )


def test_equal_sized_clients_in_one_call_give_what_one_call_each_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MANY", 2)
    ops._equal_sizes.cache_clear()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(3, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    result = ops.linear(inputs, (0, 4, 8, 12), weight, bias)
    for k in range(3):
        assert torch.allclose(result[4 * k : 4 * k + 4], inputs[4 * k : 4 * k + 4] @ weight[k] + bias[k], atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda *parts: ops.linear(parts[0], (0, 4, 8, 12), *parts[1:]), (inputs, weight, bias)
    )


def test_soft_cross_entropy_is_torchs_weighted_by_hand() -> None:
    batch = stack(ragged_federation())
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch.num_nodes, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    shares = torch.rand(3, batch.num_nodes, dtype=torch.float64, generator=generator)
    targets = batch.train_targets + shares
    result = ops.soft_cross_entropy(logits, targets, batch.rows)
    losses = functional.cross_entropy(logits[batch.train], batch.train_labels, reduction="none")
    distances = -(shares.T * logits.log_softmax(dim=1)).sum(dim=1)
    for k, (start, stop) in enumerate(pairwise(batch.rows.ptr)):
        own = losses[(batch.train >= start) & (batch.train < stop)].mean()
        assert torch.isclose(result[k], own + distances[start:stop].sum())
    assert torch.autograd.gradcheck(lambda z: ops.soft_cross_entropy(z, targets, batch.rows), (logits,))


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (3, 3)])
def test_logits_stay_as_they_are(shape: tuple[int, int]) -> None:
    """Of one node, or one class, logits are contiguous either way round."""
    logits = torch.arange(float(shape[0] * shape[1])).reshape(shape) + 1
    before, rows = logits.clone(), NodeRows((0, shape[0]), torch.ones(shape[0], 2))
    assert ops.probabilities(logits).shape == (shape[1], shape[0])
    ops.soft_cross_entropy(logits, torch.ones(shape[1], shape[0]), rows)
    assert logits.equal(before)


def test_a_client_alone_gets_the_bits_that_it_gets_in_a_block() -> None:
    batch = stack(ragged_federation(), dtype=torch.float32)
    logits = 3 * torch.randn(batch.num_nodes, 3, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    together = ops.probabilities(logits)
    (gradient,) = torch.autograd.grad(ops.soft_cross_entropy(logits, batch.train_targets, batch.rows).sum(), logits)
    assert torch.allclose(together.T, logits.softmax(dim=1), atol=1e-6)
    for k, (start, stop) in enumerate(pairwise(batch.rows.ptr)):
        alone = stack(ragged_federation(), ids=[k], dtype=torch.float32)
        own = logits[start:stop].detach().clone().requires_grad_()
        (mine,) = torch.autograd.grad(ops.soft_cross_entropy(own, alone.train_targets, alone.rows).sum(), own)
        assert torch.equal(mine, gradient[start:stop])
        assert torch.equal(ops.probabilities(own), together[:, start:stop])


def test_adjacencies_of_a_path() -> None:
    """a - b - c, the first client of `awkward`: chain of 8; its ends have one neighbour."""
    batch = stack(awkward_federation(), ids=[0])
    gcn, mean = dense(batch.gcn_adjacency.matrix), dense(batch.mean_adjacency.matrix)
    assert gcn[0, 0] == pytest.approx(1 / 2)  # degree 1 plus itself
    assert gcn[0, 1] == pytest.approx(1 / 6**0.5)
    assert gcn[1, 1] == pytest.approx(1 / 3)
    assert torch.equal(gcn, gcn.T)
    assert mean[0].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert mean[1, [0, 2]].tolist() == [0.5, 0.5]
    assert torch.equal(dense(batch.mean_adjacency.transpose), mean.T)


def test_clients_do_not_touch_and_indices_are_int32() -> None:
    batch = stack(ragged_federation(sparse=True))
    adjacency = dense(batch.gcn_adjacency.matrix)
    owner = batch.rows.client_of
    assert not adjacency[owner[:, None] != owner[None, :]].any()
    features = batch.rows.features
    assert isinstance(features, SparseMatrix)
    for matrix in (features.matrix, features.transpose, batch.gcn_adjacency.matrix):
        assert matrix.crow_indices().dtype == torch.int32
        assert matrix.col_indices().dtype == torch.int32
    assert batch.gcn_adjacency.transpose is batch.gcn_adjacency.matrix  # symmetric: stored once


def test_sums_and_means_by_client() -> None:
    batch = stack(awkward_federation())
    values = torch.arange(32.0, dtype=torch.float64)
    assert ops.client_sum(values, batch.rows).tolist() == [28.0, 92.0, 156.0, 220.0]  # 0+…+7, 8+…+15, …
    assert ops.client_mean(values, batch.rows).tolist() == [3.5, 11.5, 19.5, 27.5]
    per_train = torch.ones(len(batch.train), dtype=torch.float64)
    assert ops.client_mean(per_train, batch.train_rows).tolist() == [1.0, 1.0, 1.0, 0.0]  # the last has no label


def test_weighted_mean() -> None:
    values = torch.tensor([[1.0], [4.0]])
    assert ops.weighted_mean(values, torch.tensor([1.0, 2.0])) == 3.0  # (1·1 + 2·4) / 3


def test_squared_distance_and_its_gradient() -> None:
    own = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)}
    centre = {"a": torch.tensor([0.5, 4.0])}
    distances = ops.squared_distance(own, centre)
    assert distances.tolist() == [0.25 + 4.0, 6.25 + 0.0]
    (0.1 / 2 * distances).sum().backward()  # type: ignore[no-untyped-call]
    assert own["a"].grad is not None
    assert torch.allclose(own["a"].grad, 0.1 * (own["a"].detach() - centre["a"]))


def test_a_distance_that_is_rounding_has_no_gradient() -> None:
    own = {"a": torch.full((1, 3), 1e-9, dtype=torch.float64, requires_grad=True)}
    ops.squared_distance(own, {"a": torch.zeros(3, dtype=torch.float64)}).sum().backward()  # type: ignore[no-untyped-call]
    assert own["a"].grad is not None
    assert not own["a"].grad.any()
