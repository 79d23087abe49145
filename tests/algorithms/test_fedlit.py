from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build, finite, same, take_in
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms.fedlit import ChannelNet, FedLit
from fedspray.backbones.base import Backbone, Drop
from fedspray.backbones.gcn import GCNLayer
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn import edges
from fedspray.nn.channels import split_edges
from fedspray.nn.layers import Layer
from fedspray.nn.tree import Params, part_of
from fedspray.seeds import generator

PUBMED = Task(500, 3)
KINDS = backbones.names()


def lit(backbone: str = "gcn", **values: Any) -> FedLit:
    algorithm = build("fedlit", backbone, **{"hidden": 8, **values})
    assert isinstance(algorithm, FedLit)
    return algorithm


@dataclass(frozen=True)
class OneChannel(Backbone):
    """FedLit's network with a single channel, as a backbone for Local and FedAvg."""

    convolution: Layer = GCNLayer()

    @property
    def net(self) -> ChannelNet:
        return ChannelNet(self.convolution, self.hidden, self.layers, 1)

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return self.net.shapes(task)

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        return self.net.draw(task, generator)

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        return self.net.project(params, batch)

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        assert hidden is not None
        channels = split_edges(batch, torch.zeros(batch.edges.shape[1], dtype=torch.int64), 1)
        return self.net.logits(params, hidden, channels, batch, drop)


def one_channel(algorithm: FedLit, batch: GraphBatch) -> OneChannel:
    plain = {f.name: getattr(algorithm.backbone, f.name) for f in fields(Backbone)}
    return OneChannel(**plain, convolution=algorithm.network(batch).convolution)


# ---- the limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_type_is_fedavg_on_the_same_network(backbone: str, dropout: float) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = lit(backbone, link_types=1, dropout=dropout)
    average = algorithms.find("fedavg")(backbone=one_channel(algorithm, batch))
    ours, theirs = (Play(each, batch, rounds=5) for each in (algorithm, average))
    assert same(ours.server.gnn, theirs.server.gnn, 1e-10)


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("reset", [False, True])
def test_one_type_and_no_communication_is_local(backbone: str, reset: bool) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = lit(backbone, link_types=1, share="nothing", reset_optimizer=reset)
    local = algorithms.find("local")(backbone=one_channel(algorithm, batch), reset_optimizer=reset)
    ours, theirs = (Play(each, batch, rounds=3) for each in (algorithm, local))
    assert ours.message == {}
    assert same(part_of(ours.client.kept, "gnn"), theirs.client.gnn, 1e-10)
    assert torch.allclose(ours.logits(), theirs.logits(), rtol=0, atol=1e-10)


def test_every_edge_has_one_type() -> None:
    game = Play(lit(), stack(ragged_federation()), rounds=1)
    owners = game.batch.rows.client_of[torch.from_numpy(game.batch.edges[0])]
    assert torch.equal(game.uplinks[0]["type_counts"].sum(dim=1), torch.bincount(owners, minlength=3).double())


# ---- what travels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("link_types", [1, 3])
def test_uploads(link_types: int) -> None:
    game = Play(lit(link_types=link_types), stack(ragged_federation()), rounds=1)
    uplink, message = game.uplinks[0], game.message
    assert uplink["centres"].shape == (3, link_types, 16)
    assert uplink["type_counts"].shape == (3, link_types)
    assert uplink["gnn.channels.conv2.weight"].shape == (3, link_types, 8, 8)
    assert game.client.kept == {}
    for name, value in message.items():
        assert name == "order" or (torch.equal(value[0], value[1]) and torch.equal(value[0], value[2]))
    weights = uplink["num_train"] / uplink["num_train"].sum()
    expected = sum(w * v for w, v in zip(weights, uplink["gnn.project.weight"], strict=True))
    assert torch.allclose(message["gnn.project.weight"][0], expected, rtol=0, atol=1e-12)


def test_bytes_for_pubmed() -> None:
    """W_1 500·64 + 64, four channels of three layers 64·64 + 64, W_out 64·3 + 3, centres 4·128."""
    algorithm = lit(hidden=64)
    message = algorithm.broadcast(algorithm.init_server(PUBMED, 0), (0,))
    assert sum(v.numel() for v in part_of(message, "gnn").values()) == 32_064 + 4 * 3 * 4_160 + 195 == 82_179
    assert message["centres"].numel() == 512
    assert (message["order"].numel(), message["order"].dtype) == (4, torch.int64)


# ---- types ------------------------------------------------------------------------------------------


def planted_federation(*, inside_both: bool = False) -> tuple[Federation, list[np.ndarray]]:
    """Two link types: inside class 0 (or both classes), and between the two; classes have features of their own."""
    graphs, planted = {}, []
    for k in range(3):
        draw = generator(21, "planted", k)
        labels = np.repeat([0, 1], 20)
        inside, across = draw.integers(0, 20, size=(2, 40 + 20 * k)), draw.integers(0, 20, size=(2, 60 - 10 * k))
        across[1] += 20
        inside[:, ::2] += 20 * inside_both
        features = 3 * np.eye(6)[labels] + 0.2 * draw.normal(size=(40, 6))
        graph = Graph.from_arrays(features, np.concatenate([inside, across], axis=1), labels, num_classes=2)
        graphs[f"client_{k}"] = graph
        planted.append((graph.labels[graph.edges[0]] != graph.labels[graph.edges[1]]).astype(int))
    return Federation.from_graphs(graphs, name="planted"), planted


