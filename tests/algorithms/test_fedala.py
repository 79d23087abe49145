from __future__ import annotations

from typing import Any

import pytest
import torch
from play import play, same, trained_accuracy
from toys import permuted_federation, ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.base import supervised_loss
from fedspray.algorithms.fedala import FedALA
from fedspray.errors import InputError
from fedspray.nn.tree import part_of

ALL: dict[str, Any] = {"mixed_layers": 9, "share_lr": 0.0}


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
@pytest.mark.parametrize("settings", [{**ALL, "share_start": 1.0}, {"mixed_layers": 0}, {"share_lr": 0.0}])
def test_shares_of_one_are_fedavg_bit_for_bit(backbone: str, settings: dict[str, Any]) -> None:
    federation = ragged_federation()
    mixed = play("fedala", federation, backbone, **settings)
    average = play("fedavg", federation, backbone)
    assert same(mixed.server, average.server)
    assert torch.equal(mixed.logits(), average.logits())
    assert mixed.uplinks[-1]["mean_share"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_shares_of_zero_are_local_bit_for_bit(backbone: str) -> None:
    federation = ragged_federation()
    mixed = play("fedala", federation, backbone, share_start=0.0, **ALL)
    local = play("local", federation, backbone)
    assert same(mixed.client.gnn, local.client.gnn)
    assert torch.equal(mixed.logits(), local.logits())


def test_lower_layers_are_the_servers() -> None:
    game = play("fedala", ragged_federation(), share_start=0.0, share_lr=0.0)
    lower = {name: game.message[f"gnn.{name}"] for name in ("conv1.weight", "conv1.bias")}
    upper = {name: game.client.gnn[name] for name in ("conv2.weight", "conv2.bias")}
    assert torch.equal(game.logits(), game.algorithm.backbone.logits({**lower, **upper}, game.batch))


def test_nothing_is_learned_while_the_models_are_the_same() -> None:
    first = play("fedala", ragged_federation(), rounds=1)
    second = play("fedala", ragged_federation(), rounds=2)
    assert all((share == 1).all() for share in first.client.shares.values())
    assert first.client.learned.tolist() == [0, 0, 0]
    assert second.client.learned.tolist() == [1, 1, 1]


def test_one_step_of_the_shares() -> None:
    """W = clip(1 - η · ∂L/∂θ̂ ⊙ (θ - θ_k)) at θ̂ = θ, by the chain rule instead of through W."""
    settings: dict[str, Any] = {"share_sample": 1.0, "first_share_steps": 1, "share_lr": 50.0, "mixed_layers": 2}
    before = play("fedala", ragged_federation(), rounds=1, dropout=0.0, **settings)
    after = play("fedala", ragged_federation(), rounds=2, dropout=0.0, **settings)
    received = {name: value.requires_grad_() for name, value in part_of(before.message, "gnn").items()}
    _, logits = before.algorithm.backbone.train_outputs(received, before.batch, 0, 0)
    supervised_loss(logits, before.batch).sum().backward()  # type: ignore[no-untyped-call]
    moved = 0
    for name, value in received.items():
        assert value.grad is not None
        gap = value.detach() - before.client.gnn[name]
        expected = (1 - 50.0 * value.grad * gap).clamp(0, 1)
        assert torch.allclose(after.client.shares[name], expected, rtol=0, atol=1e-10)
        moved += int((expected < 1).sum())
    assert moved > 10


def test_shares_stay_between_zero_and_one() -> None:
    game = play("fedala", ragged_federation(), rounds=6, share_lr=1e6, mixed_layers=2)
    for share in game.client.shares.values():
        assert ((share >= 0) & (share <= 1)).all()
    assert (game.uplinks[-1]["mean_share"] < 1).all()


def test_shares_are_learned_on_a_part_of_the_training_nodes() -> None:
    batch = stack(ragged_federation())
    algorithm = FedALA(backbone=backbones.make("gcn"), share_sample=0.5)
    drawn = [algorithm._draw_sample(batch, seed) for seed in (0, 1)]
    for parts in (torch.split(sample, list(batch.train_rows.sizes)) for sample in drawn):
        for part, size in zip(parts, batch.train_rows.sizes, strict=True):
            assert int((part > 0).sum()) == max(1, size // 2)
            assert part.sum().item() == pytest.approx(1)
    assert not torch.equal(*drawn)


@pytest.mark.slow
def test_clients_that_disagree_take_less_of_the_global_model() -> None:
    federation = permuted_federation(num_nodes=100)
    assert trained_accuracy("fedavg", federation) < 0.6
    assert trained_accuracy("fedala", federation) > 0.75


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"share_start": 2.0},
            "share_start is 2.0",
        ),
        ({"share_steps": -1}, "share_steps is -1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedALA(backbone=backbones.make("gcn"), **settings)
    assert str(caught.value).startswith(sentence)
