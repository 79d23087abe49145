from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms.fedstar import FedStar, ServerState
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn import ops
from fedspray.nn.channels import num_weights
from fedspray.nn.tree import cast, flatten, part_of
from fedspray.seeds import generator

PUBMED = Task(500, 3)
KINDS = backbones.names()


def star(backbone: str = "gcn", *, hidden: int = 8, **settings: Any) -> FedStar:
    own = {name: settings.pop(name) for name in ("dropout", "layers", "lr", "init") if name in settings}
    return FedStar(backbone=backbones.make(backbone, hidden=hidden, **own), **settings)


def run(algorithm: Any, batch: GraphBatch, rounds: int = 3) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    task = Task(batch.num_features, batch.num_classes)
    server = cast(algorithm.init_server(task, 0), batch.dtype)
    client, uplink = algorithm.init_clients(task, batch, 0), {}
    for round_index in range(rounds):
        message = algorithm.broadcast(server, batch.client_ids)
        client, uplink = algorithm.client_update(client, message, batch, round_index)
        server = algorithm.server_update(server, uplink, batch.client_ids)
    return server, client, uplink


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], rtol=0, atol=1e-10) for n in a)


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
    _, alone, _ = run(algorithm, batch)
    _, local, _ = run(algorithms.find("local")(backbone=algorithm.network(batch)), batch)
    assert close(alone.personal, local.gnn)


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("reset", [False, True])
def test_sharing_everything_is_fedavg_on_the_same_network(backbone: str, reset: bool) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = star(backbone, share="everything", reset_optimizer=reset)
    server, _, _ = run(algorithm, batch)
    averaged, _, _ = run(algorithms.find("fedavg")(backbone=algorithm.network(batch), reset_optimizer=reset), batch)
    assert close(server.shared, averaged.gnn)


def test_one_client_alone_is_local() -> None:
    batch = stack(ragged_federation(), [1])
    algorithm = star()
    server, client, _ = run(algorithm, batch)
    _, local, _ = run(algorithms.find("local")(backbone=algorithm.network(batch)), batch)
    assert close({**{n: v[None] for n, v in server.shared.items()}, **client.personal}, local.gnn)


# ---- what travels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
def test_only_the_structure_channel_leaves(backbone: str) -> None:
    batch = stack(ragged_federation())
    server, client, uplink = run(star(backbone), batch, rounds=1)
    layers = ("emb", "conv1", "conv2")
    expected = {f"structure.{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert set(part_of(uplink, "shared")) == set(server.shared) == expected
    assert set(uplink) == {f"shared.{name}" for name in expected} | {"num_train"}
    assert not expected & set(client.personal)
    # nothing that leaves has the width of the features or of the classes
    assert all(batch.num_features not in value.shape[1:] for value in server.shared.values())


def test_after_a_round_structure_is_common_and_features_are_not() -> None:
    batch = stack(ragged_federation())
    algorithm = star()
    server, client, uplink = run(algorithm, batch)
    weights = batch.num_train / batch.num_train.sum()
    for name, value in part_of(algorithm.broadcast(server, batch.client_ids), "shared").items():
        assert torch.equal(value[0], value[1])
        sent = uplink[f"shared.{name}"]
        assert torch.allclose(value[0], sum(w * s for w, s in zip(weights, sent, strict=True)), atol=1e-12)
    assert all(not torch.allclose(value[0], value[1]) for value in client.personal.values())


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


@pytest.mark.parametrize("backbone", ["gcn", "sage", "gat", "mlp"])
def test_layers_are_those_of_the_backbone(backbone: str) -> None:
    """A backbone of two layers, and two of our layers with its weights."""
    batch, plain = stack(ragged_federation()), backbones.make(backbone, hidden=8)
    task = Task(batch.num_features, batch.num_classes)
    params = plain.init_params(task, batch, 0, common=False)
    layer = star(backbone).network(batch).convolution
    name = "linear" if backbone == "mlp" else "conv"
    features = batch.rows.features
    assert isinstance(features, torch.Tensor)
    hidden = layer.activate(layer(part_of(params, f"{name}1"), features, batch, batch.rows))
    last = replace(layer, heads=1)
    expected = last(part_of(params, f"{name}2"), hidden, batch, batch.rows)
    assert torch.allclose(plain.logits(params, batch), expected, rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("backbone", ["gcn", "sage", "gat", "mlp"])
@pytest.mark.parametrize("task", [PUBMED, Task(300, 10)])
def test_matched_networks_have_as_many_weights_as_the_backbone(backbone: str, task: Task) -> None:
    algorithm = star(backbone, hidden=64, match_parameters=True)
    target = num_weights(algorithm.backbone.shapes(task))
    width = algorithm.network(task).hidden
    step = 8 if backbone == "gat" else 1

    def distance(hidden: int) -> int:
        other = star(backbone, hidden=hidden)
        return abs(num_weights(other.network(task).shapes(task)) - target)

    assert width < 64
    assert distance(width) <= min(distance(width + step), distance(width - step))
    assert distance(width) < (0.2 if backbone == "gat" else 0.05) * target  # 8 heads: widths in steps of 8
    batch = stack(ragged_federation())
    server, _, _ = run(replace(algorithm, backbone=backbones.make(backbone, hidden=16)), batch, rounds=1)
    assert all(torch.isfinite(value).all() for value in server.shared.values())


def test_nothing_is_as_small_as_sgc() -> None:
    """SGC has no hidden layer, so that even one unit of structure is more than it has."""
    network = star("sgc", hidden=64, match_parameters=True).network(PUBMED)
    assert network.hidden == 1
    assert num_weights(network.shapes(PUBMED)) == 1_503 + 33 + 2 * 2 + 2 * 3


@pytest.mark.parametrize("backbone", KINDS)
def test_starts_from_glorot_whatever_the_backbone_does(backbone: str) -> None:
    """With U(0, 1) the logits of this deep a network would be in the hundred thousands."""
    batch = stack(ragged_federation())
    algorithm = star(backbone, hidden=64, init="uniform01")
    server = cast(algorithm.init_server(Task(5, 3), 0), torch.float64)
    client = algorithm.init_clients(Task(5, 3), batch, 0)
    logits = algorithm.predict(client, algorithm.broadcast(server, batch.client_ids), batch)
    assert logits.abs().mean() < 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("walk_steps", 4),
        ("degree_buckets", 0),
        ("degree_scale", "log"),
        ("isolated_bucket", True),
        ("head", "published"),
        ("personal_start", "own"),
        ("share", "nothing"),
        ("match_parameters", True),
        ("reset_optimizer", True),
        ("local_epochs", 1),
    ],
)
def test_every_setting_changes_something_and_stays_finite(setting: str, value: Any) -> None:
    batch = stack(ragged_federation())
    logits = []
    for algorithm in (star(), replace(star(), **{setting: value})):
        server, client, _ = run(algorithm, batch)
        logits.append(algorithm.predict(client, algorithm.broadcast(server, batch.client_ids), batch))
    assert torch.isfinite(logits[1]).all()
    assert not torch.equal(*logits)


