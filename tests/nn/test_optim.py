from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from toys import ragged_federation, stack

from fedspray.algorithms.base import supervised_loss
from fedspray.backbones.gcn import GCN
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.nn import ops, tree
from fedspray.nn.optim import Adam, AdamState


def sparse_batch() -> tuple[Federation, GraphBatch]:
    """Clients that leave some of their feature columns empty."""
    federation = ragged_federation(sparse=True)
    for k, client in enumerate(federation.clients):
        matrix = client.graph.features.toarray()  # type: ignore[union-attr]
        matrix[:, [k, 4]] = 0
        object.__setattr__(client.graph, "features", type(client.graph.features)(matrix))
    return federation, stack(federation, dtype=torch.float32)


def test_leaving_out_unused_feature_columns_changes_rounding_at_most() -> None:
    """torch's fused step rounds an entry differently at the end of a vector, so bits may depend on the neighbours."""
    federation, batch = sparse_batch()
    assert batch.rows.columns is not None
    assert 0 < len(batch.rows.columns) < 3 * 5
    backbone = GCN(hidden=4)
    params = backbone.init_params(federation.task, batch, seed=0)
    results = []
    for memory in (AdamState.zeros(params, 3), AdamState.zeros(params, 3, batch.rows, backbone.feature_weights)):
        weights = params
        for _ in range(3):  # rounds
            steps = Adam(weights, memory, lr=0.05, rows=batch.rows)
            for epoch in range(2):
                steps.step(supervised_loss(backbone.train_outputs(steps.params, batch, 0, epoch)[1], batch))
            weights, memory = steps.result()
        results.append((weights, memory))
    (whole, whole_memory), (rows, rows_memory) = results
    assert all(torch.allclose(whole[name], rows[name], rtol=1e-5, atol=1e-7) for name in whole)
    unused = torch.ones(15, dtype=torch.bool).index_fill(0, batch.rows.columns, False).view(3, 5)
    for weights in (whole, rows):
        assert torch.equal(weights["conv1.weight"][unused], params["conv1.weight"][unused])
    for moments, used_moments in (("first", "used_first"), ("second", "used_second")):
        everything = getattr(whole_memory, moments)["conv1.weight"]
        kept = getattr(rows_memory, used_moments)["conv1.weight"]
        assert torch.allclose(ops.used_rows(everything, batch.rows.columns), kept, rtol=1e-5)
        assert everything.count_nonzero() == kept.count_nonzero()


def test_moments_of_used_columns_are_cut_by_client() -> None:
    federation, batch = sparse_batch()
    params = GCN(hidden=4).init_params(federation.task, batch, seed=0)
    state = AdamState.zeros(params, 3, batch.rows, ["conv1.weight"])
    moments = state.used_first["conv1.weight"]
    moments.copy_(torch.arange(len(moments))[:, None])
    parts = tree.split(state, batch)
    singles = [stack(federation, ids=[k]).rows.columns_by_client for k in range(3)]
    assert [(len(part.used_first["conv1.weight"]),) for part in parts] == singles
    joined = torch.cat([part.used_first["conv1.weight"] for part in parts])
    assert torch.equal(joined, state.used_first["conv1.weight"])


def test_what_a_loss_asks_of_weights_that_are_trained_in_part() -> None:
    """Numbers of the clients, and distances from the start, as if all weights were there; other weights are refused."""
    federation, batch = sparse_batch()
    params = GCN(hidden=4).init_params(federation.task, batch, seed=0)
    part, whole = (
        Adam(params, state, lr=0.05, rows=batch.rows)
        for state in (AdamState.zeros(params, 3, batch.rows, ["conv1.weight"]), AdamState.zeros(params, 3))
    )
    for steps in (part, whole):
        for epoch in range(2):
            _, logits = GCN(hidden=4).train_outputs(steps.params, batch, 0, epoch)
            steps.step(supervised_loss(logits, batch) + 0.1 * steps.distance(params))
    assert part.distance(params).tolist() == pytest.approx(whole.distance(params).tolist(), rel=1e-4)
    assert min(part.distance(params).tolist()) > 0
    numbers = part.per_weight(torch.tensor([2.0, 3.0, 5.0]))
    assert numbers["conv1.bias"].tolist() == [2, 3, 5]
    assert numbers["conv1.weight"].tolist() == [
        (2.0, 3.0, 5.0)[k] for k, size in enumerate(batch.rows.columns_by_client) for _ in range(size)
    ]
    assert whole.all_params.keys() == params.keys()
    with pytest.raises(ValueError, match="AdamState"):
        part.all_params  # noqa: B018
    with pytest.raises(ValueError, match="AdamState"):
        part.distance({name: value + 1 for name, value in params.items()})
    with pytest.raises(ValueError, match="rows"):
        Adam(params, part.result()[1], lr=0.05)


def test_a_forgotten_memory_is_an_empty_one() -> None:
    federation, batch = sparse_batch()
    params = GCN(hidden=4).init_params(federation.task, batch, seed=0)
    empty = AdamState.zeros(params, 3, batch.rows, ["conv1.weight"])
    steps = Adam(params, empty, lr=0.05, rows=batch.rows)
    steps.step(supervised_loss(GCN(hidden=4).train_outputs(steps.params, batch, 0, 0)[1], batch))
    kept, forgotten = (tree.flatten(state) for state in (empty, steps.result()[1].forgotten()))
    assert kept.keys() == forgotten.keys()
    assert all(torch.equal(kept[name], forgotten[name]) for name in kept)


def test_every_client_takes_torchs_own_steps() -> None:
    """Two clients with losses of their own, over two rounds: the memory goes along."""
    draw = torch.Generator().manual_seed(0)
    start = {"weight": torch.randn(2, 3, 4, dtype=torch.float64, generator=draw)}
    goals = torch.randn(2, 3, 4, dtype=torch.float64, generator=draw)
    settings: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1, "eps": 1e-3}

    def losses(weight: Tensor, goal: Tensor) -> Tensor:
        return ((weight - goal) ** 4).flatten(1).sum(dim=1)

    params, state = start, AdamState.zeros(start, 2)
    for steps in (3, 2):
        ours = Adam(params, state, **settings)
        for _ in range(steps):
            ours.step(losses(ours.params["weight"], goals))
        params, state = ours.result()
    for k in range(2):
        alone = start["weight"][k].clone().requires_grad_()
        theirs = torch.optim.Adam([alone], **settings)
        for _ in range(5):
            theirs.zero_grad()
            losses(alone[None], goals[k][None]).sum().backward()  # type: ignore[no-untyped-call]
            theirs.step()
        torch.testing.assert_close(params["weight"][k], alone.detach(), rtol=0, atol=1e-12)
    assert not torch.equal(params["weight"], start["weight"])
