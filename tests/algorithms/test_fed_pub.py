from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from play import Play, build
from toys import two_groups

from fedspray import backbones
from fedspray.algorithms.fed_pub import FedPub, ProxyGraph, ServerState
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.nn import tree


def by_hand(**settings: Any) -> ServerState:
    """One update of three SGC models on a graph of two isolated nodes with features 1 and 3.

    Mean feature 2, so h = 2W + b:  (2, 0), (0, 2)·2 = (0, 4), (-2, 2)+(3, 0) = (1, 2).
    Cosines: (0, 1): 0;  (0, 2): 1/√5;  (1, 2): 2/√5.
    """
    weight = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]], [[-1.0, 1.0]]]).double()
    bias = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]]).double()
    start = {"linear.weight": torch.zeros(1, 2).double(), "linear.bias": torch.zeros(2).double()}
    proxy = ProxyGraph(torch.tensor([[1.0], [3.0]]).double(), torch.zeros(2, 0, dtype=torch.int64), torch.tensor(2))
    server = ServerState(start, tree.expand(start, 0), proxy, torch.zeros(0, 0).double())
    uplink = {"gnn.linear.weight": weight, "gnn.linear.bias": bias, "num_train": torch.tensor([5.0, 1.0, 2.0]).double()}
    return FedPub(backbone=backbones.make("sgc"), **settings).server_update(server, uplink, (0, 1, 2))


def test_one_update_by_hand() -> None:
    server = by_hand(sharpness=2.0)
    near, far = 1 / math.sqrt(5), 2 / math.sqrt(5)
    assert server.similarity.flatten().tolist() == pytest.approx([1, 0, near, 0, 1, far, near, far, 1])
    weights = [math.exp(2), math.exp(0), math.exp(2 * near)]
    expected = (1 * weights[0] - 1 * weights[2]) / sum(weights)  # the first weights are 1, 0 and -1
    assert server.gnn["linear.weight"][0, 0, 0].item() == pytest.approx(expected)


def test_centring_compares_what_differs() -> None:
    """Mean embedding (1, 2): what is left is (1, -2), (-1, 2), (0, 0); the last is like nobody but itself."""
    server = by_hand(centre=True)
    assert server.similarity.flatten().tolist() == pytest.approx([1, -1, 0, -1, 1, 0, 0, 0, 1])


def test_the_random_graph_has_blocks_and_comes_from_the_seed() -> None:
    algorithm = FedPub(backbone=backbones.make("gcn"))
    proxy = algorithm.init_server(Task(7, 3), 4).proxy
    again, other = (algorithm.init_server(Task(7, 3), seed).proxy for seed in (4, 5))
    assert proxy.features.shape == (500, 7)
    assert torch.equal(proxy.edges // 100, (proxy.edges // 100)[0].expand(2, -1))  # no edge leaves its block
    assert abs(proxy.edges.shape[1] - 5 * 4950 * 0.1) < 5 * math.sqrt(5 * 4950 * 0.1 * 0.9)
    assert abs(proxy.features.std().item() - 1) < 0.05
    assert torch.equal(proxy.features, again.features)
    assert not torch.equal(proxy.features, other.features)


def test_models_of_different_groups_act_differently() -> None:
    game = Play(build("fed-pub", hidden=16, lr=0.01, sharpness=30.0), two_groups(), rounds=40)
    similarity = torch.tensor(game.record()["similarity"])
    assert min(similarity[:3, :3].min(), similarity[3:, 3:].min()) > 0.9
    assert similarity[:3, 3:].max() < 0.1


def test_hidden_layers_hardly_tell_models_apart() -> None:
    """Behind a relu all coordinates are positive and mostly the common start's: why logits are compared."""
    games = {
        kind: Play(build("fed-pub", hidden=16, lr=0.01, embedding=kind), two_groups(), rounds=3)
        for kind in ("hidden", "logits")
    }
    seen = {kind: game.server.similarity[:3, 3:].mean().item() for kind, game in games.items()}
    assert 1 - seen["hidden"] < 0.1 * (1 - seen["logits"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"embedding": "weights"}, "embedding is 'weights'"),
        ({"sharpness": -1.0}, "sharpness is -1.0"),
        ({"sharpness": 1e39}, "sharpness is 1e+39"),
        ({"proxy_density": 1.5}, "proxy_density is 1.5, but must be between 0 and 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedPub(backbone=backbones.make("gcn"), **settings)
    assert str(caught.value).startswith(sentence)
