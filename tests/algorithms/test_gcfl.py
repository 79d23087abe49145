from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms._cuts import cosines, linkage_cut, minimum_cut, similarity_gap
from fedspray.algorithms.base import supervised_loss
from fedspray.algorithms.gcfl import GCFL, OUTCOMES, ServerState
from fedspray.algorithms.gcfl_plus import GCFLPlus, dtw_distances
from fedspray.algorithms.local import ClientState as LocalState
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs.settings import RunSettings
from fedspray.runs.store import read_tensors, write_tensors
from fedspray.seeds import generator

EAGER = {"warmup": 0, "pause": 0}
ALWAYS = {**EAGER, "threshold": "fixed", "eps1": math.inf, "eps2": 0.0, "min_gap": -2.0, "min_members": 2}
VARIANTS = (GCFL, GCFLPlus)


class Play:
    """Rounds by hand, with everything that was sent, recorded and predicted."""

    def __init__(self, algorithm: Any, batch: GraphBatch, rounds: int) -> None:
        task = Task(batch.num_features, batch.num_classes)
        self.algorithm, self.batch = algorithm, batch
        self.server = tree.cast(algorithm.init_server(task, 0), batch.dtype)
        self.client = algorithm.init_clients(task, batch, 0)
        self.records: list[dict[str, Any]] = []
        self.logits: list[torch.Tensor] = []
        for index in range(rounds):
            self.round(index)

    def round(self, index: int) -> None:
        message = self.algorithm.broadcast(self.server, self.batch.client_ids)
        self.client, uplink = self.algorithm.client_update(self.client, message, self.batch, index)
        self.server = self.algorithm.server_update(self.server, uplink, self.batch.client_ids)
        self.records.append(self.algorithm.diagnostics(self.server, uplink))
        self.logits.append(self.algorithm.predict(self.client, self.message, self.batch))

    @property
    def message(self) -> Message:
        return self.algorithm.broadcast(self.server, self.batch.client_ids)  # type: ignore[no-any-return]


def make(kind: type[GCFL] = GCFL, **settings: Any) -> Any:
    return kind(backbone=backbones.make("gcn", hidden=8), **settings)


def fedavg() -> Any:
    return algorithms.find("fedavg")(backbone=backbones.make("gcn", hidden=8))


def permuted_federation(nodes: int = 150) -> Federation:
    """Clients with the same kind of graph; those of 3, 4, 5 call class c by the name c + 1."""
    graphs = {}
    for k in range(6):
        draw = generator(5, "permuted", k)
        labels = draw.integers(0, 3, size=nodes)
        features = 2.0 * np.eye(3)[labels] + draw.normal(size=(nodes, 3))
        pairs = draw.integers(0, nodes, size=(2, 4 * nodes))
        edges = pairs[:, (labels[pairs[0]] == labels[pairs[1]]) | (draw.random(4 * nodes) < 0.1)]
        graphs[f"c{k}"] = Graph.from_arrays(features, edges, (labels + (k >= 3)) % 3, num_classes=3)
    return Federation.from_graphs(graphs, name="permuted")


def accuracy(logits: torch.Tensor, batch: GraphBatch) -> float:
    return float((logits.argmax(dim=1) == batch.labels)[batch.test].double().mean())


# ---- a server whose clients send what the test says ---------------------------------------------


def linear(kind: type[GCFL] = GCFL, **settings: Any) -> tuple[Any, ServerState]:
    """An algorithm over a model of 10 weights, and its server."""
    algorithm = kind(backbone=backbones.make("sgc"), **{**EAGER, **settings})
    return algorithm, tree.cast(algorithm.init_server(Task(4, 2), 0), torch.float64)


def uplink(
    algorithm: Any,
    server: ServerState,
    ids: Sequence[int],
    updates: torch.Tensor,
    weights: Sequence[float] | None = None,
    norms: Sequence[float] | None = None,
) -> Message:
    """What these clients send if their updates are the rows of ``updates``, [K, 10]."""
    message: Message = {"num_train": torch.tensor(weights or [1.0] * len(ids), dtype=torch.float64)}
    start = 0
    for name, value in algorithm.broadcast(server, ids).items():
        size = value[0].numel()
        message[name] = value + updates[:, start : start + size].reshape(value.shape)
        start += size
    if norms is not None:
        message["norm"] = torch.tensor(norms, dtype=torch.float64)
    return message


