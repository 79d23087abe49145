from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from play import Play, build, last_loss, play, same, take_in
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.base import Outputs, supervised_loss
from fedspray.algorithms.fedproto import FedProto, ServerState
from fedspray.data.federation import Federation, Split
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn.optim import Adam, AdamState
from fedspray.seeds import generator


def blind_spots(num_nodes: int = 90) -> Federation:
    """Three clients with the same three kinds of nodes; client k has no training label of class k."""
    centres = 2 * generator(5, "spots").normal(size=(3, 6))
    graphs = []
    for k in range(3):
        draw = generator(5, "spot", k)
        labels = draw.integers(0, 3, size=num_nodes)
        u, v = draw.integers(0, num_nodes, size=(2, 12 * num_nodes))
        kept = labels[u] == labels[v]
        features = centres[labels] + draw.normal(size=(num_nodes, 6))
        graphs.append(Graph.from_arrays(features, np.stack([u[kept], v[kept]]), labels, num_classes=3))
    federation = Federation.from_graphs(graphs, name="spots")
    clients = [
        replace(c, split=Split(c.split.train & (c.graph.labels != k), c.split.val, c.split.test))
        for k, c in enumerate(federation.clients)
    ]
    return replace(federation, clients=tuple(clients))


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_no_prototypes_is_local_bit_for_bit(backbone: str) -> None:
    federation = ragged_federation()
    proto = play("fedproto", federation, backbone, prototype_weight=0.0)
    local = play("local", federation, backbone)
    assert same(proto.client.gnn, local.client.gnn)
    assert torch.equal(proto.logits(), local.logits())


def test_the_distance_to_the_prototypes_by_hand() -> None:
    """All nodes are at (1, 1, 1); the prototypes of classes 0 and 1 are 9/3 and 3/3 away, class 2 has none."""
    batch = stack(ragged_federation())
    game = Play(build("fedproto", "sgc", prototype_weight=0.5), batch)
    prototypes = torch.tensor([[1.0, 1.0, 4.0], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]).double()
    message = {"prototypes": prototypes.expand(3, 3, 3), "known": torch.tensor([1.0, 1.0, 0.0]).double().expand(3, 3)}
    loss = last_loss(game.algorithm, game.client, message, batch)
    ones = torch.ones(batch.num_nodes, 3, dtype=torch.float64)
    pull = loss(Outputs(ones, ones, Adam({}, AdamState.zeros({}, 3), lr=1))) - supervised_loss(ones, batch)
    counts = batch.train_class_counts
    expected = 0.5 * (3 * counts[:, 0] + 1 * counts[:, 1]) / counts.sum(dim=1)
    assert counts[:, :2].sum() > 0
    assert pull.tolist() == pytest.approx(expected.tolist())


def test_the_first_round_is_locals() -> None:
    """Nobody has a prototype yet, so there is nothing to be drawn to."""
    federation = ragged_federation()
    proto = play("fedproto", federation, rounds=1, prototype_weight=5.0)
    local = play("local", federation, rounds=1)
    assert same(proto.client.gnn, local.client.gnn)


def test_only_class_means_travel() -> None:
    game = play("fedproto", ragged_federation())
    uplink = game.uplinks[-1]
    assert {key: tuple(value.shape) for key, value in uplink.items()} == {
        "prototypes": (3, 3, 8),
        "class_counts": (3, 3),
    }
    batch = game.batch
    own = game.algorithm.backbone.representation(game.client.gnn, batch)[batch.train]
    first = (batch.train_rows.client_of == 1) & (batch.train_labels == 2)
    assert torch.allclose(uplink["prototypes"][1, 2], own[first].mean(dim=0))


def uplink_by_hand() -> dict[str, torch.Tensor]:
    """Class 0: both clients; class 1: the second one only; class 2: nobody."""
    return {
        "prototypes": torch.tensor([[[1.0], [0.0], [0.0]], [[4.0], [7.0], [0.0]]]),
        "class_counts": torch.tensor([[2.0, 0.0, 0.0], [1.0, 3.0, 0.0]]),
    }


