from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build, play, same, take_in
from toys import awkward_federation, ragged_federation, stack

from fedspray.algorithms._averaging import ServerState
from fedspray.algorithms.base import supervised_loss
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.nn import ops
from fedspray.nn.tree import Message, expand


def copies(federation: Federation, k: int, count: int = 3) -> GraphBatch:
    """The same client several times, under the same id: its draws are the same too."""
    return GraphBatch.from_clients([federation.clients[k]] * count, [k] * count, dtype=torch.float64)


def uplink(values: list[float], num_train: list[float]) -> Message:
    return {"gnn.w": torch.tensor(values)[:, None], "num_train": torch.tensor(num_train)}


def averaged(message: Message) -> float:
    server = take_in(build("fedavg"), ServerState({"w": torch.tensor([9.0])}), message, range(len(message["gnn.w"])))
    return float(server.gnn["w"])


# ---- averages -----------------------------------------------------------------------------------


def test_clients_count_by_training_nodes() -> None:
    assert averaged(uplink([1.0, 4.0], [1.0, 2.0])) == 3.0  # (1·1 + 2·4) / 3


def test_weights_add_up_to_one() -> None:
    """Equal models have themselves as their mean, whatever the counts."""
    counts = [float(n) for n in np.random.default_rng(0).integers(1, 1000, size=50)]
    assert averaged(uplink([7.25] * 50, counts)) == pytest.approx(7.25, rel=1e-6)


def test_the_order_of_clients_does_not_matter() -> None:
    draw = np.random.default_rng(0)
    values, counts = draw.normal(size=20).tolist(), draw.integers(1, 100, size=20).astype(float).tolist()
    order = draw.permutation(20)
    shuffled = uplink([values[k] for k in order], [counts[k] for k in order])
    straight = uplink(values, counts)
    for message in (straight, shuffled):
        message["gnn.w"], message["num_train"] = message["gnn.w"].double(), message["num_train"].double()
    assert averaged(straight) == pytest.approx(averaged(shuffled), abs=1e-10)


def test_a_client_without_training_nodes_has_no_say() -> None:
    assert averaged(uplink([1.0, 4.0, 1e6], [1.0, 2.0, 0.0])) == 3.0
    assert averaged(uplink([1.0, 4.0], [0.0, 0.0])) == 9.0  # nobody has any: as before
    federation = awkward_federation()  # the last client has no labels
    everybody, labelled = (Play(build("fedavg"), stack(federation, ids), rounds=3) for ids in ([0, 1, 2, 3], [0, 1, 2]))
    assert same(everybody.server, labelled.server, 1e-10)


# ---- identities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "sage", "sgc"])
def test_one_client_alone_is_local(backbone: str, reset: bool) -> None:
    batch = stack(ragged_federation(sparse=True), [1], dtype=torch.float32)
    settings: dict[str, Any] = {"dropout": 0.2, "reset_optimizer": reset}
    average, local = (Play(build(name, backbone, **settings), batch, rounds=4) for name in ("fedavg", "local"))
    assert same(average.server.gnn, {name: value[0] for name, value in local.client.gnn.items()})
    assert torch.equal(average.logits(), local.logits())


@pytest.mark.parametrize("reset", [False, True])
def test_identical_clients_are_local(reset: bool) -> None:
    """Three copies of a client: their average is what each would be alone."""
    federation = ragged_federation()
    algorithm, local = (build(name, hidden=8, dropout=0.2, reset_optimizer=reset) for name in ("fedavg", "local"))
    batch = copies(federation, 1)
    alone = Play(local, stack(federation, [1]), rounds=4)
    server, client = Play(algorithm, stack(federation, [1])).server, algorithm.init_clients(federation.task, batch, 0)
    for index in range(4):
        client, sent = algorithm.client_update(client, algorithm.broadcast(server, range(3)), batch, index)
        server = take_in(algorithm, server, sent, range(3))
    assert same(server.gnn, {name: value[0] for name, value in alone.client.gnn.items()}, 1e-10)


@pytest.mark.parametrize("backbone", ["gcn", "sage", "sgc"])
def test_one_step_of_sgd_is_a_step_on_all_data_together(backbone: str) -> None:
    """With a huge ε, Adam's first step is lr/ε times the gradient: η = 0.1 here."""
    sgd: dict[str, Any] = {"lr": 1e11, "adam_eps": 1e12, "local_epochs": 1, "reset_optimizer": True}
    game = Play(build("fedavg", backbone, hidden=8, init="glorot", **sgd), stack(ragged_federation()))
    for index in range(3):
        leaves = {name: value.clone().requires_grad_() for name, value in game.server.gnn.items()}
        _, logits = game.algorithm.backbone.train_outputs(expand(leaves, 3), game.batch, 0, 0)
        loss = ops.weighted_mean(supervised_loss(logits, game.batch), game.batch.num_train)  # Σ_k p_k L_k
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        expected = {name: v.detach() - 0.1 * g for (name, v), g in zip(leaves.items(), gradients, strict=True)}
        game.round(index)
        assert same(game.server.gnn, expected, 1e-10)


def test_kept_moments_are_not_the_same_as_none() -> None:
    kept, reset = (play("fedavg", ragged_federation(), rounds=2, reset_optimizer=value) for value in (False, True))
    assert not same(kept.server, reset.server, 1e-6)
    assert kept.client.gnn_optimizer.step.tolist() == [10, 10, 10]
    assert reset.client.gnn_optimizer.step.tolist() == [5, 5, 5]


def test_the_start_is_locals_and_everybody_gets_the_same() -> None:
    game, local = play("fedavg", ragged_federation(), rounds=0), play("local", ragged_federation(), rounds=0)
    assert same(game.message, {f"gnn.{name}": value for name, value in local.client.gnn.items()}, 1e-7)
