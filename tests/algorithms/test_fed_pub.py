from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import awkward_federation, ragged_federation, stack

import fedspray
from fedspray import algorithms, backbones
from fedspray.algorithms.fed_pub import FedPub, ProxyGraph, ServerState
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Split, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn import tree
from fedspray.runs import run
from fedspray.seeds import generator


def play(algorithm: Any, batch: GraphBatch, rounds: int = 3) -> tuple[Any, Any, Any]:
    """Server, clients and last uplink after a few rounds."""
    task = Task(batch.num_features, batch.num_classes)
    server = tree.cast(algorithm.init_server(task, 0), batch.dtype)
    client, uplink = algorithm.init_clients(task, batch, 0), {}
    for index in range(rounds):
        message = algorithm.broadcast(server, batch.client_ids)
        client, uplink = algorithm.client_update(client, message, batch, index)
        server = algorithm.server_update(server, uplink, batch.client_ids)
    return server, client, uplink


def accuracy(algorithm: Any, batch: GraphBatch, rounds: int) -> tuple[float, Any]:
    """Test accuracy and diagnostics after ``rounds``."""
    server, client, uplink = play(algorithm, batch, rounds)
    predicted = algorithm.predict(client, algorithm.broadcast(server, batch.client_ids), batch).argmax(dim=1)
    right = (predicted == batch.labels)[batch.test]
    return right.double().mean().item(), algorithm.diagnostics(server, uplink)


