from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from play import Play, build, finite, same, take_in
from torch import Tensor
from torch.nn import functional
from toys import awkward_federation, ragged_federation, stack

from fedspray.algorithms._shift import SHIFTS
from fedspray.algorithms._teacher import label_histograms
from fedspray.algorithms.fedspray2 import BLENDS, ServerState
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.errors import InputError


def one_client(features: Any, edges: Any, labels: Any, train: Any, val: Any = (), num_classes: int = 2) -> GraphBatch:
    graph = Graph.from_arrays(np.array(features), np.array(edges).reshape(2, -1), labels, num_classes=num_classes)
    nodes = np.arange(graph.num_nodes)
    split = Split(np.isin(nodes, train), np.isin(nodes, val), np.zeros(len(nodes), dtype=bool))
    return GraphBatch.from_clients([Client("a", graph, split, nodes)], [0], dtype=torch.float64)


def five_nodes() -> GraphBatch:
    """A triangle 0, 1, 2, a leaf 3 at 2, and 4 alone; no features; 0 (class 0) and 1 (class 1) are trained on."""
    return one_client(np.zeros((5, 1)), [[0, 0, 1, 2], [1, 2, 2, 3]], [0, 1, 0, 1, 0], train=[0, 1], val=[2, 3, 4])


def close(actual: Tensor, expected: Any, atol: float = 1e-12) -> bool:
    return torch.allclose(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


# ---- histograms -----------------------------------------------------------------------------------------


def test_histograms_by_hand() -> None:
    """The walks that do not return: 0→1→2, 0→2→1, 0→2→3; 1→0→2, 1→2→0, 1→2→3; 2→0→1, 2→1→0; 3→2→0, 3→2→1."""
    z = torch.tensor([[1, 0], [0, 1], [1, 0], [1 / 4, 3 / 4], [1 / 2, 1 / 2]], dtype=torch.float64)
    one, two = label_histograms(z, five_nodes()).chunk(2, dim=1)
    assert close(one, [[1 / 2, 1 / 2], [1, 0], [5 / 12, 7 / 12], [1, 0], [0, 0]])
    assert close(two, [[5 / 12, 7 / 12], [3 / 4, 1 / 4], [1 / 2, 1 / 2], [1 / 2, 1 / 2], [0, 0]])


def test_without_a_walk_that_does_not_return_there_is_nothing_two_steps_away() -> None:
    """The middle of a star: all its walks return. In single precision, too, nothing is left of rounding."""
    batch = one_client(np.zeros((12, 1)), [[0] * 11, range(1, 12)], [0] * 12, train=[])
    z = torch.full((12, 2), 0.1)
    histograms = label_histograms(z, replace(batch, dtype=torch.float32))
    assert torch.allclose(histograms[0, :2], z[0])
    assert histograms[0, 2:].tolist() == [0, 0]


@st.composite
def labelled_graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[int], list[int], int]:
    size = draw(st.integers(2, 9))
    node = st.integers(0, size - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=20))  # with loops and repetitions
    labels = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    train = draw(st.lists(node, unique=True, min_size=1))
    return size, edges, labels, train, draw(st.sampled_from(train))


@settings(deadline=None)
@given(labelled_graphs())
def test_a_node_never_sees_its_own_label(drawn: tuple[int, list[tuple[int, int]], list[int], list[int], int]) -> None:
    """What the teacher says of a training node, and all it looks at, is the same whatever the node's label is."""
    size, edges, labels, train, node = drawn
    features = np.random.default_rng(0).normal(size=(size, 4))
    algorithm = build("fedspray2", embedding_dim=4)
    answers = []
    for label in range(3):
        changed = [label if i == node else other for i, other in enumerate(labels)]
        batch = one_client(features, list(zip(*edges, strict=True)), changed, train, num_classes=3)
        game = Play(algorithm, batch)
        message = {**game.message, "encoder.proxies": torch.arange(18.0, dtype=torch.float64).view(1, 6, 3)}
        _, histograms, log_p = algorithm._teach(message, batch)
        answers.append((histograms, log_p))
    for histograms, log_p in answers[1:]:
        assert torch.allclose(histograms[node], answers[0][0][node], rtol=0, atol=1e-12)
        assert torch.allclose(log_p[node], answers[0][1][node], rtol=0, atol=1e-12)
    neighbours = batch.neighbours.toarray()[node] > 0
    for other in np.flatnonzero(neighbours):  # they do see it
        assert not torch.allclose(answers[0][0][other], answers[1][0][other])