def test_absent_classes_have_no_say() -> None:
    algorithm = FedProto(backbone=backbones.make("gcn"))
    before = ServerState(torch.tensor([[0.0], [0.0], [9.0]]), torch.tensor([0.0, 0.0, 1.0]))
    after = take_in(algorithm, before, uplink_by_hand(), (0, 1))
    assert torch.allclose(after.prototypes, torch.tensor([[2.0], [7.0], [9.0]]))  # (1·2 + 4·1) / 3; class 2 keeps 9
    assert after.known.tolist() == [1, 1, 1]


def test_uniform_weights_say_only_which_classes_a_client_has() -> None:
    by_nodes, alike = (play("fedproto", ragged_federation(), weighting=w, rounds=1) for w in ("train", "uniform"))
    counts, signs = (game.uplinks[0]["class_counts"] for game in (by_nodes, alike))
    assert counts.max() > 1
    assert torch.equal(signs, counts.sign())


def test_a_class_that_nobody_ever_had_is_never_predicted() -> None:
    algorithm = FedProto(backbone=backbones.make("gcn", hidden=8), predict_by="prototype")
    game = Play(algorithm, stack(ragged_federation()))
    message = {
        "prototypes": torch.stack([torch.full((3, 8), 100.0), torch.full((3, 8), 90.0), torch.zeros(3, 8)], dim=1),
        "known": torch.tensor([[1.0, 1.0, 0.0]]).expand(3, 3),
    }
    message = {name: value.double() for name, value in message.items()}
    logits = algorithm.predict(game.client, message, game.batch)
    assert torch.isfinite(logits).all()
    assert (logits.argmax(dim=1) == 1).all()


def test_prototype_predictions_are_the_nearest_ones() -> None:
    game = play("fedproto", ragged_federation(), predict_by="prototype")
    batch = game.batch
    own = game.algorithm.backbone.representation(game.client.gnn, batch)
    expected = torch.cdist(own, game.server.prototypes).square().neg()
    assert torch.allclose(game.logits(), expected)


def test_representations_of_a_class_are_drawn_together() -> None:
    federation = blind_spots()
    spread = {}
    for weight in (0.0, 1.0):
        game = play("fedproto", federation, rounds=30, dropout=0.0, prototype_weight=weight)
        spread[weight] = sum(game.record()["spread"])
    assert spread[1.0] < 0.5 * spread[0.0]


def test_prototypes_tell_of_classes_that_a_client_has_no_label_of() -> None:
    """Client k never trains on class k. Its own classifier cannot know it; the others' prototype does."""
    recall = {}
    federation = blind_spots()
    for predict_by in ("classifier", "prototype"):
        game = play("fedproto", federation, rounds=30, dropout=0.0, predict_by=predict_by)
        found = [
            (game.predict()[k].argmax(dim=1) == k)[torch.from_numpy(client.graph.labels == k)].double().mean().item()
            for k, client in enumerate(federation.clients)
        ]
        recall[predict_by] = sum(found) / 3
    assert recall["classifier"] < 0.05
    assert recall["prototype"] > 0.3


def test_backbones_may_differ_but_not_their_widths() -> None:
    federation = ragged_federation()
    batch = stack(federation)
    message = FedProto(backbone=backbones.make("gcn", hidden=8)).init_server(federation.task, 0)
    for name, fits in (("sage", True), ("sgc", False)):
        algorithm = FedProto(backbone=backbones.make(name, hidden=8))
        client = algorithm.init_clients(federation.task, batch, 0)
        downlink = {key: v.double() for key, v in algorithm.broadcast(message, (0, 1, 2)).items()}
        if fits:
            algorithm.client_update(client, downlink, batch, 0)
            continue
        with pytest.raises(InputError, match="prototypes have 8 coordinates"):
            algorithm.client_update(client, downlink, batch, 0)


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="prototype_weight is -1"):
        FedProto(backbone=backbones.make("gcn"), prototype_weight=-1)