@pytest.mark.parametrize("representation", edges.REPRESENTATIONS)
@pytest.mark.parametrize("backbone", ["gcn", "sage", "sgc"])
def test_planted_types_are_found_and_mean_the_same_everywhere(backbone: str, representation: str) -> None:
    federation, planted = planted_federation()
    game = Play(lit(backbone, link_types=2, edge_repr=representation), stack(federation), rounds=5)
    batch = game.batch
    projected = game.algorithm.network(batch).project(part_of(game.message, "gnn"), batch)
    meaning = set()
    for own, truth in zip(edges.client_edges(batch), planted, strict=True):
        types = edges.assign(edges.edge_vectors(projected, own, representation), game.server.centres).numpy()
        assert adjusted_rand_score(truth, types) > 0.9
        meaning.add(int(np.round(types[truth == 1].mean())))
    assert len(meaning) == 1
    found = json.loads(json.dumps(game.record()))
    inside, across = np.array(found["type_shares"]).T if meaning == {1} else np.array(found["type_shares"]).T[::-1]
    assert across == pytest.approx([truth.mean() for truth in planted], abs=0.05)
    assert inside[2] > inside[0]
    assert min(found["matching_cosine"]) > 0.9
    assert (found["empty_types"], found["clients_without_type"]) == ([], [0, 0])


@pytest.mark.parametrize("backbone", ["gcn", "sage", "sgc"])
@pytest.mark.parametrize(("representation", "link_types"), [("concat", 3), ("concat", 4), ("sym", 3)])
def test_edges_inside_and_across_classes_have_channels_of_their_own(
    backbone: str, representation: str, link_types: int
) -> None:
    """Not with two types: edges inside either class together have the mean of those across."""
    federation, planted = planted_federation(inside_both=True)
    game = Play(lit(backbone, link_types=link_types, edge_repr=representation), stack(federation), rounds=5)
    batch = game.batch
    projected = game.algorithm.network(batch).project(part_of(game.message, "gnn"), batch)
    own = edges.client_edges(batch)
    types = [edges.assign(edges.edge_vectors(projected, e, representation), game.server.centres).numpy() for e in own]
    sign = 2 * np.concatenate(planted) - 1
    across = [c for c in range(link_types) if sign[np.concatenate(types) == c].sum() > 0]  # on all clients
    for found, known in zip(types, planted, strict=True):
        assert adjusted_rand_score(known, np.isin(found, across)) > 0.9


# ---- the network ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_the_network_in_plain_matrices(kind: str) -> None:
    batch = stack(ragged_federation(), [1])
    algorithm = lit(kind, link_types=2)
    network = algorithm.network(batch)
    drawn = network.draw(Task(5, 3), torch.Generator().manual_seed(0))
    weights = {name: (v + 0.1 * torch.sin(torch.arange(v.numel())).view_as(v)).double() for name, v in drawn.items()}
    types = torch.arange(batch.edges.shape[1]) % 2
    params = {name: value[None] for name, value in weights.items()}
    channels = split_edges(batch, types, 2)
    projected = network.project(params, batch)
    found = network.logits(params, projected, channels, batch, lambda hidden: hidden)

    features = torch.from_numpy(np.asarray(ragged_federation().clients[1].graph.features, dtype=np.float64))
    h = features @ weights["project.weight"] + weights["project.bias"]
    total = torch.zeros_like(h)
    for c in (0, 1):
        u, v = batch.edges[:, (types == c).numpy()]
        adjacency = torch.zeros(14, 14, dtype=torch.float64)
        adjacency[u, v] = adjacency[v, u] = 1
        own = {name.removeprefix("channels."): v[c] for name, v in weights.items() if name.startswith("channels.")}
        z = h @ own["project.weight"] + own["project.bias"]
        for layer in ("conv1", "conv2"):
            moved, bias = z @ own[f"{layer}.weight"], own[f"{layer}.bias"]
            if kind == "gcn":
                looped = adjacency + torch.eye(14, dtype=torch.float64)
                scale = looped.sum(dim=1).rsqrt()
                z = ((scale[:, None] * looped * scale) @ moved + bias).relu()
            else:
                degree = adjacency.sum(dim=1, keepdim=True).clamp(min=1)
                z = (adjacency @ moved[:, :8] / degree + moved[:, 8:] + bias).relu()
        total = total + z
    expected = total @ weights["out.weight"] + weights["out.bias"]
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


# ---- what it is for ---------------------------------------------------------------------------------