# ---- the teacher's training ------------------------------------------------------------------------------


def test_one_round_by_hand() -> None:
    """Without features e = 0, so q = p = (1/2, 1/2), and z = (1, 0), (0, 1), then (1/2, 1/2) for 2, 3 and 4.

    h1: 0: (1/4, 3/4), 1: (3/4, 1/4).    h2, over z of 2, 1, 3 and of 2, 0, 3:    0: (1/3, 2/3), 1: (2/3, 1/3).
    p - y: 0: (-1/2, 1/2), 1: (1/2, -1/2). So the gradient of S, Σ_i h_i ⊗ (p_i - y_i), is ±1/4 for one step and ±1/6
    for two, and those of the heads' biases are 0. Adam's first step is lr · sign(gradient).
    """
    game = Play(build("fedspray2", encoder_lr=0.25, encoder_weight_decay=0.0), five_nodes(), rounds=1)
    expected = [[1 / 4, -1 / 4], [-1 / 4, 1 / 4], [1 / 6, -1 / 6], [-1 / 6, 1 / 6]]
    assert close(game.uplinks[0]["gradient.proxies"], [expected])
    for head in ("feature_head", "fusion_head"):
        assert not game.uplinks[0][f"gradient.{head}.bias"].any()
    step = [[-0.25, 0.25], [0.25, -0.25]]
    assert close(game.server.encoder["proxies"], step + step, atol=1e-6)
    # Node 3 sees z of 2 (unlabelled), and of 0 and 1 two steps away: both say nothing. Node 0 sees its opposite.
    taught = game.algorithm._teach(game.message, game.batch)[2]
    assert close(taught[3], [math.log(1 / 2)] * 2)
    margin = 2 * 0.25 * ((3 / 4 - 1 / 4) + (2 / 3 - 1 / 3))
    assert float(taught[0, 0] - taught[0, 1]) == pytest.approx(margin, abs=1e-6)


