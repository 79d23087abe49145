from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conformance.test_contract import Play
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms.ditto import Ditto
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.seeds import generator


def two_camps(num_nodes: int = 100, noise: float = 0.5, width: int = 4) -> Federation:
    """Four clients with the same three kinds of nodes; clients 2 and 3 call kind c what the others call c + 1."""
    centres = generator(3, "camps").normal(size=(3, width))
    graphs = []
    for k in range(4):
        draw = generator(3, "camp", k)
        kinds = draw.integers(0, 3, size=num_nodes)
        u, v = draw.integers(0, num_nodes, size=(2, 3 * num_nodes))
        kept = (kinds[u] == kinds[v]) | (draw.random(len(u)) < 0.05)
        features = centres[kinds] + noise * draw.normal(size=(num_nodes, width))
        labels = (kinds + (k >= 2)) % 3
        graphs.append(Graph.from_arrays(features, np.stack([u[kept], v[kept]]), labels, num_classes=3))
    return Federation.from_graphs(graphs, name="camps")


def play(
    name: str, federation: Federation, backbone: str = "gcn", rounds: int = 3, dropout: float = 0.2, **settings: Any
) -> Play:
    algorithm = algorithms.find(name)(backbone=backbones.make(backbone, hidden=8, dropout=dropout), **settings)
    game = Play(algorithm, federation, [stack(federation)])
    for index in range(rounds):
        game.round(index)
    return game


def accuracy(game: Play) -> float:
    (batch,) = game.batches
    predicted = torch.cat([game.predict()[k] for k in batch.client_ids]).argmax(dim=1)
    return (predicted == batch.labels)[batch.test].double().mean().item()


def trained_accuracy(name: str, federation: Federation, **settings: Any) -> float:
    """Test accuracy of a small GCN that learns fast, after 40 rounds."""
    backbone = backbones.make("gcn", hidden=8, init="glorot", lr=0.01)
    game = Play(algorithms.find(name)(backbone=backbone, **settings), federation, [stack(federation)])
    for index in range(40):
        game.round(index)
    return accuracy(game)


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_without_leash_personal_models_are_locals(backbone: str) -> None:
    federation = ragged_federation()
    ditto = play("ditto", federation, backbone, proximal_weight=0.0)
    local = play("local", federation, backbone)
    for name, value in local.clients[0].gnn.items():
        assert torch.equal(ditto.clients[0].personal[name], value)
    assert all(torch.equal(ditto.predict()[k], logits) for k, logits in local.predict().items())


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_shared_model_is_fedavgs(weight: float) -> None:
    """Whatever the leash: nothing flows from the personal model into what is sent, but for its distance."""
    federation = ragged_federation()
    ditto = play("ditto", federation, proximal_weight=weight)
    average = play("fedavg", federation)
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
        began, ended = start.clients[0].personal[name][3], game.clients[0].personal[name][3]
        assert (ended - goal).norm() < 0.5 * (began - goal).norm()


def test_the_distance_is_recorded() -> None:
    game = play("ditto", ragged_federation(), rounds=2)
    received = game.algorithm.broadcast(play("ditto", ragged_federation(), rounds=1).server, (0, 1, 2))
    gaps = [(value - received[f"gnn.{name}"]).flatten(1) for name, value in game.clients[0].personal.items()]
    expected = torch.cat(gaps, dim=1).norm(dim=1)
    recorded = game.algorithm.diagnostics(game.server, game.uplinks[-1])["distance"]
    assert recorded == pytest.approx(expected.tolist(), rel=1e-4)


def test_clients_that_disagree_gain_from_a_personal_model() -> None:
    """Two camps name the classes differently: no single model can be right in both."""
    federation = two_camps()
    assert trained_accuracy("fedavg", federation) < 0.7
    assert trained_accuracy("ditto", federation) > 0.9


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="proximal_weight is -1, but must be at least 0"):
        Ditto(backbone=backbones.make("gcn"), proximal_weight=-1)