def step(algorithm: Any, server: ServerState, ids: Sequence[int], updates: torch.Tensor, **more: Any) -> ServerState:
    found: ServerState = algorithm.server_update(server, uplink(algorithm, server, ids, updates, **more), ids)
    return found


def directions(signs: Sequence[int], *, seed: int = 0, noise: float = 0.2) -> torch.Tensor:
    """Updates along one direction, or against it, with noise."""
    draw = torch.Generator().manual_seed(seed)
    base = torch.randn(10, generator=draw, dtype=torch.float64)
    scatter = torch.randn(len(signs), 10, generator=draw, dtype=torch.float64)
    return torch.tensor(signs, dtype=torch.float64)[:, None] * base + noise * scatter


def clusters(algorithm: Any, server: ServerState) -> list[list[int]]:
    found: list[list[int]] = algorithm.diagnostics(server, {})["clusters"]
    return found


def outcome(server: ServerState, cluster: int = 0) -> str:
    return OUTCOMES[int(server.tests.outcome[cluster])]


# ---- identities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize(
    "never",
    [
        {"threshold": "fixed", "eps1": 0.0, "eps2": 0.0},
        {"threshold": "fixed", "eps1": math.inf, "eps2": math.inf},
        {"max_ratio": 1.0, "min_gap": math.inf},
    ],
)
def test_without_a_cut_it_is_fedavg(never: dict[str, Any], kind: type[GCFL]) -> None:
    batch = stack(permuted_federation(nodes=20), dtype=torch.float32)
    ours, theirs = Play(make(kind, **EAGER, **never), batch, 8), Play(fedavg(), batch, 8)
    assert len(ours.server.born) == 1
    for name, value in theirs.server.gnn.items():
        assert torch.equal(ours.server.gnn[name][0], value)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


@pytest.mark.parametrize("kind", VARIANTS)
def test_singletons_follow_local(kind: type[GCFL]) -> None:
    """Cut until every client is alone: from then on each does what Local would do from the same point."""
    batch = stack(ragged_federation())
    settings = {"sequence_length": 1} if kind is GCFLPlus else {}
    play = Play(make(kind, **ALWAYS, **settings), batch, 4)
    assert sorted(map(sorted, play.records[-1]["clusters"])) == [[0], [1], [2]]
    local = algorithms.find("local")(backbone=backbones.make("gcn", hidden=8))
    alone = LocalState(tree.part_of(play.message, "gnn"), play.client.gnn_optimizer)
    for index in range(4, 7):
        play.round(index)
        alone, _ = local.client_update(alone, {}, batch, index)
        expected = local.predict(alone, {}, batch)
        assert torch.allclose(play.logits[-1], expected, rtol=0, atol=1e-10)


def test_a_cluster_averages_its_own_members_by_training_nodes() -> None:
    algorithm, server = linear()
    server = step(algorithm, server, range(4), directions([1, 1, -1, -1]))
    assert clusters(algorithm, server) == [[0, 1], [2, 3]]
    before = {name: value.clone() for name, value in server.gnn.items()}
    updates, weights = directions([1, 1, 1, 1], seed=1), [1.0, 3.0, 2.0, 2.0]
    after = step(algorithm, server, range(4), updates, weights=weights)
    for cluster, mean in enumerate([(updates[0] + 3 * updates[1]) / 4, (updates[2] + updates[3]) / 2]):
        moved = torch.cat([(after.gnn[name][cluster] - before[name][cluster]).flatten() for name in before])
        assert torch.allclose(moved, mean, rtol=0, atol=1e-12)


def test_the_first_average_after_a_cut_is_separate_already() -> None:
    algorithm, server = linear()
    updates = directions([1, 1, 1, -1, -1])
    after = step(algorithm, server, range(5), updates)
    assert clusters(algorithm, after) == [[0, 1, 2], [3, 4]]
    moved = torch.cat([(after.gnn[name] - server.gnn[name]).flatten(1) for name in server.gnn], dim=1)
    assert torch.allclose(moved, torch.stack([updates[:3].mean(dim=0), updates[3:].mean(dim=0)]))


