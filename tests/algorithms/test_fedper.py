from __future__ import annotations

import pytest
import torch
from play import play, same, trained_accuracy
from toys import permuted_federation, ragged_federation

from fedspray import backbones
from fedspray.algorithms.fedper import FedPer
from fedspray.data.federation import Task
from fedspray.errors import InputError


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "gat"])
def test_nothing_personal_is_fedavg(backbone: str) -> None:
    federation = ragged_federation()
    shared = play("fedper", federation, backbone, personal_layers=0)
    average = play("fedavg", federation, backbone)
    assert same(shared.server, average.server)
    assert torch.equal(shared.logits(), average.logits())


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "gat"])
def test_everything_personal_is_local(backbone: str) -> None:
    federation = ragged_federation()
    personal = play("fedper", federation, backbone, personal_layers=2)
    local = play("local", federation, backbone)
    assert set(personal.uplinks[-1]) == {"num_train"}
    assert personal.message == {}
    assert torch.equal(personal.logits(), local.logits())


@pytest.mark.parametrize(
    ("backbone", "layers", "expected"),
    [
        ("gcn", 1, ["conv2.weight", "conv2.bias"]),
        ("gat", 1, ["conv2.weight", "conv2.source", "conv2.target", "conv2.bias"]),
        ("gcn", 5, ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]),
        ("sgc", 1, ["linear.bias"]),  # its only layer is cut inside
        ("sgc", 2, ["linear.weight", "linear.bias"]),
    ],
)
def test_the_top_layers_are_personal(backbone: str, layers: int, expected: list[str]) -> None:
    algorithm = FedPer(backbone=backbones.make(backbone), personal_layers=layers)
    assert algorithm.personal_names(Task(5, 3)) == expected


def test_personal_layers_do_not_travel() -> None:
    game = play("fedper", ragged_federation())
    assert set(game.uplinks[-1]) == {"gnn.conv1.weight", "gnn.conv1.bias", "num_train"}
    weights = game.client.personal["conv2.weight"]
    assert not torch.allclose(weights[0], weights[1])


def test_own_start_differs_between_clients_and_keeps_the_shared_part() -> None:
    common = play("fedper", ragged_federation(), rounds=0)
    own = play("fedper", ragged_federation(), rounds=0, personal_start="own")
    assert torch.equal(common.client.personal["conv2.weight"][0], common.client.personal["conv2.weight"][1])
    assert not torch.equal(own.client.personal["conv2.weight"][0], own.client.personal["conv2.weight"][1])
    assert torch.equal(common.server.gnn["conv1.weight"], own.server.gnn["conv1.weight"])


def test_a_shared_body_serves_clients_that_name_classes_differently() -> None:
    """Half of them name the classes differently, but what makes a kind of node is the same for all."""
    federation = permuted_federation(num_nodes=100)
    assert trained_accuracy("fedavg", federation) < 0.6
    assert trained_accuracy("fedper", federation) > 0.85


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(InputError, match="personal_layers is -1"):
        FedPer(backbone=backbones.make("gcn"), personal_layers=-1)
