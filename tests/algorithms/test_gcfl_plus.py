"""GCFL+: sequences of norms and their distances. What it shares with GCFL is tested there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from algorithms.clusters import ALWAYS, clusters, directions, linear, outcome, step
from play import build
from toys import ragged_federation, stack

from fedspray.algorithms._clusters import ServerState
from fedspray.algorithms.base import supervised_loss
from fedspray.algorithms.gcfl_plus import dtw_distances
from fedspray.data.federation import Task
from fedspray.nn import tree
from fedspray.seeds import generator


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
    algorithm, server = linear("gcfl-plus", cut=cut, standardise=standardise)
    server = feed(algorithm, server, [True, False, True, False], [1, 1, -1, -1])
    assert clusters(algorithm, server) == [[0, 2], [1, 3]]


def test_sequences_must_be_full_and_are_cleared_by_a_cut() -> None:
    """Two clusters that both should be cut: the first cut clears all sequences, so the second has to wait."""
    algorithm, server = linear("gcfl-plus")
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
    algorithm, server = linear("gcfl-plus", min_gap=-2.0, standardise=standardise)
    for _ in range(6):
        server = step(algorithm, server, range(4), directions([1, 1, -1, -1]), norms=[0.7] * 4)
    assert outcome(server) == "unknown"


def test_sequences_that_are_equally_far_apart_are_not_cut() -> None:
    """0 0 0, 0 0 1 and 0 1 0: every two have distance 1, so any cut would be arbitrary."""
    algorithm, server = linear("gcfl-plus", **ALWAYS, sequence_length=3)
    for norms in ([0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]):
        server = step(algorithm, server, range(3), directions([1, 1, -1]), norms=norms)
    assert dtw_distances(server.norms).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert outcome(server) == "unknown"


def test_only_the_last_norms_are_kept() -> None:
    algorithm, server = linear("gcfl-plus", sequence_length=3, warmup=99)
    for index in range(5):
        ids = [0, 1] if index % 2 == 0 else [1]
        server = step(algorithm, server, ids, directions([1] * len(ids)), norms=[float(index)] * len(ids))
    assert server.norms.tolist() == [[0, 2, 4], [2, 3, 4]]
    assert server.norm_counts.tolist() == [3, 3]


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
def test_the_norm_is_that_of_the_last_steps_gradient(backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True))
    task = Task(batch.num_features, batch.num_classes)
    algorithm = build("gcfl-plus", backbone, hidden=8, weight_decay=0.1, local_epochs=3)
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
    algorithm = build("gcfl-plus", hidden=8, sequence="update")
    client = algorithm.init_clients(Task(5, 3), batch, 0)
    message = tree.prefixed("gnn", algorithm.backbone.init_params(Task(5, 3), batch, 0))
    _, sent = algorithm.client_update(client, message, batch, 0)
    expected = torch.cat([(sent[name] - message[name]).flatten(1) for name in message], dim=1).norm(dim=1)
    assert torch.allclose(sent["norm"], expected, rtol=0, atol=1e-12)
