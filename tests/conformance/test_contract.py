"""What every algorithm promises, with every backbone, on three ragged clients."""

from __future__ import annotations

import copy
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
import torch
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.nn import tree
from fedspray.nn.tree import Message

ROUNDS = 3
EVERY_PAIR = [
    pytest.param(name, backbone, id=f"{name}-{backbone}")
    for name in algorithms.names()
    for backbone in backbones.names()
]
each_pair = partial(pytest.mark.parametrize, ("name", "backbone"), EVERY_PAIR)


def build(name: str, backbone: str) -> Algorithm[Any, Any]:
    return algorithms.find(name)(backbone=backbones.make(backbone, hidden=8, dropout=0.2))


class Play:
    """A few rounds by hand: the server and some batches that together hold all clients."""

    def __init__(self, algorithm: Algorithm[Any, Any], federation: Federation, batches: list[GraphBatch]) -> None:
        self.algorithm, self.batches = algorithm, batches
        self.ids = [k for batch in batches for k in batch.client_ids]
        self.server = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
        self.clients = [algorithm.init_clients(federation.task, batch, 0) for batch in batches]
        self.uplinks: list[Message] = []
        self.logits: list[torch.Tensor] = []

    def round(self, index: int) -> None:
        downlink = self.algorithm.broadcast(self.server, sorted(self.ids))
        uplinks = []
        for position, batch in enumerate(self.batches):
            message = {name: value[list(batch.client_ids)] for name, value in downlink.items()}
            self.clients[position], uplink = self.algorithm.client_update(self.clients[position], message, batch, index)
            uplinks.append(uplink)
        order = torch.tensor(self.ids).argsort()
        joined = {name: torch.cat([uplink[name] for uplink in uplinks])[order] for name in uplinks[0]}
        self.server = self.algorithm.server_update(self.server, joined, sorted(self.ids))
        self.uplinks.append(joined)

    def predict(self) -> dict[int, torch.Tensor]:
        downlink = self.algorithm.broadcast(self.server, sorted(self.ids))
        found: dict[int, torch.Tensor] = {}
        for client, batch in zip(self.clients, self.batches, strict=True):
            message = {name: value[list(batch.client_ids)] for name, value in downlink.items()}
            logits = self.algorithm.predict(client, message, batch)
            found |= dict(zip(batch.client_ids, torch.split(logits, list(batch.rows.sizes)), strict=True))
        return found


def play(name: str, backbone: str, federation: Federation, blocks: list[list[int]], rounds: int = ROUNDS) -> Play:
    game = Play(build(name, backbone), federation, [stack(federation, block) for block in blocks])
    for index in range(rounds):
        game.round(index)
    return game


def same(a: Any, b: Any, tolerance: float) -> bool:
    flat_a, flat_b = tree.flatten(a), tree.flatten(b)
    return flat_a.keys() == flat_b.keys() and all(
        torch.allclose(flat_a[name].double(), flat_b[name].double(), rtol=0, atol=tolerance) for name in flat_a
    )


@each_pair()
def test_stacked_clients_equal_single_ones_in_any_order(name: str, backbone: str) -> None:
    federation = ragged_federation(sparse=True)
    together = play(name, backbone, federation, [[0, 1, 2]])
    for blocks in ([[0], [1], [2]], [[2, 0], [1]]):
        apart = play(name, backbone, federation, blocks)
        assert same(together.server, apart.server, 1e-10)
        for a, b in zip(together.uplinks, apart.uplinks, strict=True):
            assert same(a, b, 1e-10)
        one, other = together.predict(), apart.predict()
        assert all(torch.allclose(one[k], other[k], rtol=0, atol=1e-10) for k in one)


@each_pair()
def test_the_same_seed_gives_the_same_bits(name: str, backbone: str) -> None:
    first = play(name, backbone, ragged_federation(), [[0, 1, 2]])
    second = play(name, backbone, ragged_federation(), [[0, 1, 2]])
    assert same(first.server, second.server, 0)
    assert same(first.clients[0], second.clients[0], 0)


@each_pair()
def test_nothing_that_is_passed_in_is_changed(name: str, backbone: str) -> None:
    federation = ragged_federation()
    algorithm, batch = build(name, backbone), stack(federation)
    server = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
    client = algorithm.init_clients(federation.task, batch, 0)
    message = algorithm.broadcast(server, (0, 1, 2))
    before = copy.deepcopy((server, client, message))
    _, uplink = algorithm.client_update(client, message, batch, 0)
    uplink_before = copy.deepcopy(uplink)
    algorithm.server_update(server, uplink, (0, 1, 2))
    algorithm.predict(client, message, batch)
    assert same(server, before[0], 0)
    assert same(client, before[1], 0)
    assert same(message, before[2], 0)
    assert same(uplink, uplink_before, 0)


@each_pair()
def test_one_clients_data_never_reach_anothers_uplink(name: str, backbone: str) -> None:
    """In the first round, before anything was averaged, only the client whose data changed sends something else."""
    plain = play(name, backbone, ragged_federation(), [[0, 1, 2]], rounds=1).uplinks[0]
    changed = play(name, backbone, ragged_federation(changed=1), [[0, 1, 2]], rounds=1).uplinks[0]
    for key, value in plain.items():
        assert torch.equal(value[[0, 2]], changed[key][[0, 2]])


@each_pair()
def test_messages_hold_what_is_documented(name: str, backbone: str) -> None:
    game = play(name, backbone, ragged_federation(), [[0, 1, 2]], rounds=1)
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
def test_state_survives_being_written_and_read(name: str, backbone: str) -> None:
    federation = ragged_federation()
    game = play(name, backbone, federation, [[0, 1, 2]])
    fresh = Play(game.algorithm, federation, game.batches)
    fresh.server = tree.restore(fresh.server, tree.flatten(game.server))
    fresh.clients = [tree.restore(fresh.clients[0], tree.flatten(game.clients[0]))]
    for each in (game, fresh):
        each.round(ROUNDS)
    assert same(game.server, fresh.server, 0)
    assert same(game.clients[0], fresh.clients[0], 0)


@each_pair()
def test_prediction_needs_only_the_snapshot(name: str, backbone: str) -> None:
    game = play(name, backbone, ragged_federation(), [[0, 1, 2]])
    whole = game.predict()
    game.clients = [tree.for_prediction(client) for client in game.clients]
    assert all(torch.equal(whole[k], logits) for k, logits in game.predict().items())


@each_pair()
def test_awkward_clients_stay_finite(name: str, backbone: str) -> None:
    """A client without edges, one with a single class, one without labels."""
    game = play(name, backbone, awkward_federation(), [[0, 1, 2, 3]])
    for part in (game.server, game.clients[0], game.uplinks[-1]):
        assert all(torch.isfinite(value).all() for value in tree.flatten(part).values())
    assert all(torch.isfinite(logits).all() for logits in game.predict().values())


@pytest.mark.parametrize("name", algorithms.names())
def test_everything_is_described(name: str) -> None:
    found = algorithms.find(name)
    assert found.summary
    assert found.citation
    for f in fields(found):
        assert f.metadata.get("description"), f"{name}: {f.name} has no description"