# ---- finding groups -----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"cut": "cos+1"}, {"cut": "complete"}, {"backbone": "sage"}])
def test_two_labelings_are_told_apart(settings: dict[str, Any]) -> None:
    batch = stack(permuted_federation(), dtype=torch.float32)
    chosen = {"cut": "relu", "backbone": "gcn", **settings}
    backbone = backbones.make(chosen["backbone"], hidden=16)
    play = Play(GCFL(backbone=backbone, cut=chosen["cut"]), batch, 40)
    shared = Play(algorithms.find("fedavg")(backbone=backbone), batch, 40)
    whole = [0, 1, 2, 3, 4, 5]
    cuts = [record["clusters"] for record in play.records if record["clusters"] != [whole]]
    assert sorted(cuts[0]) == [[0, 1, 2], [3, 4, 5]]
    assert all(record["clusters"] == [whole] for record in play.records[:20])
    assert not any(min(members) < 3 <= max(members) for found in cuts for members in found)
    assert accuracy(play.logits[-1], batch) > accuracy(shared.logits[-1], batch) + 0.2
    for before, after in pairwise(play.records):
        assert len(after["clusters"]) >= len(before["clusters"])
        assert sorted(k for members in after["clusters"] for k in members) == whole


def test_the_names_of_clients_do_not_matter() -> None:
    federation, order = permuted_federation(), [4, 0, 5, 2, 1, 3]
    renamed = GraphBatch.from_clients([federation.clients[k] for k in order], range(6), dtype=torch.float64)
    algorithm = GCFL(backbone=backbones.make("gcn", hidden=16), pause=2)
    plain, other = Play(algorithm, stack(federation), 30), Play(algorithm, renamed, 30)
    for record, relabelled in zip(plain.records, other.records, strict=True):
        found = [sorted(order[k] for k in members) for members in relabelled["clusters"]]
        assert sorted(found) == sorted(record["clusters"])
    assert len(plain.records[-1]["clusters"]) > 1


def test_the_order_of_arrival_does_not_matter() -> None:
    algorithm, server = linear()
    updates, order = directions([1, -1, 1, -1, 1, -1]), [3, 5, 0, 2, 4, 1]
    assert (
        clusters(algorithm, step(algorithm, server, order, updates[order]))
        == clusters(algorithm, step(algorithm, server, range(6), updates))
        == [[0, 2, 4], [1, 3, 5]]
    )


@pytest.mark.parametrize("signs", [[1, 1, 1, -1, -1], [1, 1, 1, 1, 1]])
@pytest.mark.parametrize("noise", [0.2, 1.0, 3.0])
def test_the_automatic_rule_has_no_scale(signs: list[int], noise: float) -> None:
    algorithm, server = linear()
    updates = directions(signs, noise=noise)
    small, large = (step(algorithm, server, range(5), scale * updates) for scale in (1, 10))
    assert torch.equal(small.cluster_of, large.cluster_of)
    assert torch.equal(small.tests.outcome, large.tests.outcome)


# ---- when a cluster is cut ----------------------------------------------------------------------


def test_no_cut_in_the_first_20_rounds() -> None:
    algorithm, server = linear(warmup=20)
    for index in range(1, 22):
        server = step(algorithm, server, range(4), directions([1, 1, -1, -1], seed=index))
        assert outcome(server) == ("warm-up" if index <= 20 else "split")


def test_no_cut_of_two_clients() -> None:
    algorithm, server = linear()
    server = step(algorithm, server, range(2), directions([1, -1]))
    assert outcome(server) == "small"
    server = step(algorithm, server, range(3), directions([2, -1, -1]))
    assert outcome(server) == "split"


def test_both_parts_of_a_cut_rest() -> None:
    algorithm, server = linear(pause=3)
    signs = [1, 1, 1, 1, -1, -1, -1, -1]
    for _ in range(3):
        server = step(algorithm, server, range(8), directions(signs))
    assert clusters(algorithm, server) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    seen = []
    for _ in range(3):
        server = step(algorithm, server, range(8), directions([1, 1, -1, -1] * 2))
        seen.append((outcome(server, 0), outcome(server, 1)))
    assert seen == [("young", "young"), ("young", "young"), ("split", "split")]