def two_groups() -> GraphBatch:
    """Two groups of three clients with six labels each: the same features mean classes 0, 1 here and 2, 3 there."""
    centres = generator(5, "centre").normal(size=(2, 6))
    clients = []
    for k in range(6):
        draw = generator(5, "two groups", k)
        kind = draw.integers(0, 2, size=60)
        features = centres[kind] + 1.5 * draw.normal(size=(60, 6))
        chance = np.where(kind[:, None] == kind, 0.06, 0.01)
        edges = np.stack(np.nonzero(np.triu(draw.random((60, 60)) < chance, 1)))
        graph = Graph.from_arrays(features, edges, kind + 2 * (k // 3), num_classes=4)
        train = np.isin(np.arange(60), draw.permutation(60)[:6])
        clients.append(Client(f"c{k}", graph, Split(train, np.zeros(60, dtype=bool), ~train), np.arange(60)))
    return GraphBatch.from_clients(clients, range(6), dtype=torch.float64)


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


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
def test_only_oneself_is_local_bit_for_bit(backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True), dtype=torch.float32)
    server, _, _ = play(FedPub(backbone=backbones.make(backbone), sharpness=1e9), batch)
    _, local, _ = play(algorithms.find("local")(backbone=backbones.make(backbone)), batch)
    assert all(torch.equal(server.gnn[name], local.gnn[name]) for name in local.gnn)


def test_everybody_alike_is_the_plain_mean() -> None:
    batch = stack(ragged_federation())
    server, _, uplink = play(FedPub(backbone=backbones.make("gcn"), sharpness=0.0), batch)
    for name, value in server.gnn.items():
        mean = uplink[f"gnn.{name}"].mean(dim=0)
        assert torch.allclose(value, mean.expand_as(value), rtol=0, atol=1e-12)


def test_who_did_not_take_part_keeps_what_it_had() -> None:
    algorithm = FedPub(backbone=backbones.make("gcn"))
    federation = ragged_federation()
    pair, lone = stack(federation, [0, 2]), stack(federation, [1])
    start = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
    message = algorithm.broadcast(start, (0, 2))
    _, uplink = algorithm.client_update(algorithm.init_clients(federation.task, pair, 0), message, pair, 0)
    first = algorithm.server_update(start, uplink, (0, 2))
    sent = algorithm.broadcast(first, (2, 1, 7))  # 1 and 7 were never seen
    for name, initial in start.start.items():
        assert torch.equal(sent[f"gnn.{name}"][1], initial)
        assert torch.equal(sent[f"gnn.{name}"][2], initial)
        assert torch.equal(sent[f"gnn.{name}"][0], first.gnn[name][2])
        assert not torch.equal(first.gnn[name][2], initial)
    message = algorithm.broadcast(first, (1,))
    _, uplink = algorithm.client_update(algorithm.init_clients(federation.task, lone, 0), message, lone, 1)
    second = algorithm.server_update(first, uplink, (1,))
    for name, value in second.gnn.items():
        assert len(value) == 3
        assert torch.equal(value[[0, 2]], first.gnn[name][[0, 2]])
        assert torch.equal(value[1], uplink[f"gnn.{name}"][0])


def test_a_client_without_labels_learns_from_others_and_counts_for_nobody() -> None:
    algorithm = FedPub(backbone=backbones.make("gcn"))
    server, _, uplink = play(algorithm, stack(awkward_federation()))
    shares = torch.tensor(algorithm.diagnostics(server, uplink)["shares"])
    assert not shares[:, 3].any()
    assert shares[3].sum().item() == pytest.approx(1, abs=1e-3)
    alone = {name: value[3:] for name, value in uplink.items()}
    kept = algorithm.server_update(server, alone, (3,))
    assert all(torch.equal(value[3], alone[f"gnn.{name}"][0]) for name, value in kept.gnn.items())


def test_finds_two_groups_and_beats_local_and_fedavg() -> None:
    batch, gcn = two_groups(), backbones.make("gcn", hidden=16, lr=0.01)
    local, _ = accuracy(algorithms.find("local")(backbone=gcn), batch, 40)
    fedavg, _ = accuracy(algorithms.find("fedavg")(backbone=gcn), batch, 40)
    fed_pub, diagnostics = accuracy(FedPub(backbone=gcn, sharpness=30.0), batch, 40)
    similarity = torch.tensor(diagnostics["similarity"])
    assert min(similarity[:3, :3].min(), similarity[3:, 3:].min()) > 0.9
    assert similarity[:3, 3:].max() < 0.1
    assert fed_pub > local + 0.04
    assert fed_pub > fedavg + 0.3


def test_hidden_layers_hardly_tell_models_apart() -> None:
    """Behind a relu all coordinates are positive and mostly the common start's: why logits are compared."""
    batch, gcn = two_groups(), backbones.make("gcn", hidden=16, lr=0.01)
    seen = {
        kind: play(FedPub(backbone=gcn, embedding=kind), batch)[0].similarity[:3, 3:].mean().item()
        for kind in ("hidden", "logits")
    }
    assert 1 - seen["hidden"] < 0.1 * (1 - seen["logits"])


def test_a_server_that_does_not_know_everybody_yet_can_be_resumed(tmp_path: Path) -> None:
    federation = ragged_federation()
    fedspray.run(federation, algorithm="fed-pub", rounds=6, participation=0.34, out=tmp_path / "straight")
    settings, _ = run.load_settings(tmp_path / "straight")
    folder = run.begin(tmp_path / "broken", federation, settings, None)

    def crash(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run.carry_out(federation, settings, folder, checkpoint_every=1, on_record=crash)
    run.carry_out(federation, settings, folder)
    curves = [
        [(record["trained"], record["val"], record["diagnostics"]) for record in map(json.loads, lines)]
        for lines in (file.read_text().splitlines() for file in sorted(tmp_path.rglob("rounds.jsonl")))
    ]
    assert len(curves) == 2
    assert curves[0] == curves[1]
    assert len({tuple(trained) for trained, _, _ in curves[0]}) > 1  # somebody came later than somebody else


def test_a_run_with_partial_participation_records_the_similarities() -> None:
    records: list[dict[str, Any]] = []
    fedspray.run(
        ragged_federation(),
        algorithm="fed-pub",
        rounds=4,
        participation=0.67,
        on_record=lambda _, record: records.append(record),
    )
    for record in records:
        assert len(record["diagnostics"]["similarity"]) == len(record["trained"]) == 2
        assert json.loads(json.dumps(record["diagnostics"])) == record["diagnostics"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sharpness", 3.0),
        ("embedding", "hidden"),
        ("centre", True),
        ("proxy_blocks", 2),
        ("proxy_block_size", 10),
        ("proxy_density", 0.5),
    ],
)
def test_every_setting_changes_something_and_stays_finite(setting: str, value: Any) -> None:
    batch = stack(ragged_federation())
    plain = FedPub(backbone=backbones.make("gcn"))
    before, _, _ = play(plain, batch)
    after, _, _ = play(replace(plain, **{setting: value}), batch)
    assert all(torch.isfinite(part).all() for part in after.gnn.values())
    assert any(not torch.equal(before.gnn[name], after.gnn[name]) for name in before.gnn)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"embedding": "weights"}, "embedding is 'weights', but must be one of logits, hidden"),
        ({"sharpness": -1.0}, "sharpness is -1.0, but must be at least 0"),
        (
            {"proxy_density": 1.5},
            "the random graph has 5 blocks of 100 nodes with density 1.5: "
            "needed are at least one block and node, and a density between 0 and 1",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedPub(backbone=backbones.make("gcn"), **settings)
    assert str(caught.value) == sentence
