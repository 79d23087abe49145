from __future__ import annotations

from typing import Any

import pytest
import torch
from play import Play, build, play, same, trained_accuracy
from toys import awkward_federation, permuted_federation, ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.ditto import Ditto
from fedspray.errors import InputError


def in_single_precision(name: str, backbone: str = "gcn", *, sparse: bool, **settings: Any) -> Play:
    """With sizes that no product can take four at a time, so that another order of sums would show."""
    batch = stack(ragged_federation(sparse=sparse), dtype=torch.float32)
    return Play(build(name, backbone, hidden=5, **settings), batch, rounds=20)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_without_leash_personal_models_are_locals(backbone: str, sparse: bool) -> None:
    ditto = in_single_precision("ditto", backbone, sparse=sparse, proximal_weight=0.0)
    local = in_single_precision("local", backbone, sparse=sparse)
    assert same(ditto.client.personal, local.client.gnn)
    assert torch.equal(ditto.logits(), local.logits())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_shared_model_is_fedavgs(weight: float, sparse: bool) -> None:
    """Whatever the leash: nothing flows from the personal model into what is sent, but for its distance."""
    ditto = in_single_precision("ditto", sparse=sparse, proximal_weight=weight)
    average = in_single_precision("fedavg", sparse=sparse)
    for mine, theirs in zip(ditto.uplinks, average.uplinks, strict=True):
        assert set(mine) - set(theirs) == {"distance"}
        assert all(torch.equal(mine[key], value) for key, value in theirs.items())


def test_a_tighter_leash_is_shorter() -> None:
    federation = ragged_federation()
    distances = [
        play("ditto", federation, rounds=10, proximal_weight=weight).uplinks[-1]["distance"] for weight in (0, 0.1, 10)
    ]
    assert (distances[0] > distances[1]).all()
    assert (distances[1] > distances[2]).all()


def test_the_leash_is_tied_to_the_global_model() -> None:
    """A client without labels has nothing but the leash, and follows the model that the others train."""
    federation = awkward_federation()
    start = play("ditto", federation, rounds=0, dropout=0.0)
    game = play("ditto", federation, rounds=10, dropout=0.0)
    for name, goal in game.server.gnn.items():
        began, ended = start.client.personal[name][3], game.client.personal[name][3]
        assert (ended - goal).norm() < 0.5 * (began - goal).norm()


def test_the_distance_is_recorded() -> None:
    game = play("ditto", ragged_federation(), rounds=2)
    received = play("ditto", ragged_federation(), rounds=1).message
    gaps = [(value - received[f"gnn.{name}"]).flatten(1) for name, value in game.client.personal.items()]
    expected = torch.cat(gaps, dim=1).norm(dim=1)
    assert game.record()["distance"] == pytest.approx(expected.tolist(), rel=1e-4)


@pytest.mark.slow
def test_clients_that_disagree_gain_from_a_personal_model() -> None:
    """Half of them name the classes differently: no single model can be right for both halves."""
    federation = permuted_federation(num_nodes=100)
    assert trained_accuracy("fedavg", federation) < 0.6
    assert trained_accuracy("ditto", federation) > 0.8


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="proximal_weight is -1"):
        Ditto(backbone=backbones.make("gcn"), proximal_weight=-1)