def test_fixed_thresholds() -> None:
    updates = directions([1, 1, -1, -1])
    mean_norm, max_norm = float(updates.mean(dim=0).norm()), float(updates.norm(dim=1).max())
    for eps1, eps2, expected in [
        (1.01 * mean_norm, 0.99 * max_norm, "split"),
        (0.99 * mean_norm, 0.99 * max_norm, "agree"),
        (1.01 * mean_norm, 1.01 * max_norm, "agree"),
    ]:
        algorithm, server = linear(threshold="fixed", eps1=eps1, eps2=eps2)
        assert outcome(step(algorithm, server, range(4), updates)) == expected


def test_a_cut_without_a_gap_is_refused() -> None:
    """Updates that have nothing in common: ρ is small, but no two parts are alike inside."""
    updates = torch.eye(10, dtype=torch.float64) - 0.1
    algorithm, server = linear(max_ratio=0.5)
    refused = step(algorithm, server, range(10), updates)
    assert outcome(refused) == "gap"
    assert len(refused.born) == 1
    algorithm, server = linear(max_ratio=0.5, min_gap=-2.0)
    assert outcome(step(algorithm, server, range(10), updates)) == "split"


def test_zero_updates_are_similar_to_nothing() -> None:
    updates = torch.zeros(3, 10, dtype=torch.float64)
    assert not cosines(updates).any()
    algorithm, server = linear()
    server = step(algorithm, server, range(3), updates)
    assert outcome(server) == "agree"
    assert algorithm.diagnostics(server, {})["rho"] == [None]


def test_clients_without_training_nodes_have_no_say() -> None:
    algorithm, server = linear()
    updates = directions([1, 1, 1, -1, -1, 0], noise=0.1)
    updates[5] = 0
    server = step(algorithm, server, range(6), updates, weights=[1, 1, 1, 1, 1, 0])
    assert clusters(algorithm, server) == [[0, 1, 2, 5], [3, 4]]
    after = step(algorithm, server, [5], updates[5:], weights=[0])
    assert all(torch.equal(after.gnn[name], server.gnn[name]) for name in server.gnn)
    assert algorithm.diagnostics(after, {})["outcome"] == ["absent", "absent"]


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("cut", ["default", "complete"])
def test_awkward_clients_survive_cuts(kind: type[GCFL], cut: str) -> None:
    settings: dict[str, Any] = {} if cut == "default" else {"cut": cut}
    play = Play(make(kind, **ALWAYS, **settings), stack(awkward_federation()), 12)
    assert len(play.server.born) > 1
    assert all(torch.isfinite(value).all() for value in tree.flatten(play.server).values())
    json.dumps(play.records, allow_nan=False)


# ---- cuts and gaps ------------------------------------------------------------------------------


def test_the_minimum_cut_of_a_small_graph() -> None:
    """Two triangles with strong edges, joined by one weak edge (0.5); absent edges weigh 0."""
    weights = torch.zeros(6, 6)
    for i, j in [(0, 2), (2, 4), (0, 4), (1, 3), (3, 5), (1, 5)]:
        weights[i, j] = weights[j, i] = 2.0
    weights[4, 5] = weights[5, 4] = 0.5
    part = minimum_cut(weights)
    assert sorted([part.nonzero()[:, 0].tolist(), (~part).nonzero()[:, 0].tolist()]) == [[0, 2, 4], [1, 3, 5]]


def test_unrelated_clients_are_tied_together_by_cos_plus_1_only() -> None:
    """Two pairs that agree inside (cos 0.5) and not across (cos 0): with cos+1 a single client is the cheapest cut."""
    similarities = torch.eye(4) + 0.5 * torch.eye(4)[[1, 0, 3, 2]]
    sizes = {cut: int(minimum_cut(make(cut=cut).cut_weights(similarities)).sum()) for cut in ("relu", "cos+1")}
    assert sizes["relu"] == 2
    assert sizes["cos+1"] in (1, 3)
    assert linkage_cut(similarities).tolist() == [True, True, False, False]


def test_rounding_below_minus_1_is_not_a_negative_weight() -> None:
    weights = make(cut="cos+1").cut_weights(torch.tensor([[1.0, -1.0 - 1e-7], [-1.0 - 1e-7, 1.0]]))
    assert weights.min() == 0


