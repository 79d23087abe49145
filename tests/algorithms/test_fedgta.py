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
from fedspray.algorithms._personal import PersonalModels
from fedspray.algorithms.fedgta import FedGTA
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


def test_moments_and_confidence_by_hand() -> None:
    """Two nodes and an edge, Â = 1/2 everywhere; a is trained on (class 0), the model says (1/2, 1/2) of b.

    Y⁰: a = (1, 0), b = (1/2, 1/2).  α = 1/2.
    Step 1: Â Y⁰ = (3/4, 1/4);  a = ½(3/4, 1/4) + ½(1, 0) + (1, 0) = (15/8, 1/8);  b = (5/8, 3/8)
    Step 2: Â Y = (5/4, 1/4);   b = ½(5/4, 1/4) + ½(1/2, 1/2) = (7/8, 3/8)
    P: a = (1, 0), b = (p, 1-p) with p = σ(7/8 - 3/8).  Q with T = 2: b = (q, 1-q), q = σ(1/4).  Degrees with loops: 2.
    """
    graph = Graph.from_arrays(np.ones((2, 1)), np.array([[0], [1]]), [0, 1], num_classes=2)
    first, nobody = np.array([True, False]), np.zeros(2, dtype=bool)
    client = Client("A", graph, Split(first, ~first, nobody), np.arange(2))
    batch = GraphBatch.from_clients([client], [0], dtype=torch.float64)
    algorithm = FedGTA(
        backbone=backbones.make("sgc", lr=1e-12),
        local_epochs=1,
        propagation_steps=2,
        temperature=2.0,
        num_moments=2,
        moments="hybrid",
    )
    zeros = {"gnn.linear.weight": torch.zeros(1, 1, 2).double(), "gnn.linear.bias": torch.zeros(1, 2).double()}
    state = algorithm.init_clients(Task(1, 2), batch, 0)
    _, uplink = algorithm.client_update(state, zeros, batch, 0)
    p, q = 1 / (1 + math.exp(-1 / 2)), 1 / (1 + math.exp(-1 / 4))
    variance = ((1 - p) / 2) ** 2
    moments = [(1 + p) / 2, (1 - p) / 2, (1 + p**2) / 2, (1 - p) ** 2 / 2, 0, 0, variance, variance]
    assert uplink["moments"].tolist()[0] == pytest.approx(moments, abs=1e-9)
    confidence = 2 * 2 / math.e + 2 * (2 / math.e + q * math.log(q) + (1 - q) * math.log(1 - q))
    assert uplink["confidence"].item() == pytest.approx(confidence, abs=1e-9)


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
def test_only_oneself_is_local_bit_for_bit(backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True), dtype=torch.float32)
    server, _, _ = play(FedGTA(backbone=backbones.make(backbone), similarity_threshold=1.0), batch)
    _, local, _ = play(algorithms.find("local")(backbone=backbones.make(backbone)), batch)
    assert all(torch.equal(server.gnn[name], local.gnn[name]) for name in local.gnn)


def test_everybody_alike_is_the_plain_mean() -> None:
    batch = stack(ragged_federation())
    algorithm = FedGTA(backbone=backbones.make("gcn"), similarity_threshold=-1.0, weighting="uniform")
    server, _, uplink = play(algorithm, batch)
    for name, value in server.gnn.items():
        mean = uplink[f"gnn.{name}"].mean(dim=0)
        assert torch.allclose(value, mean.expand_as(value), rtol=0, atol=1e-12)


def test_similar_clients_are_averaged_by_confidence() -> None:
    """cos(0, 1) = 0.8 > 0.65, cos(1, 2) = 0.6 < 0.65, cos(0, 2) = 0: not transitive, client 2 stays alone."""
    algorithm = FedGTA(backbone=backbones.make("sgc"))
    server = PersonalModels({"w": torch.zeros(1)}, {"w": torch.zeros(0, 1)})
    uplink = {
        "gnn.w": torch.tensor([[1.0], [5.0], [9.0]]),
        "moments": torch.tensor([[1.0, 0.0], [8.0, 6.0], [0.0, 0.1]]),
        "confidence": torch.tensor([3.0, 1.0, 7.0]),
    }
    assert algorithm.server_update(server, uplink, (0, 1, 2)).gnn["w"].flatten().tolist() == [2, 2, 9]
    assert algorithm.diagnostics(server, uplink) == {
        "confidence": [3, 1, 7],
        "shares": [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]],
    }