def pooled_teacher(federation: Federation, rounds: int, encoder: dict[str, Tensor]) -> dict[str, Tensor]:
    """The teacher on one machine: plain torch, dense matrices, all clients' nodes, torch's own Adam."""
    weights = {name: value.clone().requires_grad_() for name, value in encoder.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.02, weight_decay=5e-4)

    def logits(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        e = (x @ weights["embedding.weight"] + weights["embedding.bias"]).relu()
        heads = (e @ weights[f"{head}.weight"] + weights[f"{head}.bias"] for head in ("feature_head", "fusion_head"))
        q, p = heads
        return q, p + h @ weights["proxies"]

    for _ in range(rounds):
        losses, count = torch.zeros((), dtype=torch.float64), 0
        for client in federation.clients:
            graph, train = client.graph, torch.from_numpy(client.split.train)
            x = functional.normalize(torch.from_numpy(graph.dense_features()).double(), dim=1)
            walks = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
            walks[tuple(graph.both_directions())] = 1
            two = walks @ walks
            two.fill_diagonal_(0)
            y = torch.from_numpy(graph.labels)
            with torch.no_grad():
                z = logits(x, x.new_zeros(len(x), 2 * graph.num_classes))[0].softmax(dim=1)
                z[train] = functional.one_hot(y[train], graph.num_classes).double()
                h = torch.cat([step @ z / step.sum(dim=1, keepdim=True).clamp(min=1) for step in (walks, two)], dim=1)
            for said in logits(x, h):
                losses = losses + functional.cross_entropy(said[train], y[train], reduction="sum")
            count += int(train.sum())
        optimizer.zero_grad()
        (losses / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach() for name, value in weights.items()}


@pytest.mark.parametrize("sparse", [False, True])
def test_the_teacher_is_that_of_the_pooled_data(sparse: bool) -> None:
    federation = ragged_federation(sparse=sparse)
    algorithm = build("fedspray2", encoder_dropout=0.0)
    start = Play(algorithm, stack(federation)).server.encoder
    game = Play(algorithm, *(stack(federation, [k]) for k in range(3)), rounds=4)
    assert same(game.server.encoder, pooled_teacher(federation, 4, start), 1e-6)
    assert not same(game.server.encoder, start, 1e-3)


def test_the_server_needs_nothing_but_sums() -> None:
    game = Play(build("fedspray2"), stack(ragged_federation()), rounds=2)
    sums = {name: value.sum(dim=0, keepdim=True) for name, value in game.uplinks[-1].items()}
    each = take_in(game.algorithm, game.server, game.uplinks[-1], (0, 1, 2))
    assert same(each, take_in(game.algorithm, game.server, sums, (0,)), 1e-12)


def test_the_length_of_a_feature_row_says_nothing_to_the_teacher() -> None:
    edges, labels = [[0, 1], [1, 2]], [0, 1, 1]
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    long, unit = (one_client(x, edges, labels, train=[0, 1]) for x in (rows, rows / [[5.0], [1.0], [1.0]]))
    assert long.rows.to_unit_length.tolist() == [1 / 5, 0, 1]
    games = [Play(build("fedspray2"), batch, rounds=3) for batch in (long, unit)]
    assert same(games[0].server, games[1].server, 1e-7)
    assert not same(games[0].client.gnn, games[1].client.gnn, 1e-3)  # the GNN sees raw features


# ---- the GNN ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "sage"])
def test_without_distillation_the_gnn_is_locals(backbone: str) -> None:
    batch = stack(ragged_federation())
    settings: dict[str, Any] = {"hidden": 8, "dropout": 0.2}
    local = Play(build("local", backbone, **settings), batch, rounds=3)
    ours = Play(build("fedspray2", backbone, **settings), batch, rounds=3)
    assert same(ours.client.gnn, local.client.gnn)
    assert same(ours.client.gnn_optimizer, local.client.gnn_optimizer)
    taught = Play(build("fedspray2", backbone, distill_weight=1.0, **settings), batch, rounds=3)
    assert not same(taught.client.gnn, local.client.gnn, 1e-4)


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
def test_the_shared_gnn_is_fedproxs_and_all_else_is_fedspray2s(backbone: str) -> None:
    batch = stack(ragged_federation())
    settings: dict[str, Any] = {"hidden": 8, "dropout": 0.2}
    shared, plain, prox, averaged = (
        Play(build(name, backbone, **settings), batch, rounds=3)
        for name in ("fedspray2-shared", "fedspray2", "fedprox", "fedavg")
    )
    assert same(shared.server.shared_gnn, prox.server.gnn)
    assert same(shared.client.shared_optimizer, prox.client.gnn_optimizer)
    assert same(shared.client.gnn, plain.client.gnn)
    assert same(shared.server.encoder, plain.server.encoder)
    assert not same(shared.server.choice_losses, plain.server.choice_losses, 1e-4)  # those of other blends
    free = Play(build("fedspray2-shared", backbone, proximal_weight=0, **settings), batch, rounds=3)
    assert same(free.server.shared_gnn, averaged.server.gnn)
    bare = Play(build("fedspray2-shared", backbone, blend=0, shift=0, **settings), batch, rounds=3)
    assert torch.allclose(bare.logits(), prox.logits().log_softmax(dim=1), rtol=0, atol=1e-12)


def test_without_training_nodes_the_shared_gnn_stays() -> None:
    game = Play(build("fedspray2-shared"), one_client(np.eye(3), [[], []], [0, 1, 0], train=[], val=[0, 1]))
    start = game.server.shared_gnn
    game.round(0)
    assert same(game.server.shared_gnn, start)


def test_soft_targets_by_hand() -> None:
    """p = (1/2, 1/2) everywhere: with τ below 1/2 all five nodes take part, otherwise the training nodes alone."""
    for confidence, nodes in ((0.4, [0, 1, 2, 3, 4]), (0.5, [0, 1])):
        game = Play(build("fedspray2", confidence=confidence, distill_weight=1.0), five_nodes())
        targets = game.algorithm._soft_targets(game.message, game.batch)
        assert close(targets, [[0.5 / len(nodes) if i in nodes else 0 for i in range(5)]] * 2)


# ---- the choice -------------------------------------------------------------------------------------------


def test_a_model_without_teacher_and_shift_is_the_gnn() -> None:
    batch = stack(ragged_federation())
    own = Play(build("fedspray2", blend=0, shift=0), batch, rounds=3)
    local = Play(build("local"), batch, rounds=3)
    assert torch.allclose(own.logits().softmax(dim=1), local.logits().softmax(dim=1), rtol=0, atol=1e-12)
    teacher, other = (Play(build("fedspray2", b, blend=1, shift=0), batch, rounds=3) for b in ("gcn", "sage"))
    assert torch.equal(teacher.logits(), other.logits())


def test_shares_by_hand() -> None:
    """Ordinary clients, one with class 1 alone, one without labels."""
    batch = stack(awkward_federation())
    shares = Play(build("fedspray2"), batch).client.log_shares.exp()
    n = int(batch.num_train[2])
    assert close(shares[2], [1 / (n + 3), (n + 1) / (n + 3), 1 / (n + 3)])
    assert close(shares[3], [1 / 3] * 3)
    counts = torch.bincount(batch.train_labels[batch.train_rows.client_of == 0], minlength=3).double()
    assert torch.allclose(shares[0], (counts + 1) / (counts.sum() + 3))


def test_the_shift_moves_decisions_and_not_the_loss() -> None:
    game = Play(build("fedspray2", safety="off"), stack(ragged_federation()), rounds=2)
    message = {**game.message, "blend": torch.full((3,), 0.3), "shift": torch.full((3,), 0.5)}
    given = (game.client, message, game.batch)
    blend = game.algorithm.loss_logits(*given)
    own, taught = game.algorithm._both(*given)
    assert torch.allclose(blend, 0.7 * own + 0.3 * taught)
    shift = game.client.log_shares[game.batch.rows.client_of] / 2
    assert torch.allclose(game.algorithm.predict(*given), blend - shift)


def counted(**right: Mapping[tuple[int, int], float]) -> ServerState:
    """A server that counted 1,000 validation nodes: ``overall`` and ``minority`` right ones of some pairs."""
    counts = torch.zeros(2, len(BLENDS), len(SHIFTS))
    for row, name in enumerate(("overall", "minority")):
        for place, value in right.get(name, {}).items():
            counts[row][place] = value
    server: ServerState = Play(build("fedspray2"), stack(ragged_federation(), dtype=torch.float32)).server
    return replace(server, choice_counts=counts, num_val=torch.tensor(1000.0))


@pytest.mark.parametrize(
    ("tolerance", "overall", "minority", "chosen"),
    [
        pytest.param(0.05, {(2, 0): 900, (3, 4): 895}, {(2, 0): 10, (3, 4): 50}, (3, 4), id="just within"),
        pytest.param(0.05, {(2, 0): 900, (3, 4): 894}, {(2, 0): 10, (3, 4): 50}, (2, 0), id="just outside"),
        pytest.param(0.0, {(2, 0): 900, (3, 4): 899}, {(2, 0): 10, (3, 4): 50}, (2, 0), id="no tolerance"),
        pytest.param(0.1, {(2, 0): 900, (3, 4): 892}, {(2, 0): 10, (3, 4): 50}, (3, 4), id="more tolerance"),
        pytest.param(0.05, {(2, 3): 897, (9, 1): 900}, {(2, 3): 50, (9, 1): 50}, (9, 1), id="tie: overall"),
        pytest.param(0.05, {(2, 3): 900, (9, 1): 900}, {(2, 3): 50, (9, 1): 50}, (2, 3), id="tie: smaller w"),
        pytest.param(0.05, {(2, 3): 900, (2, 1): 900}, {(2, 3): 50, (2, 1): 50}, (2, 1), id="tie: smaller a"),
        pytest.param(0.05, {(2, 3): 899, (9, 1): 900}, {}, (9, 1), id="no minority nodes"),
    ],
)
def test_the_choice_by_hand(
    tolerance: float, overall: dict[Any, float], minority: dict[Any, float], chosen: tuple[int, int]
) -> None:
    algorithm = build("fedspray2", tolerance=tolerance)
    server = counted(overall=overall, minority=minority)
    message = algorithm.broadcast(server, (0, 1))
    assert message["blend"].tolist() == [pytest.approx(BLENDS[chosen[0]])] * 2
    assert message["shift"].tolist() == [pytest.approx(SHIFTS[chosen[1]])] * 2
    assert algorithm.diagnostics(server, {}) == {"blend": BLENDS[chosen[0]], "shift": SHIFTS[chosen[1]]}


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_the_choice_is_never_behind_the_gnn_alone(data: st.DataObject) -> None:
    """Whatever was counted: on all nodes, on minority nodes and by the loss. Without safety it may be."""
    size = len(BLENDS) * len(SHIFTS)
    counts = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=2 * size, max_size=2 * size))).float()
    losses = torch.tensor(data.draw(st.lists(st.integers(1, 9), min_size=len(BLENDS), max_size=len(BLENDS)))).float()
    shape = (2, len(BLENDS), len(SHIFTS))
    server = replace(counted(), choice_counts=counts.view(shape), choice_losses=losses, num_val=torch.tensor(9.0))
    chosen = build("fedspray2", tolerance=5.0).diagnostics(server, {})
    w, a = BLENDS.index(chosen["blend"]), SHIFTS.index(chosen["shift"])
    assert (counts.view(shape)[:, w, a] >= counts.view(shape)[:, 0, 0]).all()
    assert losses[w] <= losses[0]