def test_the_gap() -> None:
    s = torch.tensor([[1.0, 0.9, 0.1, 0.2], [0.9, 1.0, 0.3, 0.4], [0.1, 0.3, 1.0, 0.5], [0.2, 0.4, 0.5, 1.0]])
    pairs = torch.tensor([True, True, False, False])
    assert similarity_gap(s, pairs) == pytest.approx((0.9 + 0.5) / 2 - (0.1 + 0.2 + 0.3 + 0.4) / 4)
    single = torch.tensor([True, False, False, False])
    assert similarity_gap(s, single) == pytest.approx((0.3 + 0.4 + 0.5) / 3 - (0.9 + 0.1 + 0.2) / 3)
    assert similarity_gap(s[:2, :2], torch.tensor([True, False])) == pytest.approx(1 - 0.9)


# ---- who is away --------------------------------------------------------------------------------


def test_absent_clients_join_the_part_that_they_resemble() -> None:
    """Clients 6 and 7 were away when the cluster was cut; 8 and 9 were never heard of before."""
    algorithm, server = linear()
    server = step(algorithm, server, [6, 7], directions([1, -1]))
    server = step(algorithm, server, range(6), directions([1, 1, 1, 1, -1, -1]))
    assert clusters(algorithm, server) == [[0, 1, 2, 3, 6, 7], [4, 5]]
    assert torch.equal(  # until then they have the model of the larger part
        algorithm.broadcast(server, [0, 7, 9])["gnn.linear.weight"], server.gnn["linear.weight"][[0, 0, 0]]
    )
    waiting = step(algorithm, server, [0, 7], directions([1, -1]))  # nobody of the other part to compare with
    assert clusters(algorithm, waiting)[1] == [4, 5]
    ids = [0, 4, 6, 7, 8, 9]
    after = step(algorithm, waiting, ids, directions([1, -1, 1, -1, 1, -1], noise=0.05))
    assert clusters(algorithm, after) == [[0, 1, 2, 3, 6, 8], [4, 5, 7, 9]]
    once_more = step(algorithm, after, ids, directions([1, 1, 1, 1, 1, 1]))  # settled: they do not wander
    assert clusters(algorithm, once_more) == clusters(algorithm, after)


def test_a_client_that_is_moved_brings_its_update_not_its_model() -> None:
    algorithm, server = linear(min_members=99)
    away = step(algorithm, server, range(4), directions([1, 1, 1, 1]))
    apart = step(replace(algorithm, min_members=3), away, range(4), directions([1, 1, -1, -1]))
    assert clusters(algorithm, apart) == [[0, 1], [2, 3]]
    updates = directions([1, -1, -1], noise=0.05)
    after = step(algorithm, apart, [0, 2, 4], updates)
    assert clusters(algorithm, after)[1] == [2, 3, 4]
    moved = torch.cat([(after.gnn[name][1] - apart.gnn[name][1]).flatten() for name in apart.gnn])
    assert torch.allclose(moved, updates[1:].mean(dim=0), rtol=0, atol=1e-12)


def test_half_of_the_clients_in_each_round() -> None:
    """With changing halves all clients end up with their own kind."""
    federation = permuted_federation()
    algorithm = make(warmup=10)
    singles = [stack(federation, [k]) for k in range(6)]
    server = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
    states = [algorithm.init_clients(federation.task, batch, 0) for batch in singles]
    for index in range(60):
        ids = sorted(generator(3, "half", index).choice(6, size=4, replace=False).tolist())
        downlink, sent = algorithm.broadcast(server, range(6)), []
        for k in ids:
            row = {name: value[k : k + 1] for name, value in downlink.items()}
            states[k], message = algorithm.client_update(states[k], row, singles[k], index)
            sent.append(message)
        joined = {name: torch.cat([message[name] for message in sent]) for name in sent[0]}
        server = algorithm.server_update(server, joined, ids)
    found = clusters(algorithm, server)
    assert len(found) > 1
    assert not any(min(members) < 3 <= max(members) for members in found)


# ---- GCFL+ --------------------------------------------------------------------------------------


def naive_dtw(a: Sequence[float], b: Sequence[float]) -> float:
    table = {(-1, -1): 0.0}
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            before = [table.get(place, math.inf) for place in ((i - 1, j), (i, j - 1), (i - 1, j - 1))]
            table[i, j] = (x - y) ** 2 + min(before)
    return math.sqrt(table[len(a) - 1, len(b) - 1])


