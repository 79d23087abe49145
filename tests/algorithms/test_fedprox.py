from __future__ import annotations

import numpy as np
import pytest
import torch
from play import Play, build, last_loss, play, same, skewed_accuracy
from scipy.sparse import csr_array
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.base import Outputs, supervised_loss
from fedspray.algorithms.fedprox import FedProx
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn.optim import Adam, AdamState
from fedspray.nn.tree import part_of


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_no_proximal_term_is_fedavg_bit_for_bit(backbone: str, sparse: bool) -> None:
    batch = stack(ragged_federation(sparse=sparse), dtype=torch.float32)
    prox = Play(build("fedprox", backbone, hidden=5, proximal_weight=0.0), batch, rounds=20)
    average = Play(build("fedavg", backbone, hidden=5), batch, rounds=20)
    assert same(prox.server, average.server)


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_columns_that_nobody_uses_are_at_distance_0(backbone: str) -> None:
    """With sparse features only weights of columns in use are trained, with dense ones all."""
    graphs: list[dict[str, Graph]] = [{}, {}]
    for k, client in enumerate(ragged_federation().clients):
        features = client.graph.dense_features() * (np.arange(5) != k)
        for kept, x in zip(graphs, (features, csr_array(features)), strict=True):
            kept[client.name] = Graph.from_arrays(x, client.graph.edges, client.graph.labels, num_classes=3)
    games = [
        Play(build("fedprox", backbone, proximal_weight=5.0), stack(Federation.from_graphs(each)), rounds=6)
        for each in graphs
    ]
    (moments,) = games[1].client.gnn_optimizer.used_first.values()
    assert len(moments) < 3 * 5
    assert same(games[0].server, games[1].server, 1e-10)
    assert games[0].record()["distance"] == pytest.approx(games[1].record()["distance"], abs=1e-10)


@pytest.mark.parametrize(("name", "weight"), [("fedprox", 0.3), ("ditto", 0.5)])
def test_the_leash_by_hand(name: str, weight: float) -> None:
    """Client 0 is 3 away in one weight and 4 in another, client 1 is where it began, client 2 is 2 away."""
    batch = stack(ragged_federation())
    game = Play(build(name, "sgc", proximal_weight=weight), batch)
    loss = last_loss(game.algorithm, game.client, game.message, batch)
    moved = {key.removeprefix("gnn."): value.clone() for key, value in game.message.items()}
    moved["linear.weight"][0, 0, 0] += 3
    moved["linear.bias"][0, 1] -= 4
    moved["linear.weight"][2, 4, 2] += 2
    logits = torch.randn(batch.num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = part_of(game.message, "gnn")
    steps = Adam(start, AdamState.zeros(start, 3), lr=1)
    steps.params = moved
    pull = loss(Outputs(logits, logits, steps)) - supervised_loss(logits, batch)
    assert pull.tolist() == pytest.approx([weight / 2 * 25, 0, weight / 2 * 4])


def test_clients_stay_nearer_the_stronger_the_pull() -> None:
    """Clients with unlike data and many local steps, where FedAvg's drift apart."""
    distances = []
    for weight in (0.0, 1.0, 10.0):
        game = play("fedprox", ragged_federation(), local_epochs=30, proximal_weight=weight)
        distances.append(sum(game.record()["distance"]))
    assert distances[0] > 1.2 * distances[1]
    assert distances[1] > 1.5 * distances[2]


@pytest.mark.slow
def test_held_clients_agree_on_better_models() -> None:
    assert skewed_accuracy("fedprox", proximal_weight=1.0) > skewed_accuracy("fedavg") + 0.05


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="proximal_weight is -1"):
        FedProx(backbone=backbones.make("gcn"), proximal_weight=-1)