def test_the_published_preset_runs() -> None:
    from fedspray.runs.settings import RunSettings

    algorithm, rounds = RunSettings(algorithm="fedstar", preset="published").build()
    assert isinstance(algorithm, FedStar)
    assert (algorithm.backbone.layers, algorithm.head, rounds.rounds) == (3, "published", 200)
    batch = stack(ragged_federation())
    server, _, _ = run(algorithm, batch, rounds=1)
    assert all(torch.isfinite(value).all() for value in server.shared.values())


def test_clients_may_have_different_backbones() -> None:
    federation = ragged_federation()
    parts = [(star("gcn"), stack(federation, [0, 1])), (star("sgc"), stack(federation, [2]))]
    server = cast(parts[0][0].init_server(federation.task, 0), torch.float64)
    uplinks = []
    for algorithm, batch in parts:
        client = algorithm.init_clients(federation.task, batch, 0)
        uplinks.append(algorithm.client_update(client, algorithm.broadcast(server, batch.client_ids), batch, 0)[1])
    joined = {name: torch.cat([uplink[name] for uplink in uplinks]) for name in uplinks[0]}
    assert parts[0][0].server_update(server, joined, (0, 1, 2)).drift > 0
    wide = star("sgc", hidden=16)
    client = wide.init_clients(federation.task, batch, 0)
    with pytest.raises(InputError, match="need the same hidden and layers"):
        wide.client_update(client, wide.broadcast(server, batch.client_ids), batch, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"walk_steps": -1}, "walk_steps is -1, but must be at least 0"),
        (
            {"walk_steps": 0, "degree_buckets": 0},
            "walk_steps and degree_buckets are both 0, but the structure channel needs an input",
        ),
        ({"share": "half"}, "share is 'half', but must be one of structure, nothing, everything"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        star(**settings)
    assert str(caught.value) == sentence


def test_a_foreign_module_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"backbone is 'torch.nn:Bilinear', but fedstar has a network of its own"):
        FedStar(backbone=backbones.make("torch.nn:Bilinear"))


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
    after = algorithm.server_update(server, uplink, (0, 1))
    found = json.loads(json.dumps(algorithm.diagnostics(after, uplink)))
    assert found["shared_drift"] == found["shared_norm"] == pytest.approx(10**0.5)
    assert found["client_distance"] == pytest.approx([18**0.5, 2**0.5])
    nobody = algorithm.server_update(after, {**uplink, "num_train": torch.zeros(2)}, (0, 1))
    assert nobody.shared == after.shared
    assert nobody.drift == 0


@pytest.mark.parametrize("share", ["structure", "nothing", "everything"])
def test_awkward_clients_stay_finite(share: str) -> None:
    batch = stack(awkward_federation())
    algorithm = star(share=share)
    server, client, uplink = run(algorithm, batch)
    json.dumps(algorithm.diagnostics(server, uplink), allow_nan=False)
    for part in (server, client):
        assert all(torch.isfinite(value).all() for value in flatten(part).values())


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
    federation = structural_federation()
    batch = stack(federation)
    scores = {}
    for algorithm in (star("gcn"), algorithms.find("fedavg")(backbone=backbones.make("gcn", hidden=8))):
        server, client, _ = run(algorithm, batch, rounds=40)
        logits = algorithm.predict(client, algorithm.broadcast(server, batch.client_ids), batch)
        right = logits[batch.test].argmax(dim=1) == batch.labels[batch.test]
        scores[type(algorithm).__name__] = right.double().mean().item()
    assert scores["FedStar"] > 0.95
    assert scores["FedStar"] > scores["FedAvg"] + 0.2