def test_dtw() -> None:
    draw = generator(1, "dtw")
    sequences = torch.from_numpy(draw.normal(size=(6, 7)))
    found = dtw_distances(sequences)
    expected = [[naive_dtw(a, b) for b in sequences.tolist()] for a in sequences.tolist()]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert not found.diagonal().any()
    assert torch.equal(found, found.T)
    assert (found <= torch.cdist(sequences, sequences) + 1e-12).all()


def test_dtw_tolerates_a_shift() -> None:
    peak = torch.tensor([[0.0, 0, 1, 0, 0, 0], [0.0, 0, 0, 0, 1, 0]])
    assert dtw_distances(peak)[0, 1] == 0
    assert torch.dist(peak[0], peak[1]) > 1


SHAPES = {True: [1.0, 2.0, 3.0, 4.0, 5.0], False: [5.0, 4.0, 3.0, 2.0, 1.0]}


def feed(algorithm: Any, server: ServerState, rises: Sequence[bool], signs: Sequence[int]) -> ServerState:
    """Five rounds in which the clients' norms rise or fall, each a little differently."""
    for index in range(5):
        norms = [SHAPES[rise][index] * (1 + 0.01 * k) for k, rise in enumerate(rises)]
        server = step(algorithm, server, range(len(rises)), directions(signs), norms=norms)
    return server


@pytest.mark.parametrize("cut", ["minimum", "complete"])
@pytest.mark.parametrize("standardise", [False, True])
def test_two_shapes_of_sequences_are_told_apart(cut: str, standardise: bool) -> None:
    """The directions would say {0, 1}, {2, 3}; the sequences say {0, 2}, {1, 3}, and they are what counts."""
    algorithm, server = linear(GCFLPlus, cut=cut, standardise=standardise)
    server = feed(algorithm, server, [True, False, True, False], [1, 1, -1, -1])
    assert clusters(algorithm, server) == [[0, 2], [1, 3]]


def test_sequences_must_be_full_and_are_cleared_by_a_cut() -> None:
    """Two clusters that both should be cut: the first cut clears all sequences, so the second has to wait."""
    algorithm, server = linear(GCFLPlus)
    rises = [True, True, False, False] * 2
    server = replace(
        server,
        cluster_of=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        seen=torch.zeros(8, dtype=torch.int64),
        born=torch.tensor([0, 0]),
        parent=torch.tensor([-1, 0]),
        norms=torch.zeros(8, 5, dtype=torch.float64),
        norm_counts=torch.zeros(8, dtype=torch.int64),
        gnn={name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in server.gnn.items()},
    )
    signs = [1, -1] * 4
    early = step(algorithm, server, range(8), directions(signs), norms=[1.0] * 8)
    assert (outcome(early, 0), outcome(early, 1)) == ("unknown", "unknown")
    server = feed(algorithm, server, rises, signs)
    assert clusters(algorithm, server) == [[0, 1], [4, 5, 6, 7], [2, 3]]
    assert (outcome(server, 0), outcome(server, 1), outcome(server, 2)) == ("split", "unknown", "new")
    assert not server.norm_counts.any()


@pytest.mark.parametrize("standardise", [False, True])
def test_equal_sequences_are_not_cut(standardise: bool) -> None:
    algorithm, server = linear(GCFLPlus, min_gap=-2.0, standardise=standardise)
    for _ in range(6):
        server = step(algorithm, server, range(4), directions([1, 1, -1, -1]), norms=[0.7] * 4)
    assert outcome(server) == "unknown"


