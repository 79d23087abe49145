from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build, finite, same, take_in
from torch.nn import functional
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms.fedstar import FedStar, ServerState
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn import ops
from fedspray.nn.layers import num_weights
from fedspray.nn.tree import cast, part_of
from fedspray.seeds import generator

PUBMED = Task(500, 3)
KINDS = backbones.names()


def star(backbone: str = "gcn", **values: Any) -> FedStar:
    algorithm = build("fedstar", backbone, **{"hidden": 8, **values})
    assert isinstance(algorithm, FedStar)
    return algorithm


def params_of(algorithm: FedStar, batch: GraphBatch) -> dict[str, torch.Tensor]:
    task = Task(batch.num_features, batch.num_classes)
    drawn = algorithm.network(batch).init_params(task, batch, 0, common=False)
    # biases start at 0, where several mistakes would not show
    return {name: v + 0.1 * torch.sin(torch.arange(v.numel())).view_as(v).to(v) for name, v in drawn.items()}


# ---- the limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_sharing_nothing_is_local_on_the_same_network(backbone: str, dropout: float) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = star(backbone, share="nothing", dropout=dropout)
    local = algorithms.find("local")(backbone=algorithm.network(batch))
    ours, theirs = (Play(each, batch, rounds=3) for each in (algorithm, local))
    assert same(ours.client.personal, theirs.client.gnn, 1e-10)


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("reset", [False, True])
def test_sharing_everything_is_fedavg_on_the_same_network(backbone: str, reset: bool) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = star(backbone, share="everything", reset_optimizer=reset)
    average = algorithms.find("fedavg")(backbone=algorithm.network(batch), reset_optimizer=reset)
    ours, theirs = (Play(each, batch, rounds=3) for each in (algorithm, average))
    assert same(ours.server.shared, theirs.server.gnn, 1e-10)


def test_one_client_alone_is_local() -> None:
    batch = stack(ragged_federation(), [1])
    algorithm = star()
    local = algorithms.find("local")(backbone=algorithm.network(batch))
    ours, theirs = (Play(each, batch, rounds=3) for each in (algorithm, local))
    whole = {**{name: value[None] for name, value in ours.server.shared.items()}, **ours.client.personal}
    assert same(whole, theirs.client.gnn, 1e-10)


# ---- the network ------------------------------------------------------------------------------------


def test_the_network_in_plain_matrices() -> None:
    batch = stack(ragged_federation(), [1])
    algorithm = star()
    network = algorithm.network(batch)
    params = params_of(algorithm, batch)
    w = {name: value[0] for name, value in params.items()}
    u, v = batch.edges
    looped = torch.eye(14, dtype=torch.float64)
    looped[u, v] = looped[v, u] = 1
    scale = looped.sum(dim=1).rsqrt()
    spread = scale[:, None] * looped * scale
    s = network.embedding.of(batch) @ w["structure.emb.weight"] + w["structure.emb.bias"]
    features = torch.from_numpy(np.asarray(ragged_federation().clients[1].graph.features, dtype=np.float64))
    x = features @ w["feature.pre.weight"] + w["feature.pre.bias"]
    for layer in (1, 2):
        joined = torch.cat([x, s], dim=1)
        x = (spread @ joined @ w[f"feature.conv{layer}.weight"] + w[f"feature.conv{layer}.bias"]).relu()
        s = (spread @ s @ w[f"structure.conv{layer}.weight"] + w[f"structure.conv{layer}.bias"]).tanh()
    expected = torch.cat([x, s], dim=1) @ w["out.weight"] + w["out.bias"]
    assert torch.allclose(network.logits(params, batch), expected, rtol=0, atol=1e-12)


