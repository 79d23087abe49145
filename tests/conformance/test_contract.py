"""What every algorithm promises, with every backbone, on three ragged clients."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import pytest
import torch
from play import Play, build, finite, same
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.data.federation import Federation
from fedspray.nn import tree

ROUNDS = 3
EVERY_PAIR = [
    pytest.param(name, backbone, id=f"{name}-{backbone}")
    for name in algorithms.names()
    for backbone in backbones.names()
]
each_pair = partial(pytest.mark.parametrize, ("name", "backbone"), EVERY_PAIR)


def played(name: str, backbone: str, federation: Federation, *blocks: list[int], rounds: int = ROUNDS) -> Play:
    algorithm = build(name, backbone, hidden=8, dropout=0.2)
    return Play(algorithm, *(stack(federation, block) for block in blocks), rounds=rounds)


@each_pair()
def test_stacked_clients_equal_single_ones_in_any_order(name: str, backbone: str) -> None:
    federation = ragged_federation(sparse=True)
    together = played(name, backbone, federation, [0, 1, 2])
    for blocks in ([[0], [1], [2]], [[2, 0], [1]]):
        apart = played(name, backbone, federation, *blocks)
        assert same(together.server, apart.server, 1e-10)
        for a, b in zip(together.uplinks, apart.uplinks, strict=True):
            assert same(a, b, 1e-10)
        assert torch.allclose(together.logits(), apart.logits(), rtol=0, atol=1e-10)


@each_pair()
def test_the_same_seed_gives_the_same_bits(name: str, backbone: str) -> None:
    first = played(name, backbone, ragged_federation(), [0, 1, 2])
    second = played(name, backbone, ragged_federation(), [0, 1, 2])
    assert same(first.server, second.server)
    assert same(first.clients[0], second.clients[0])


@each_pair()
def test_nothing_that_is_passed_in_is_changed(name: str, backbone: str) -> None:
    federation = ragged_federation()
    algorithm, batch = build(name, backbone, hidden=8, dropout=0.2), stack(federation)
    server = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
    client = algorithm.init_clients(federation.task, batch, 0)
    message = algorithm.broadcast(server, (0, 1, 2))
    before = copy.deepcopy((server, client, message))
    _, uplink = algorithm.client_update(client, message, batch, 0)
    uplink_before = copy.deepcopy(uplink)
    algorithm.server_update(server, uplink, (0, 1, 2))
    algorithm.predict(client, message, batch)
    assert same(server, before[0])
    assert same(client, before[1])
    assert same(message, before[2])
    assert same(uplink, uplink_before)


@each_pair()
def test_one_clients_data_never_reach_anothers_uplink(name: str, backbone: str) -> None:
    """In the first round, before anything was averaged, only the client whose data changed sends something else."""
    plain = played(name, backbone, ragged_federation(), [0, 1, 2], rounds=1).uplinks[0]
    changed = played(name, backbone, ragged_federation(changed=1), [0, 1, 2], rounds=1).uplinks[0]
    for key, value in plain.items():
        assert torch.equal(value[[0, 2]], changed[key][[0, 2]])


@each_pair()
def test_messages_hold_what_is_documented(name: str, backbone: str) -> None:
    game = played(name, backbone, ragged_federation(), [0, 1, 2], rounds=1)
    downlink = game.algorithm.broadcast(game.server, (0, 1, 2))
    for message, documented in ((game.uplinks[0], game.algorithm.uplink), (downlink, game.algorithm.downlink)):
        exact = {key for key in documented if not key.endswith(".*")}
        prefixes = tuple(key.removesuffix("*") for key in documented if key.endswith(".*"))
        assert all(key in exact or key.startswith(prefixes or ("\0",)) for key in message)
        optional = {key for key in exact if documented[key].startswith("only with")}
        assert exact - optional <= set(message)
        assert all(any(key.startswith(prefix) for key in message) for prefix in prefixes)
        assert all(len(value) == 3 for value in message.values())


@each_pair()
def test_prediction_needs_only_the_snapshot(name: str, backbone: str) -> None:
    game = played(name, backbone, ragged_federation(), [0, 1, 2])
    whole = game.predict()
    game.clients = [tree.for_prediction(client) for client in game.clients]
    assert all(torch.equal(whole[k], logits) for k, logits in game.predict().items())


@each_pair()
def test_awkward_clients_stay_finite(name: str, backbone: str) -> None:
    """A client without edges, one with a single class, one without labels."""
    game = played(name, backbone, awkward_federation(), [0, 1, 2, 3])
    assert finite(game.server, *game.clients, game.uplinks[-1], game.logits())
    json.dumps(game.record(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in algorithms.names() for preset in algorithms.find(name).presets]
)
@pytest.mark.parametrize("federation", [ragged_federation, awkward_federation])
def test_every_preset_runs(name: str, preset: str, federation: Callable[[], Federation]) -> None:
    """And changes something: its settings are not all defaults."""
    algorithm, batch = build(name, preset=preset), stack(federation())
    assert algorithm != build(name)
    game = Play(algorithm, batch, rounds=2)
    assert finite(game.server, game.client, game.uplinks[-1], game.logits())


@pytest.mark.parametrize("name", algorithms.names())
def test_everything_is_described(name: str) -> None:
    found = algorithms.find(name)
    assert found.summary
    assert found.citation
    for f in fields(found):
        assert f.metadata.get("description"), f"{name}: {f.name} has no description"