def test_only_the_last_norms_are_kept() -> None:
    algorithm, server = linear(GCFLPlus, sequence_length=3, warmup=99)
    for index in range(5):
        ids = [0, 1] if index % 2 == 0 else [1]
        server = step(algorithm, server, ids, directions([1] * len(ids)), norms=[float(index)] * len(ids))
    assert server.norms.tolist() == [[0, 2, 4], [2, 3, 4]]
    assert server.norm_counts.tolist() == [3, 3]


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
def test_the_norm_is_that_of_the_last_steps_gradient(backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True))
    task = Task(batch.num_features, batch.num_classes)
    algorithm = GCFLPlus(backbone=backbones.make(backbone, hidden=8, weight_decay=0.1), local_epochs=3)
    message = tree.prefixed("gnn", algorithm.backbone.init_params(task, batch, 0))
    _, sent = algorithm.client_update(algorithm.init_clients(task, batch, 0), message, batch, 0)
    shorter = replace(algorithm, local_epochs=2)
    _, before = shorter.client_update(algorithm.init_clients(task, batch, 0), message, batch, 0)
    params = {name: value.requires_grad_() for name, value in tree.part_of(before, "gnn").items()}
    _, logits = algorithm.backbone.train_outputs(params, batch, 0, 2)
    gradients = torch.autograd.grad(supervised_loss(logits, batch).sum(), list(params.values()))
    expected = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1).norm(dim=1)
    assert torch.allclose(sent["norm"], expected, rtol=0, atol=1e-12)


def test_the_norm_of_the_update() -> None:
    batch = stack(ragged_federation())
    algorithm = make(GCFLPlus, sequence="update")
    client = algorithm.init_clients(Task(5, 3), batch, 0)
    message = tree.prefixed("gnn", algorithm.backbone.init_params(Task(5, 3), batch, 0))
    _, sent = algorithm.client_update(client, message, batch, 0)
    expected = torch.cat([(sent[name] - message[name]).flatten(1) for name in message], dim=1).norm(dim=1)
    assert torch.allclose(sent["norm"], expected, rtol=0, atol=1e-12)


# ---- records, checkpoints, settings -------------------------------------------------------------


def test_the_record_of_a_cut() -> None:
    algorithm, server = linear()
    updates = directions([1, 1, 1, -1, -1])
    record = algorithm.diagnostics(step(algorithm, server, range(5), updates), {})
    json.dumps(record, allow_nan=False)
    assert record["clusters"] == [[0, 1, 2], [3, 4]]
    assert record["outcome"] == ["split", "new"]
    assert record["delta_mean"] == [pytest.approx(float(updates.mean(dim=0).norm())), None]
    assert record["delta_max"] == [pytest.approx(float(updates.norm(dim=1).max())), None]
    assert record["rho"] == [pytest.approx(record["delta_mean"][0] / record["delta_max"][0]), None]
    part = torch.tensor([True, True, True, False, False])
    assert record["gap"] == [pytest.approx(similarity_gap(cosines(updates), part)), None]


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_server_with_clusters_survives_a_checkpoint(kind: type[GCFL], tmp_path: Path) -> None:
    batch = stack(ragged_federation())
    settings = {"sequence_length": 1} if kind is GCFLPlus else {}
    play = Play(make(kind, **ALWAYS, **settings), batch, 2)
    assert len(play.server.born) > 1
    write_tensors(tmp_path / "server.safetensors", tree.flatten(play.server), {})
    stored, _ = read_tensors(tmp_path / "server.safetensors")
    template = tree.cast(play.algorithm.init_server(Task(5, 3), 0), batch.dtype)
    fresh = tree.restore(template, stored)
    again = Play(play.algorithm, batch, 0)
    again.server, again.client = fresh, play.client
    play.round(9)
    again.round(9)
    one, other = tree.flatten(play.server), tree.flatten(again.server)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["gcfl", "gcfl-plus"])
def test_the_published_preset(name: str) -> None:
    algorithm, _ = RunSettings(algorithm=name, preset="published", values={"warmup": 2}).build()
    assert isinstance(algorithm, GCFL)
    assert (algorithm.threshold, algorithm.eps1, algorithm.eps2, algorithm.pause) == ("fixed", 0.05, 0.1, 0)
    play = Play(algorithm, stack(permuted_federation(nodes=40)), 8)
    assert {record["outcome"][0] for record in play.records} >= {"warm-up", "agree"}
    assert play.logits[-1].isfinite().all()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (GCFL, "threshold", "paper"),
        (GCFL, "cut", "minimum"),
        (GCFLPlus, "cut", "relu"),
        (GCFLPlus, "sequence", "loss"),
        (GCFLPlus, "sequence_length", 0),
    ],
)
def test_wrong_settings_are_refused(kind: type[GCFL], name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        make(kind, **{name: value})
