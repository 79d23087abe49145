"""Algorithms whose server has a model for every client: what they have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from play import Play, build, same
from toys import awkward_federation, ragged_federation, stack, two_groups

import fedspray
from fedspray.algorithms._personal import grow, mixed_models, own_models
from fedspray.federate import build_federation
from fedspray.nn.tree import part_of

ALIKE: dict[str, dict[str, Any]] = {
    "fedgta": {"similarity_threshold": -1.0, "weighting": "uniform"},
    "fed-pub": {"sharpness": 0.0},
}
"""Settings with which everybody is similar to everybody."""
ALONE: dict[str, dict[str, Any]] = {"fedgta": {"similarity_threshold": 1.0}, "fed-pub": {"sharpness": 1e30}}
"""Settings with which nobody is similar to anybody else."""
BY_GROUP: dict[str, dict[str, Any]] = {"fedgta": {}, "fed-pub": {"sharpness": 30.0}}
"""Settings that tell `two_groups` apart."""

each_algorithm = pytest.mark.parametrize("name", ALIKE)


# ---- rows ---------------------------------------------------------------------------------------


def test_rows_grow_to_the_highest_id_and_never_shrink() -> None:
    rows, fresh = torch.tensor([[1.0, 2.0]]), torch.tensor([8.0, 9.0])
    assert grow(rows, [2, 0], fresh).tolist() == [[1, 2], [8, 9], [8, 9]]
    assert grow(rows, [0], fresh) is rows
    assert grow(rows, [], fresh) is rows
    assert grow(torch.zeros(0), [1], torch.tensor(5.0)).tolist() == [5, 5]


def test_models_of_those_who_took_part_are_mixed_and_others_stay() -> None:
    """Client 2 gets ¼ of what 0 sent and ¾ of its own; client 1 is not known yet, and 0 keeps what it has sent."""
    start, models = {"w": torch.tensor([7.0])}, {"w": torch.tensor([[1.0]])}
    shares = torch.tensor([[0.75, 0.25], [0.0, 1.0]])
    gnn = mixed_models(models, start, {"w": torch.tensor([[8.0], [4.0]])}, shares, [2, 0])
    assert gnn["w"].tolist() == [[4.0], [7.0], [7.0]]
    assert own_models(models, start, [1, 0])["w"].tolist() == [[7.0], [1.0]]


# ---- the two ends -------------------------------------------------------------------------------


@each_algorithm
@pytest.mark.parametrize("backbone", ["gcn", "sage"])
def test_only_oneself_is_local_bit_for_bit(name: str, backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True), dtype=torch.float32)
    alone = Play(build(name, backbone, **ALONE[name]), batch, rounds=3)
    local = Play(build("local", backbone), batch, rounds=3)
    assert same(alone.server.gnn, local.client.gnn)


@each_algorithm
@pytest.mark.parametrize("embedding", ["logits", "hidden"])
def test_only_oneself_is_local_where_models_hardly_differ(name: str, embedding: str) -> None:
    """Cosines of some of these models are 1 when rounded."""
    batch = stack(build_federation("banks", nodes=800), dtype=torch.float32)
    settings = {**ALONE[name], **({"embedding": embedding} if name == "fed-pub" else {})}
    alone = Play(build(name, **settings), batch, rounds=3)
    local = Play(build("local"), batch, rounds=3)
    assert same(alone.server.gnn, local.client.gnn)


@each_algorithm
def test_everybody_alike_is_the_plain_mean(name: str) -> None:
    game = Play(build(name, **ALIKE[name]), stack(ragged_federation()), rounds=3)
    for key, sent in part_of(game.uplinks[-1], "gnn").items():
        assert torch.allclose(game.server.gnn[key], sent.mean(dim=0).expand_as(sent), rtol=0, atol=1e-12)


# ---- who takes part -----------------------------------------------------------------------------


@each_algorithm
def test_who_did_not_take_part_keeps_what_it_had(name: str) -> None:
    federation = ragged_federation()
    game = Play(build(name, **ALIKE[name]), stack(federation, [0, 2]), stack(federation, [1]))
    game.round(0, [0, 2])
    first, start = game.server, game.server.start
    sent = part_of(game.algorithm.broadcast(first, (2, 1, 7)), "gnn")  # 1 and 7 were never seen
    for key, initial in start.items():
        assert torch.equal(sent[key][1], initial)
        assert torch.equal(sent[key][2], initial)
        assert torch.equal(sent[key][0], first.gnn[key][2])
        assert not torch.equal(first.gnn[key][2], initial)
    game.round(1, [1])
    for key, value in game.server.gnn.items():
        assert len(value) == 3
        assert torch.equal(value[[0, 2]], first.gnn[key][[0, 2]])
        assert torch.equal(value[1], game.uplinks[-1][f"gnn.{key}"][0])  # alone in its round


@each_algorithm
def test_a_client_without_labels_learns_from_others_and_counts_for_nobody(name: str) -> None:
    game = Play(build(name, **ALIKE[name]), stack(awkward_federation()), rounds=3)
    shares = torch.tensor(game.record()["shares"])
    assert not shares[:, 3].any()
    assert shares[3, :3].gt(0).all()
    assert shares[3].sum().item() == pytest.approx(1, abs=1e-3)
    alone = {key: value[3:] for key, value in game.uplinks[-1].items()}
    kept = game.algorithm.server_update(game.server, alone, (3,))
    assert all(torch.equal(value[3], alone[f"gnn.{key}"][0]) for key, value in kept.gnn.items())
    assert game.algorithm.diagnostics(kept, alone)["shares"] == [[1]]


@each_algorithm
def test_records_are_about_those_who_trained(name: str) -> None:
    records: list[dict[str, Any]] = []
    fedspray.run(
        ragged_federation(),
        algorithm=name,
        rounds=4,
        participation=0.67,
        on_record=lambda _, record: records.append(record),
    )
    assert len(records) == 4
    for record in records:
        assert len(record["diagnostics"]["shares"]) == len(record["trained"]) == 2
        assert json.loads(json.dumps(record["diagnostics"])) == record["diagnostics"]


# ---- what it is for -----------------------------------------------------------------------------


@pytest.mark.slow
@each_algorithm
def test_two_groups_gain_over_local_and_fedavg(name: str) -> None:
    batch = two_groups()
    small: dict[str, Any] = {"hidden": 16, "lr": 0.01}
    game = Play(build(name, **small, **BY_GROUP[name]), batch, rounds=40)
    others = {rival: Play(build(rival, **small), batch, rounds=40).accuracy() for rival in ("local", "fedavg")}
    shares, group = torch.tensor(game.record()["shares"]), torch.arange(6) // 3
    assert torch.equal(shares > 0.1, group[:, None] == group)
    assert game.accuracy() > others["local"] + 0.04
    assert game.accuracy() > others["fedavg"] + 0.3