def test_safety_leaves_pairs_out_that_are_behind_the_gnn() -> None:
    """(3, 4) has the best minority accuracy within the tolerance, but one thing is worse than with the GNN alone."""
    overall, minority = {(0, 0): 895, (2, 0): 900, (3, 4): 896}, {(0, 0): 10, (2, 0): 11, (3, 4): 50}
    good = counted(overall=overall, minority=minority)
    losses = torch.where(torch.arange(len(BLENDS)) == 3, 2.0, 1.0)
    for server in (
        counted(overall={**overall, (0, 0): 897}, minority=minority),
        counted(overall=overall, minority={**minority, (2, 0): 51, (0, 0): 51}),
        replace(good, choice_losses=losses),
    ):
        assert build("fedspray2").diagnostics(server, {}) == {"blend": 0.2, "shift": 0.0}
    assert build("fedspray2").diagnostics(good, {}) == {"blend": 0.3, "shift": 0.4}
    assert build("fedspray2", safety="off").diagnostics(replace(good, choice_losses=losses), {})["blend"] == 0.3


def test_the_gnn_that_is_kept_is_the_one_with_the_smallest_loss() -> None:
    """Of each client by its own validation nodes, after every round; a client without any keeps the first."""
    batch = stack(awkward_federation())
    algorithm, local = (build(name, init="glorot", lr=0.3) for name in ("fedspray2", "local"))
    seen = [Play(local, batch, rounds=rounds).client.gnn for rounds in range(8)]
    kept = Play(algorithm, batch, rounds=8).client.kept
    owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
    losses = torch.stack(
        [functional.cross_entropy(local.backbone.logits(g, batch)[batch.val], labels, reduction="none") for g in seen]
    )
    best = [int(losses[:, owners == k].sum(dim=1).argmin()) for k in range(4)]
    assert len(set(best)) > 1
    assert all(torch.equal(kept[name][k], seen[best[k]][name][k]) for name in kept for k in range(4))


