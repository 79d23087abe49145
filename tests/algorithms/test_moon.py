from __future__ import annotations

import math

import pytest
import torch
from play import Play, build, play, same, skewed_accuracy
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.base import Outputs
from fedspray.algorithms.moon import MOON
from fedspray.errors import InputError
from fedspray.nn.optim import Adam, AdamState
from fedspray.nn.tree import part_of


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_no_contrast_is_fedavg_bit_for_bit(backbone: str) -> None:
    federation = ragged_federation()
    moon = play("moon", federation, backbone, contrast_weight=0.0)
    average = play("fedavg", federation, backbone)
    assert same(moon.server, average.server)


def test_the_first_round_is_fedavgs() -> None:
    """The last local model is the global one then, and a node cannot be nearer to one of the two."""
    federation = ragged_federation()
    moon = play("moon", federation, rounds=1, contrast_weight=5.0)
    average = play("fedavg", federation, rounds=1)
    assert same(moon.server, average.server, 1e-10)


def test_the_last_local_model_is_kept() -> None:
    game = play("moon", ragged_federation())
    assert same(game.client.previous, part_of(game.uplinks[-1], "gnn"))


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
    assert loss is not None
    logits = torch.zeros(batch.num_nodes, 3, dtype=torch.float64)
    representation = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64).expand(batch.num_nodes, 3)
    # -log(e^(1/τ) / (e^(1/τ) + e^(-1/τ))) = log(1 + e^(-2/τ)), and ln 3 for the labels
    expected = math.log(3) + 3 * math.log(1 + math.exp(-4))
    found = loss(Outputs(logits, representation, Adam(towards, AdamState.zeros(towards, 3), lr=1)))
    assert torch.allclose(found, torch.full((3,), expected, dtype=torch.float64))


def test_representations_stay_near_the_global_models() -> None:
    federation = ragged_federation()

    def turn(weight: float) -> float:
        """How far a client's training turns what its nodes look like: 1 - mean cosine of after and before."""
        game = Play(build("moon", hidden=8, init="glorot", contrast_weight=weight), stack(federation), rounds=9)
        before = game.algorithm.backbone.representation(part_of(game.message, "gnn"), game.batch)
        game.round(9)
        after = game.algorithm.backbone.representation(game.client.previous, game.batch)
        return 1 - torch.cosine_similarity(before, after)[game.batch.train].mean().item()

    free, held, tight = (turn(weight) for weight in (0.0, 1.0, 5.0))
    assert held < 0.6 * free
    assert tight < 0.3 * free


@pytest.mark.slow
def test_clients_that_see_alike_average_better() -> None:
    assert skewed_accuracy("moon") > skewed_accuracy("fedavg") + 0.02


@pytest.mark.parametrize(("setting", "value"), [("temperature", 0.0), ("contrast_weight", -1.0)])
def test_bad_settings_are_refused(setting: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{setting} is {value}, but must be (above|at least) 0"):
        MOON(backbone=backbones.make("gcn"), **{setting: value})  # type: ignore[arg-type]
