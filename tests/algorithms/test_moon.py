from __future__ import annotations

import math

import pytest
import torch
from algorithms.test_ditto import play
from conformance.test_contract import Play
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.base import Outputs
from fedspray.algorithms.moon import MOON
from fedspray.errors import InputError


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_no_contrast_is_fedavg_bit_for_bit(backbone: str) -> None:
    federation = ragged_federation()
    moon = play("moon", federation, backbone, contrast_weight=0.0)
    average = play("fedavg", federation, backbone)
    assert all(torch.equal(moon.server.gnn[name], value) for name, value in average.server.gnn.items())


def test_the_first_round_is_fedavgs() -> None:
    """The last local model is the global one then, and a node cannot be nearer to one of the two."""
    federation = ragged_federation()
    moon = play("moon", federation, rounds=1, contrast_weight=5.0)
    average = play("fedavg", federation, rounds=1)
    for name, value in average.server.gnn.items():
        assert torch.allclose(moon.server.gnn[name], value, rtol=0, atol=1e-10)


def test_the_last_local_model_is_kept() -> None:
    game = play("moon", ragged_federation())
    for name, value in game.clients[0].previous.items():
        assert torch.equal(value, game.uplinks[-1][f"gnn.{name}"])


@pytest.mark.parametrize("nodes", ["train", "all"])
def test_the_loss_by_hand(nodes: str) -> None:
    """One direction for the global model, the opposite for the last one: cosines 1 and -1 for all nodes alike."""
    algorithm = MOON(backbone=backbones.make("sgc"), contrast_weight=3.0, temperature=0.5, contrast_nodes=nodes)
    federation = ragged_federation()
    batch = stack(federation)
    towards = {"linear.weight": torch.zeros(3, 5, 3), "linear.bias": torch.tensor([[1.0, 0.0, 0.0]]).expand(3, 3)}
    towards = {name: value.double() for name, value in towards.items()}
    away = {name: -value for name, value in towards.items()}
    loss = algorithm._contrastive(towards, away, batch)
    logits = torch.zeros(batch.num_nodes, 3, dtype=torch.float64)
    representation = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64).expand(batch.num_nodes, 3)
    # -log(e^(1/τ) / (e^(1/τ) + e^(-1/τ))) = log(1 + e^(-2/τ)), and ln 3 for the labels
    expected = math.log(3) + 3 * math.log(1 + math.exp(-4))
    found = loss(Outputs(logits, representation, towards))
    assert torch.allclose(found, torch.full((3,), expected, dtype=torch.float64))


def test_representations_stay_near_the_global_models() -> None:
    federation = ragged_federation()

    def nearness(weight: float) -> float:
        """Mean cosine between what a client's nodes look like after its training and before it."""
        algorithm = MOON(backbone=backbones.make("gcn", hidden=8, init="glorot"), contrast_weight=weight)
        game = Play(algorithm, federation, [stack(federation)])
        for index in range(10):
            received = game.algorithm.broadcast(game.server, (0, 1, 2))
            game.round(index)
        batch = game.batches[0]
        before = algorithm.backbone.representation({n.removeprefix("gnn."): v for n, v in received.items()}, batch)
        after = algorithm.backbone.representation(game.clients[0].previous, batch)
        return torch.cosine_similarity(before, after)[batch.train].mean().item()

    assert nearness(5.0) > nearness(0.0) + 1e-4


@pytest.mark.parametrize(("setting", "value"), [("temperature", 0.0), ("contrast_weight", -1.0)])
def test_bad_settings_are_refused(setting: str, value: float) -> None:
    with pytest.raises(InputError, match="needed are weight ≥ 0, temperature > 0"):
        MOON(backbone=backbones.make("gcn"), **{setting: value})  # type: ignore[arg-type]