def linked_federation(num_nodes: int = 90) -> Federation:
    """Nodes of two sorts, which features tell, and three classes, of which they say little.

    An edge inside a sort joins nodes of the same class; one between the sorts joins class c with class c + 1.
    """
    graphs = {}
    for k in range(3):
        draw = generator(31, "links", k)
        sort, labels = draw.integers(0, 2, size=num_nodes), draw.integers(0, 3, size=num_nodes)
        hints = 2 * np.eye(3)[labels] + 2 * draw.normal(size=(num_nodes, 3))
        u, v = pairs = draw.integers(0, num_nodes, size=(2, 60 * num_nodes))
        inside = (sort[u] == sort[v]) & (labels[u] == labels[v])
        between = (sort[u] == 0) & (sort[v] == 1) & ((labels[u] + 1) % 3 == labels[v])
        chosen = np.concatenate([np.flatnonzero(kind)[: 2 * num_nodes] for kind in (inside, between)])
        features = np.concatenate([6 * np.eye(2)[sort], hints], axis=1)
        graphs[f"client_{k}"] = Graph.from_arrays(features, pairs[:, chosen], labels, num_classes=3)
    return Federation.from_graphs(graphs, name="linked")


@pytest.mark.slow
def test_channels_keep_apart_what_one_message_would_mix_up() -> None:
    batch = stack(linked_federation())
    small: dict[str, Any] = {"hidden": 16, "lr": 0.01, "init": "glorot"}
    one, two = (Play(lit(**small, link_types=n, edge_repr="sym"), batch, rounds=40).accuracy() for n in (1, 2))
    fedavg = Play(build("fedavg", **small), batch, rounds=40).accuracy()
    assert two > max(one, fedavg) + 0.15


# ---- degenerate clients -----------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["everything", "nothing"])
@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("representation", edges.REPRESENTATIONS)
def test_awkward_clients_stay_finite(share: str, self_loops: bool, representation: str) -> None:
    algorithm = lit(share=share, self_loops=self_loops, edge_repr=representation)
    game = Play(algorithm, stack(awkward_federation()), rounds=3)
    json.dumps(game.record(), allow_nan=False)
    assert finite(game.server, game.client, game.uplinks[-1], game.logits())


def test_a_client_without_edges_moves_no_channel() -> None:
    """Channels and centres are as if it were not there; W_1 and the output layer do learn from it."""
    game = Play(lit(), stack(awkward_federation(), [0, 1, 2]))
    before = game.server
    game.round(0)
    assert not game.uplinks[0]["type_counts"][1].any()
    without = {name: value[[0, 2]] for name, value in game.uplinks[0].items()}
    others = take_in(game.algorithm, before, without, (0, 2))
    assert torch.allclose(game.server.centres, others.centres)
    for name, value in game.server.gnn.items():
        assert torch.allclose(value, others.gnn[name]) == name.startswith("channels.")


def test_no_edges_anywhere() -> None:
    game = Play(lit(), stack(awkward_federation(), [1]), rounds=3)
    assert not game.server.centres.any()
    assert finite(game.logits())
    assert game.record()["empty_types"] == [0, 1, 2, 3]


def test_an_empty_type_stays_as_it_is() -> None:
    """A centre opposite to all edges gets none: it and its channel keep their values, nothing becomes NaN."""
    game = Play(lit(link_types=2, lr=1e-4), stack(ragged_federation()), rounds=1)
    batch, server = game.batch, game.server
    projected = game.algorithm.network(batch).project(part_of(game.message, "gnn"), batch)
    vectors = torch.cat([edges.edge_vectors(projected, own) for own in edges.client_edges(batch)])
    gnn = {**server.gnn, "project.bias": server.gnn["project.bias"] + 50}
    centres = torch.stack([vectors.mean(dim=0) + 50, -torch.ones_like(server.centres[1])])
    game.server = replace(server, gnn=gnn, centres=centres)
    game.round(1)
    assert not game.uplinks[-1]["type_counts"][:, 1].any()
    assert finite(game.server, game.client)
    assert torch.equal(game.server.centres[1], centres[1])
    for name, value in game.server.gnn.items():
        if name.startswith("channels."):
            assert torch.equal(value[1], gnn[name][1])
            assert not torch.equal(value[0], gnn[name][0])
    assert game.record()["empty_types"] == [1]


def test_without_loops_untouched_nodes_get_the_bias_alone() -> None:
    game = Play(lit(self_loops=False), stack(awkward_federation(), [1]), rounds=3)
    assert torch.allclose(game.logits(), game.server.gnn["out.bias"].expand(8, -1))


# ---- settings ---------------------------------------------------------------------------------------


def test_the_published_preset() -> None:
    algorithm = build("fedlit", preset="published")
    assert (algorithm.self_loops, algorithm.branch_weights, algorithm.local_epochs) == (False, "uniform", 1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"link_types": 0}, "link_types is 0"),
        ({"em_steps": 0}, "em_steps is 0"),
        ({"edge_repr": "sum"}, "edge_repr is 'sum'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        lit(**settings)
    assert str(caught.value).startswith(sentence)
