from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from play import Play
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.base import supervised_loss
from fedspray.algorithms.scaffold import SCAFFOLD
from fedspray.data.batch import GraphBatch
from fedspray.errors import InputError
from fedspray.nn import ops
from fedspray.nn.tree import Params, expand


def start(clients: list[list[int]], backbone: str = "gcn", net: dict[str, Any] | None = None, **settings: Any) -> Play:
    federation = ragged_federation()
    algorithm = SCAFFOLD(backbone=backbones.make(backbone, **(net or {"hidden": 8, "init": "glorot"})), **settings)
    return Play(algorithm, *(stack(federation, block) for block in clients))


def pooled_gradient(gnn: Params, batch: GraphBatch, weights: torch.Tensor, weight_decay: float = 0.0) -> Params:
    """The gradient of Σ_k p_k L_k(θ) at one common θ."""
    leaves = {name: value.clone().requires_grad_() for name, value in gnn.items()}
    _, logits = backbone_of(gnn).train_outputs(expand(leaves, batch.num_clients), batch, 0, 0)
    loss = ops.weighted_mean(supervised_loss(logits, batch), weights)
    found = torch.autograd.grad(loss, list(leaves.values()))
    return {name: grad + weight_decay * gnn[name] for name, grad in zip(gnn, found, strict=True)}


def backbone_of(gnn: Params) -> Any:
    return backbones.make("sgc") if "linear.weight" in gnn else backbones.make("gcn", hidden=8)


def test_one_client_is_local_sgd() -> None:
    game = start([[1]], net={"hidden": 8, "init": "glorot", "dropout": 0.2, "weight_decay": 0.01}, sgd_lr=0.1)
    batch, backbone = game.batch, game.algorithm.backbone
    params = {name: value[None].clone().requires_grad_() for name, value in game.server.gnn.items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.1, weight_decay=0.01)
    for index in range(4):
        game.round(index)
        for epoch in range(5):
            optimizer.zero_grad()
            _, logits = backbone.train_outputs(params, batch, index, epoch)
            supervised_loss(logits, batch).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for name, value in params.items():
        assert torch.allclose(game.server.gnn[name], value[0], rtol=0, atol=1e-10)
        assert torch.allclose(game.server.control[name], game.client.control[name][0], rtol=0, atol=1e-10)


def test_one_step_is_a_step_on_all_data_together() -> None:
    game = start([[0, 1, 2]], sgd_lr=0.1, local_epochs=1)
    for index in range(3):  # with E = 1 the corrections cancel in every round
        gradient = pooled_gradient(game.server.gnn, game.batch, game.batch.num_train)
        expected = {name: value - 0.1 * gradient[name] for name, value in game.server.gnn.items()}
        game.round(index)
        for name, value in expected.items():
            assert torch.allclose(game.server.gnn[name], value, rtol=0, atol=1e-12)


def test_after_one_step_the_control_is_the_gradient() -> None:
    game = start([[0, 1, 2]], sgd_lr=0.1, local_epochs=1)
    for index in range(3):
        at = game.server.gnn
        game.round(index)
    for k in range(3):
        own = pooled_gradient(at, game.batch, torch.eye(3, dtype=torch.float64)[k])
        for name, value in own.items():
            assert torch.allclose(game.client.control[name][k], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["train", "uniform"])
def test_the_servers_control_is_the_mean_of_the_clients(weighting: str) -> None:
    """Also when not everybody trains in a round."""
    game = start([[0], [1], [2]], weighting=weighting)
    trained: set[int] = set()
    for index, ids in enumerate([[1], [0, 1], [2, 0], [1, 2], [0]]):
        game.round(index, ids)
        trained |= set(ids)
        sizes = torch.tensor([float(game.batches[k].num_train[0]) for k in sorted(trained)], dtype=torch.float64)
        weights = sizes if weighting == "train" else torch.ones_like(sizes)
        for name, value in game.server.control.items():
            controls = torch.cat([game.clients[k].control[name] for k in sorted(trained)])
            assert torch.allclose(value, ops.weighted_mean(controls, weights), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_control_removes_the_bias_of_local_steps() -> None:
    """A convex problem with unlike clients and many local steps.

    Averaged SGD rests where the clients' pulls cancel after 20 steps each, which is not the minimum of the sum.
    With controls it rests at the minimum.
    """
    lengths = {}
    for controlled in (False, True):
        game = start([[0, 1, 2]], "sgc", {"weight_decay": 0.05}, sgd_lr=0.5, local_epochs=20)
        zeros = game.clients[0], game.server.control
        for index in range(60):
            if not controlled:
                game.clients[0], game.server = zeros[0], replace(game.server, control=zeros[1])
            game.round(index)
        gradient = pooled_gradient(game.server.gnn, game.batch, game.batch.num_train, weight_decay=0.05)
        lengths[controlled] = sum(float(value.square().sum()) for value in gradient.values()) ** 0.5
    assert lengths[False] > 1e-3
    assert lengths[True] < 1e-6


def test_the_servers_step_can_be_shorter() -> None:
    whole, half = start([[0, 1, 2]]), start([[0, 1, 2]], server_lr=0.5)
    before = whole.server.gnn
    whole.round(0)
    half.round(0)
    for name, value in before.items():
        assert torch.allclose(half.server.gnn[name], (value + whole.server.gnn[name]) / 2)


def test_lengths_are_recorded() -> None:
    game = start([[0, 1, 2]])
    game.round(0)
    found = game.record()
    assert found["control"] > 0
    assert len(found["control_change"]) == 3


def test_step_sizes_must_be_positive() -> None:
    with pytest.raises(InputError, match="sgd_lr is 0, but must be above 0"):
        SCAFFOLD(backbone=backbones.make("gcn"), sgd_lr=0)