# ---- what travels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
def test_only_the_structure_channel_leaves(backbone: str) -> None:
    game = Play(star(backbone), stack(ragged_federation()), rounds=1)
    server, uplink = game.server, game.uplinks[0]
    layers = ("emb", "conv1", "conv2")
    expected = {f"structure.{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert set(part_of(uplink, "shared")) == set(server.shared) == expected
    assert set(uplink) == {f"shared.{name}" for name in expected} | {"num_train"}
    assert not expected & set(game.client.personal)
    # nothing that leaves has the width of the features or of the classes
    assert all(game.batch.num_features not in value.shape for value in server.shared.values())


def test_after_a_round_structure_is_common_and_features_are_not() -> None:
    game = Play(star(), stack(ragged_federation()), rounds=3)
    weights = game.batch.num_train / game.batch.num_train.sum()
    for name, value in game.message.items():
        assert torch.equal(value[0], value[1])
        mean = sum(w * sent for w, sent in zip(weights, game.uplinks[-1][name], strict=True))
        assert torch.allclose(value[0], mean, rtol=0, atol=1e-12)
    assert all(not torch.allclose(value[0], value[1]) for value in game.client.personal.values())


def test_bytes_for_pubmed() -> None:
    """emb 32·64 + 64, two GCN layers 64·64 + 64 each: 10,432 floats."""
    algorithm = star(hidden=64)
    server = algorithm.init_server(PUBMED, 0)
    message = algorithm.broadcast(server, (0,))
    assert sum(v.numel() for v in message.values()) == (32 * 64 + 64) + 2 * (64 * 64 + 64) == 10_432
    assert num_weights(algorithm.network(PUBMED).shapes(PUBMED)) == 59_395


# ---- the two channels -------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
def test_structure_never_sees_features(backbone: str) -> None:
    federation = ragged_federation()
    batch, algorithm = stack(federation), star(backbone)
    network, params = algorithm.network(batch), params_of(algorithm, batch)
    features = batch.rows.features
    assert isinstance(features, torch.Tensor)
    watched = replace(batch, rows=replace(batch.rows, features=features.clone().requires_grad_()))
    last = network._surroundings(params, watched)[-1]
    assert not last.requires_grad  # ds_L/dX does not exist
    logits = network.classify(params, network.embed(params, watched, lambda h: h), watched, lambda h: h)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert watched.rows.features.grad.any()  # type: ignore[union-attr]
    shuffled = replace(batch, rows=replace(batch.rows, features=features.flip(0)))
    for a, b in zip(network._surroundings(params, batch), network._surroundings(params, shuffled), strict=True):
        assert torch.equal(a, b)
    assert not torch.allclose(network.logits(params, batch), network.logits(params, shuffled))


@pytest.mark.parametrize("backbone", KINDS)
def test_without_its_columns_the_structure_channel_is_gone(backbone: str) -> None:
    """With the rows of Conv and W_out that meet s at 0, logits are those of a plain network of features."""
    batch, algorithm = stack(ragged_federation()), star(backbone)
    network, params = algorithm.network(batch), params_of(algorithm, batch)
    width = batch.num_features if backbone == "sgc" else 8
    for name in params:
        if name == "out.weight" or (name.startswith("feature.conv") and name.endswith(".weight")):
            params[name] = params[name].clone()
            params[name][:, width:] = 0
    weights, rows = params["out.weight"][:, :width], batch.rows
    if backbone == "sgc":
        scores = ops.feature_linear(rows, weights)
        for _ in range(2):
            scores = ops.propagate(batch.gcn_adjacency, scores, rows.ptr)
        expected = scores + ops.per_row(params["out.bias"], rows)
    else:
        hidden = ops.feature_linear(rows, params["feature.pre.weight"], params["feature.pre.bias"])
        for layer in (1, 2):
            own = part_of(params, f"feature.conv{layer}")
            hidden = network.convolution({**own, "weight": own["weight"][:, :8]}, hidden, batch, rows)
            hidden = functional.elu(hidden) if backbone == "gat" else hidden.relu()
        expected = ops.linear(hidden, rows.ptr, weights, params["out.bias"])
    assert torch.allclose(network.logits(params, batch), expected, rtol=0, atol=1e-10)


def test_a_layer_uses_the_structure_before_it() -> None:
    """x_l meets s_{l-1}, not s_l: the last GCN reaches the logits through W_out alone."""
    batch, algorithm = stack(ragged_federation()), star()
    network, params = algorithm.network(batch), params_of(algorithm, batch)
    before = network.embed(params, batch, lambda h: h)
    params["structure.conv2.weight"] = params["structure.conv2.weight"] + 1
    after = network.embed(params, batch, lambda h: h)
    assert before is not None
    assert after is not None
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize("backbone", KINDS)
def test_renaming_nodes_renames_predictions(backbone: str) -> None:
    client = ragged_federation().clients[1]
    order = generator(1, "order").permutation(client.graph.num_nodes)
    graph = client.graph
    features = np.empty_like(np.asarray(graph.features))
    features[order] = graph.features
    renamed = Graph.from_arrays(features, order[graph.edges], num_classes=3)
    algorithm = star(backbone)
    one, other = (GraphBatch.from_graph(g, dtype=torch.float64) for g in (graph, renamed))
    params = params_of(algorithm, one)
    network = algorithm.network(one)
    assert torch.allclose(network.logits(params, one), network.logits(params, other)[torch.from_numpy(order)])


# ---- settings ---------------------------------------------------------------------------------------


def test_nothing_is_as_small_as_sgc() -> None:
    """SGC has no hidden layer, so that even one unit of structure is more than it has."""
    network = star("sgc", hidden=64, match_parameters=True).network(PUBMED)
    assert network.hidden == 1
    assert num_weights(network.shapes(PUBMED)) == 1_503 + 33 + 2 * 2 + 2 * 3


def test_the_published_preset() -> None:
    algorithm = build("fedstar", preset="published")
    assert (algorithm.backbone.layers, algorithm.head, algorithm.personal_start) == (3, "published", "own")


def test_clients_may_have_different_backbones() -> None:
    federation = ragged_federation()
    parts = [(star("gcn"), stack(federation, [0, 1])), (star("sgc"), stack(federation, [2]))]
    server = cast(parts[0][0].init_server(federation.task, 0), torch.float64)
    uplinks = []
    for algorithm, batch in parts:
        client = algorithm.init_clients(federation.task, batch, 0)
        uplinks.append(algorithm.client_update(client, algorithm.broadcast(server, batch.client_ids), batch, 0)[1])
    joined = {name: torch.cat([uplink[name] for uplink in uplinks]) for name in uplinks[0]}
    assert take_in(parts[0][0], server, joined, (0, 1, 2)).drift > 0
    wide = star("sgc", hidden=16)
    client = wide.init_clients(federation.task, batch, 0)
    with pytest.raises(InputError, match="need the same"):
        wide.client_update(client, wide.broadcast(server, batch.client_ids), batch, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"walk_steps": -1}, "walk_steps is -1"),
        (
            {"walk_steps": 0, "degree_buckets": 0},
            "walk_steps and degree_buckets are both 0",
        ),
        ({"share": "half"}, "share is 'half'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        star(**settings)
    assert str(caught.value).startswith(sentence)


# ---- diagnostics, degenerate clients, effect --------------------------------------------------------


def test_diagnostics_by_hand() -> None:
    """Two weights, start (0, 0); clients with 1 and 3 training nodes send (4, 0) and (0, 4): mean (1, 3)."""
    algorithm = star()
    server = ServerState({"structure.a": torch.zeros(1), "structure.b": torch.zeros(1)}, torch.zeros(()))
    uplink = {
        "shared.structure.a": torch.tensor([[4.0], [0.0]]),
        "shared.structure.b": torch.tensor([[0.0], [4.0]]),
        "num_train": torch.tensor([1.0, 3.0]),
    }
    after = take_in(algorithm, server, uplink, (0, 1))
    found = json.loads(json.dumps(algorithm.diagnostics(after, uplink)))
    assert found["shared_drift"] == found["shared_norm"] == pytest.approx(10**0.5)
    assert found["client_distance"] == pytest.approx([18**0.5, 2**0.5])
    nobody = take_in(algorithm, after, {**uplink, "num_train": torch.zeros(2)}, (0, 1))
    assert nobody.shared == after.shared
    assert nobody.drift == 0


@pytest.mark.parametrize("share", ["structure", "nothing", "everything"])
def test_awkward_clients_stay_finite(share: str) -> None:
    game = Play(star(share=share), stack(awkward_federation()), rounds=3)
    json.dumps(game.record(), allow_nan=False)
    assert finite(game.server, game.client, game.logits())


def structural_federation() -> Federation:
    """Labels are what surrounds a node, a triangle or a path; features are noise."""
    graphs = {}
    for k in range(3):
        draw = generator(9, "structural", k)
        kinds = draw.integers(0, 2, size=30)
        edges, labels = [], []
        for piece, kind in enumerate(kinds):
            a, b, c = range(3 * piece, 3 * piece + 3)
            edges += [(a, b), (b, c)] + ([(a, c)] if kind else [])
            labels += [int(kind)] * 3
        features = draw.normal(size=(90, 6))
        graphs[f"client_{k}"] = Graph.from_arrays(features, np.array(edges).T, labels, num_classes=2)
    return Federation.from_graphs(graphs, name="structural")


def test_structure_that_decides_is_learned() -> None:
    batch = stack(structural_federation())
    scores = {name: Play(build(name, hidden=8), batch, rounds=40).accuracy() for name in ("fedstar", "fedavg")}
    assert scores["fedstar"] > 0.95
    assert scores["fedstar"] > scores["fedavg"] + 0.2
