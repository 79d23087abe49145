"""GCFL: its limits, what it finds, when it cuts, what it records (most of it for GCFL+ too)."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithms.clusters import ALWAYS, EAGER, VARIANTS, clusters, directions, linear, outcome, step
from play import Play, Watched, build, finite, same
from toys import awkward_federation, permuted_federation, ragged_federation, stack

import fedspray
from fedspray.algorithms._cuts import cosines, similarity_gap
from fedspray.algorithms.local import ClientState as LocalState
from fedspray.data.batch import GraphBatch
from fedspray.errors import InputError
from fedspray.nn import tree
from fedspray.runs.store import read_tensors, write_tensors

# ---- identities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "never",
    [
        {"threshold": "fixed", "eps1": 0.0, "eps2": 0.0},
        {"threshold": "fixed", "eps1": 1e9, "eps2": 1e9},
        {"max_ratio": 1.0, "min_gap": 1e9},
    ],
)
def test_without_a_cut_it_is_fedavg(never: dict[str, Any], name: str) -> None:
    batch = stack(permuted_federation(num_nodes=20), dtype=torch.float32)
    ours = Watched(build(name, hidden=8, **EAGER, **never), batch, rounds=8)
    theirs = Watched(build("fedavg", hidden=8), batch, rounds=8)
    assert len(ours.server.born) == 1
    assert same({key: value[0] for key, value in ours.server.gnn.items()}, theirs.server.gnn)
    assert all(torch.equal(a, b) for a, b in zip(ours.seen, theirs.seen, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_singletons_follow_local(name: str) -> None:
    """Cut until every client is alone: from then on each does what Local would do from the same point."""
    batch = stack(ragged_federation())
    ours = Play(build(name, hidden=8, **ALWAYS, **VARIANTS[name]), batch, rounds=4)
    assert sorted(map(sorted, ours.record()["clusters"])) == [[0], [1], [2]]
    local = Play(build("local", hidden=8), batch)
    local.clients = [LocalState(tree.part_of(ours.message, "gnn"), ours.client.gnn_optimizer)]
    for index in range(4, 7):
        for each in (ours, local):
            each.round(index)
        assert torch.allclose(ours.logits(), local.logits(), rtol=0, atol=1e-10)


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
    settings = {"backbone": "gcn", **settings}
    ours = Watched(build("gcfl", hidden=16, **settings), batch, rounds=40)
    shared = Play(build("fedavg", settings["backbone"], hidden=16), batch, rounds=40)
    whole = [0, 1, 2, 3, 4, 5]
    cuts = [record["clusters"] for record in ours.records if record["clusters"] != [whole]]
    assert sorted(cuts[0]) == [[0, 1, 2], [3, 4, 5]]
    assert all(record["clusters"] == [whole] for record in ours.records[:20])
    assert not any(min(members) < 3 <= max(members) for found in cuts for members in found)
    assert ours.accuracy() > shared.accuracy() + 0.2
    for before, after in pairwise(ours.records):
        assert len(after["clusters"]) >= len(before["clusters"])
        assert sorted(k for members in after["clusters"] for k in members) == whole


def test_the_names_of_clients_do_not_matter() -> None:
    federation, order = permuted_federation(), [4, 0, 5, 2, 1, 3]
    renamed = GraphBatch.from_clients([federation.clients[k] for k in order], range(6), dtype=torch.float64)
    algorithm = build("gcfl", hidden=16, pause=2)
    plain, other = (Watched(algorithm, batch, rounds=30) for batch in (stack(federation), renamed))
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


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("settings", [{}, {"cut": "complete"}])
def test_awkward_clients_survive_cuts(name: str, settings: dict[str, Any]) -> None:
    game = Watched(build(name, hidden=8, **ALWAYS, **settings), stack(awkward_federation()), rounds=12)
    assert len(game.server.born) > 1
    assert finite(game.server, *game.seen)
    json.dumps(game.records, allow_nan=False)


# ---- records, checkpoints, settings -------------------------------------------------------------


def test_the_record_of_a_cut() -> None:
    algorithm, server = linear()
    updates = directions([1, 1, 1, -1, -1])
    # Training nodes weigh in averages, not in the test.
    record = algorithm.diagnostics(step(algorithm, server, range(5), updates, weights=[5.0, 1, 1, 1, 1]), {})
    json.dumps(record, allow_nan=False)
    assert record["clusters"] == [[0, 1, 2], [3, 4]]
    assert record["outcome"] == ["split", "new"]
    assert record["delta_mean"] == [pytest.approx(float(updates.mean(dim=0).norm())), None]
    assert record["delta_max"] == [pytest.approx(float(updates.norm(dim=1).max())), None]
    assert record["rho"] == [pytest.approx(record["delta_mean"][0] / record["delta_max"][0]), None]
    part = torch.tensor([True, True, True, False, False])
    assert record["gap"] == [pytest.approx(similarity_gap(cosines(updates), part)), None]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_server_with_clusters_survives_a_checkpoint(name: str, tmp_path: Path) -> None:
    batch = stack(ragged_federation())
    game = Play(build(name, hidden=8, **ALWAYS, **VARIANTS[name]), batch, rounds=2)
    assert len(game.server.born) > 1
    write_tensors(tmp_path / "server.safetensors", tree.flatten(game.server), {})
    stored, _ = read_tensors(tmp_path / "server.safetensors")
    again = Play(game.algorithm, batch)
    again.server, again.clients = tree.restore(again.server, stored), list(game.clients)
    for each in (game, again):
        each.round(9)
    assert same(game.server, again.server)


@pytest.mark.parametrize("name", ["gcfl", "gcfl-plus"])
def test_the_published_preset(name: str) -> None:
    algorithm = build(name, preset="published", warmup=2, lr=0.003, local_epochs=5)
    assert (algorithm.threshold, algorithm.eps1, algorithm.eps2, algorithm.pause) == ("fixed", 0.05, 0.1, 0)
    game = Watched(algorithm, stack(permuted_federation(num_nodes=40)), rounds=8)
    assert {record["outcome"][0] for record in game.records} >= {"warm-up", "agree"}


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("gcfl", "threshold", "paper"),
        ("gcfl", "cut", "minimum"),
        *(("gcfl", name, -1) for name in ("max_ratio", "eps1", "eps2", "warmup", "pause", "min_members")),
        ("gcfl-plus", "cut", "relu"),
        ("gcfl-plus", "sequence", "loss"),
        ("gcfl-plus", "sequence_length", 0),
    ],
)
def test_wrong_settings_are_refused(name: str, setting: str, value: Any) -> None:
    with pytest.raises(InputError, match=setting):
        build(name, **{setting: value})


def test_the_page_shows_how_to_count_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms" / "gcfl.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    fedspray.run(
        permuted_federation(num_nodes=40), algorithm="gcfl", rounds=4, out=tmp_path / "runs" / "mine", **ALWAYS
    )
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("from round 1: 2 clusters of [")
    assert len(lines) > 1
