from __future__ import annotations

import pytest
import torch
from algorithms.test_ditto import play, trained_accuracy, two_camps
from toys import ragged_federation

from fedspray import backbones
from fedspray.algorithms.fedper import FedPer
from fedspray.data.federation import Task
from fedspray.errors import InputError


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "gat"])
def test_nothing_personal_is_fedavg(backbone: str) -> None:
    federation = ragged_federation()
    shared = play("fedper", federation, backbone, personal_layers=0)
    average = play("fedavg", federation, backbone)
    assert all(torch.equal(shared.server.gnn[name], value) for name, value in average.server.gnn.items())
    assert all(torch.equal(shared.predict()[k], logits) for k, logits in average.predict().items())


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "gat"])
def test_everything_personal_is_local(backbone: str) -> None:
    federation = ragged_federation()
    personal = play("fedper", federation, backbone, personal_layers=2)
    local = play("local", federation, backbone)
    assert set(personal.uplinks[-1]) == {"num_train"}
    assert personal.algorithm.broadcast(personal.server, (0, 1, 2)) == {}
    assert all(torch.equal(personal.predict()[k], logits) for k, logits in local.predict().items())


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
    weights = game.clients[0].personal["conv2.weight"]
    assert not torch.allclose(weights[0], weights[1])


def test_own_start_differs_between_clients_and_keeps_the_shared_part() -> None:
    common = play("fedper", ragged_federation(), rounds=0)
    own = play("fedper", ragged_federation(), rounds=0, personal_start="own")
    assert torch.equal(common.clients[0].personal["conv2.weight"][0], common.clients[0].personal["conv2.weight"][1])
    assert not torch.equal(own.clients[0].personal["conv2.weight"][0], own.clients[0].personal["conv2.weight"][1])
    assert torch.equal(common.server.gnn["conv1.weight"], own.server.gnn["conv1.weight"])


def test_a_shared_body_serves_clients_that_name_classes_differently() -> None:
    """Two camps name the classes differently, but what makes a kind of node is the same for both."""
    federation = two_camps()
    assert trained_accuracy("fedavg", federation) < 0.7
    assert trained_accuracy("fedper", federation) > 0.9


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(InputError, match="personal_layers is -1, but must be at least 0"):
        FedPer(backbone=backbones.make("gcn"), personal_layers=-1)