def contrary_federation() -> Federation:
    """Nine clients whose features say the same of three classes, and one that calls class c by the name c + 1."""
    graphs = {}
    for k in range(10):
        draw = np.random.default_rng(k)
        labels = draw.integers(0, 3, size=60)
        features = 3 * np.eye(60)[labels] + draw.normal(size=(60, 60))
        graphs[f"c{k}"] = Graph.from_arrays(
            features, np.zeros((2, 0), dtype=int), (labels + (k == 9)) % 3, num_classes=3
        )
    return Federation.from_graphs(graphs, name="contrary").with_split(0)


def client_accuracies(algorithm: Any, batch: GraphBatch, rounds: int) -> Tensor:
    game = Play(algorithm, batch, rounds=rounds)
    right = (game.logits().argmax(dim=1) == batch.labels)[batch.test].double()
    return torch.stack([right[batch.rows.client_of[batch.test] == k].mean() for k in range(batch.num_clients)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedspray2", "fedspray2-shared"])
def test_a_client_whose_labels_contradict_all_others_is_as_good_as_alone(name: str) -> None:
    batch = stack(contrary_federation())
    values: dict[str, Any] = {"init": "glorot", "lr": 0.01}
    local = client_accuracies(build("local", **values), batch, 30)
    safe = client_accuracies(build(name, **values), batch, 30)
    unsafe = client_accuracies(build(name, safety="off", **values), batch, 30)
    assert unsafe[9] < local[9] - 0.3  # the teacher hurts it
    assert safe[9] >= local[9]
    assert torch.equal(safe[:9], unsafe[:9])  # nobody else is told
    assert safe[:9].mean() > local[:9].mean() + 0.1


def test_a_client_goes_back_if_and_only_if_it_is_clearly_behind() -> None:
    """From made-up predictions: nodes that only the blend has right and nodes that only the GNN has right."""
    batch = one_client(np.eye(40), [[], []], [0] * 20 + [1] * 20, train=range(12), val=range(12, 40))
    game = Play(build("fedspray2"), batch)

    def alone(gained: list[int], lost: list[int], safety: float = 1.0) -> bool:
        right = functional.one_hot(batch.labels, 2).double()
        nodes = torch.arange(40)
        own, blended = (
            torch.where(torch.isin(nodes, torch.tensor(wrong))[:, None], 1 - right, right) for wrong in (gained, lost)
        )
        chooser = build("fedspray2", safety=safety)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(chooser), "_shifted", lambda *_: blended)
            patch.setattr(type(chooser), "_kept_logits", lambda *_: own)
            patch.setattr(type(chooser.backbone), "logits", lambda *_: own)
            return bool(chooser.state_of_whole(game.client, game.client, game.message, batch).alone)

    majority, minority = list(range(12, 20)), list(range(20, 40))  # the labels trained on are all 0
    assert not alone([], [])
    assert not alone([], majority[:1])  # one node is one standard error
    assert alone([], majority[:2])
    assert not alone(majority[:1], majority[1:3])  # 1 behind, of 3 that differ: 1 < √3
    assert alone(majority[:1], majority[1:5])  # 3 behind, of 5 that differ: 3 > √5
    assert not alone(majority[:1], majority[1:5], safety=2.0)
    assert not alone(minority[:3], majority[:8])  # clearly behind on all, but clearly ahead on minority nodes
    assert alone(majority[:3], minority[:3])  # clearly behind on minority nodes, level on all
    assert alone([], majority[:1], safety=0.0)


def test_a_model_of_an_earlier_version_still_predicts() -> None:
    game = Play(build("fedspray2"), stack(ragged_federation()), rounds=2)
    now = replace(game.client, alone=torch.zeros(3, dtype=torch.float64))
    former = replace(game.client, alone=None, kept=None)
    predictions = [game.algorithm.predict(client, game.message, game.batch) for client in (now, former)]
    assert torch.equal(*predictions)


def test_before_anything_is_counted_both_have_half_a_say() -> None:
    game = Play(build("fedspray2"), stack(ragged_federation()))
    assert (game.message["blend"].tolist(), game.message["shift"].tolist()) == ([0.5] * 3, [0.0] * 3)


def test_counts_are_those_of_the_predictions() -> None:
    """Each pair's counts, from predictions with that pair, and how they fade."""
    batch = stack(ragged_federation())
    game = Play(build("fedspray2", safety="off"), batch, rounds=2)
    client, message, before = game.client, game.message, game.server
    game.round(2)
    uplink = game.uplinks[-1]
    owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
    minority = labels != batch.train_class_counts.argmax(dim=1)[owners]
    for i, blend in enumerate(BLENDS):
        for j, shift in enumerate(SHIFTS):
            given = {**message, "blend": torch.full((3,), blend), "shift": torch.full((3,), shift)}
            right = game.algorithm.predict(client, given, batch)[batch.val].argmax(dim=1) == labels
            losses = functional.cross_entropy(
                game.algorithm.loss_logits(client, given, batch)[batch.val], labels, reduction="none"
            )
            for k in range(3):
                assert float(uplink["choice_losses"][k, i]) == pytest.approx(float(losses[owners == k].sum()))
                expected = [int((right & (owners == k)).sum()), int((right & minority & (owners == k)).sum())]
                assert uplink["choice_counts"][k, :, i, j].tolist() == expected
    assert uplink["num_val"].tolist() == [int((owners == k).sum()) for k in range(3)]
    assert torch.equal(game.server.choice_counts, 0.5 * before.choice_counts + uplink["choice_counts"].sum(dim=0))
    assert float(game.server.num_val) == pytest.approx(len(batch.val) * (1 + 0.5 + 0.25))


def test_a_client_without_validation_nodes_follows_the_others() -> None:
    federation = ragged_federation()
    first = federation.clients[0]
    blind = replace(first, split=replace(first.split, val=np.zeros_like(first.split.val)))
    batch = GraphBatch.from_clients([blind, *federation.clients[1:]], range(3), dtype=torch.float64)
    game = Play(build("fedspray2"), batch, rounds=3)
    assert not game.uplinks[-1]["choice_counts"][0].any()
    assert game.uplinks[-1]["num_val"][0] == 0
    assert len(set(game.message["blend"].tolist())) == 1
    alone = Play(build("fedspray2"), GraphBatch.from_clients([blind], [0], dtype=torch.float64), rounds=3)
    assert (alone.message["blend"].tolist(), alone.message["shift"].tolist()) == ([0.5], [0.0])


def test_without_training_nodes_nobody_is_in_the_minority() -> None:
    game = Play(build("fedspray2"), one_client(np.eye(3), [[0], [1]], [0, 1, 1], train=[], val=[0, 1, 2]), rounds=1)
    overall, minority = game.uplinks[0]["choice_counts"][0]
    assert overall.any()
    assert not minority.any()


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_an_awkward_client_alone_stays_finite(k: int) -> None:
    """Without edges, with one class, without labels: then the teacher stays as it was."""
    game = Play(build("fedspray2", distill_weight=1.0), stack(awkward_federation(), [k]), rounds=3)
    assert finite(game.server, game.client, game.uplinks[-1], game.logits())
    start = Play(build("fedspray2"), stack(awkward_federation(), [k])).server.encoder
    assert same(game.server.encoder, start) == (k == 3)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("distill_weight", -1.0, "at least 0"),
        ("encoder_weight_decay", -0.1, "at least 0"),
        ("tolerance", -0.5, "at least 0"),
        ("encoder_lr", 0.0, "above 0"),
        ("embedding_dim", 0, "at least 1"),
        ("confidence", 1.5, "between 0 and 1"),
        ("fading", -0.1, "between 0 and 1"),
        ("encoder_dropout", 1.0, "at least 0 and below 1"),
        ("blend", 1.5, "between 0 and 1, or auto"),
        ("shift", "best", "between 0 and 1, or auto"),
        ("safety", "on", "at least 0, or off"),
        ("safety", -1.0, "at least 0, or off"),
    ],
)
def test_bad_settings_are_refused(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(InputError, match=rf"^{name} is {value!r}"):
        build("fedspray2", **{name: value})