def test_who_did_not_take_part_keeps_what_it_had() -> None:
    algorithm = FedGTA(backbone=backbones.make("gcn"), similarity_threshold=-1.0)
    federation = ragged_federation()
    everybody, pair = stack(federation), stack(federation, [0, 2])
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
    lone = stack(federation, [1])
    message = algorithm.broadcast(first, (1,))
    _, uplink = algorithm.client_update(algorithm.init_clients(federation.task, lone, 0), message, lone, 1)
    second = algorithm.server_update(first, uplink, (1,))
    for name, value in second.gnn.items():
        assert len(value) == everybody.num_clients
        assert torch.equal(value[[0, 2]], first.gnn[name][[0, 2]])
        assert torch.equal(value[1], uplink[f"gnn.{name}"][0])


def test_a_client_without_labels_learns_from_others_and_counts_for_nobody() -> None:
    algorithm = FedGTA(backbone=backbones.make("gcn"), similarity_threshold=-1.0)
    server, _, uplink = play(algorithm, stack(awkward_federation()))
    shares = torch.tensor(algorithm.diagnostics(server, uplink)["shares"])
    assert not shares[:, 3].any()
    assert shares[3, :3].gt(0).all()
    alone = {name: value[3:] for name, value in uplink.items()}
    assert algorithm.diagnostics(server, alone)["shares"] == [[1]]


def test_finds_two_groups_and_beats_local_and_fedavg() -> None:
    batch, gcn = two_groups(), backbones.make("gcn", hidden=16, lr=0.01)
    local, _ = accuracy(algorithms.find("local")(backbone=gcn), batch, 40)
    fedavg, _ = accuracy(algorithms.find("fedavg")(backbone=gcn), batch, 40)
    fedgta, diagnostics = accuracy(FedGTA(backbone=gcn), batch, 40)
    found = torch.tensor(diagnostics["shares"]) > 0
    group = torch.arange(6) // 3
    assert torch.equal(found, group[:, None] == group)
    assert fedgta > local + 0.04
    assert fedgta > fedavg + 0.3


def test_a_server_that_does_not_know_everybody_yet_can_be_resumed(tmp_path: Path) -> None:
    federation = ragged_federation()
    fedspray.run(federation, algorithm="fedgta", rounds=6, participation=0.34, out=tmp_path / "straight")
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


def test_a_run_with_partial_participation_records_who_was_averaged() -> None:
    records: list[dict[str, Any]] = []
    fedspray.run(
        ragged_federation(),
        algorithm="fedgta",
        rounds=4,
        participation=0.67,
        on_record=lambda _, record: records.append(record),
    )
    for record in records:
        assert len(record["diagnostics"]["shares"]) == len(record["trained"]) == 2
        assert json.loads(json.dumps(record["diagnostics"])) == record["diagnostics"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("similarity_threshold", 0.999),
        ("num_moments", 2),
        ("moments", "central"),
        ("moments", "hybrid"),
        ("propagation_steps", 1),
        ("propagation_share", 0.9),
        ("temperature", 1.0),
        ("weighting", "uniform"),
    ],
)
def test_every_setting_changes_something_and_stays_finite(setting: str, value: Any) -> None:
    batch = stack(ragged_federation())
    plain = FedGTA(backbone=backbones.make("gcn"))
    _, _, before = play(plain, batch)
    _, _, after = play(replace(plain, **{setting: value}), batch)
    flat = tree.flatten(after)
    assert all(torch.isfinite(part).all() for part in flat.values())
    assert any(not torch.equal(part, before[name]) for name, part in flat.items())


def test_more_moments_leave_the_first_ones_as_they_are() -> None:
    batch = stack(ragged_federation())
    _, _, few = play(FedGTA(backbone=backbones.make("gcn"), num_moments=2), batch, rounds=1)
    _, _, many = play(FedGTA(backbone=backbones.make("gcn"), num_moments=5), batch, rounds=1)
    assert few["moments"].shape == (3, 2 * 3)
    assert torch.equal(few["moments"], many["moments"][:, :6])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"moments": "cubic"}, "moments is 'cubic', but must be one of raw, central, hybrid"),
        ({"temperature": 0.0}, "temperature is 0.0, but must be above 0"),
        (
            {"num_moments": 0},
            "num_moments is 0 and propagation_steps 5: needed are num_moments ≥ 1, propagation_steps ≥ 0",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedGTA(backbone=backbones.make("gcn"), **settings)
    assert str(caught.value) == sentence
