"""Rounds by hand: algorithms without an engine, so that a test sees every state and message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import skewed_federation, stack

from fedspray.algorithms.base import Outputs
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs.settings import RunSettings


def build(name: str, backbone: str = "gcn", *, preset: str | None = None, **values: Any) -> Any:
    """An algorithm by name, with any settings of its own and of its backbone."""
    return RunSettings(algorithm=name, backbone=backbone, preset=preset, values=values).build()[0]


def last_loss(algorithm: Any, client: Any, message: Message, batch: GraphBatch) -> Callable[[Outputs], Tensor]:
    """The loss of the last model that a round trains, as a function, so that a test can ask for single values."""
    losses: list[Callable[[Outputs], Tensor]] = []

    def listen(params: Any, optimizer: Any, batch: Any, seed: int, loss: Callable[[Outputs], Tensor]) -> Any:
        losses.append(loss)
        return params, optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(algorithm), "fit", lambda self, *given: listen(*given))
        algorithm.client_update(client, message, batch, 0)
    return losses[-1]


class Play:
    """The server, and some batches that together hold all clients."""

    def __init__(self, algorithm: Any, *batches: GraphBatch, rounds: int = 0) -> None:
        task = Task(batches[0].num_features, batches[0].num_classes)
        self.algorithm, self.batches = algorithm, batches
        self.ids = sorted(k for batch in batches for k in batch.client_ids)
        self.server = tree.cast(algorithm.init_server(task, 0), batches[0].dtype)
        self.clients = [algorithm.init_clients(task, batch, 0) for batch in batches]
        self.uplinks: list[Message] = []
        for index in range(rounds):
            self.round(index)

    @property
    def batch(self) -> GraphBatch:
        """The only batch."""
        (batch,) = self.batches
        return batch

    @property
    def client(self) -> Any:
        """The state of the only batch."""
        (client,) = self.clients
        return client

    @property
    def message(self) -> Message:
        """What the server would send to everybody now."""
        message: Message = self.algorithm.broadcast(self.server, self.ids)
        return message

    def round(self, index: int, ids: Sequence[int] | None = None) -> None:
        """One round of the batches whose clients are all among ``ids``, or of everybody; ``index`` is its seed."""
        taking_part = [p for p, b in enumerate(self.batches) if ids is None or set(b.client_ids) <= set(ids)]
        arrived = [k for p in taking_part for k in self.batches[p].client_ids]
        downlink = self.algorithm.broadcast(self.server, sorted(arrived))
        uplinks = []
        for position in taking_part:
            batch = self.batches[position]
            message = _rows(downlink, sorted(arrived), batch.client_ids)
            self.clients[position], uplink = self.algorithm.client_update(self.clients[position], message, batch, index)
            uplinks.append(uplink)
        joined = {name: torch.cat([uplink[name] for uplink in uplinks]) for name in uplinks[0]}
        self.uplinks.append(_rows(joined, arrived, sorted(arrived)))
        self.server = self.algorithm.server_update(self.server, self.uplinks[-1], sorted(arrived))

    def predict(self) -> dict[int, Tensor]:
        """Logits of each client, [N_k, C]."""
        found: dict[int, Tensor] = {}
        for client, batch in zip(self.clients, self.batches, strict=True):
            logits = self.algorithm.predict(client, _rows(self.message, self.ids, batch.client_ids), batch)
            found |= dict(zip(batch.client_ids, torch.split(logits, list(batch.rows.sizes)), strict=True))
        return found

    def logits(self) -> Tensor:
        """Logits of all clients in the order of their ids, [N, C]."""
        return torch.cat([logits for _, logits in sorted(self.predict().items())])

    def record(self) -> dict[str, Any]:
        """What the algorithm writes into the record of the last round."""
        record: dict[str, Any] = self.algorithm.diagnostics(self.server, self.uplinks[-1])
        return record

    def accuracy(self) -> float:
        """Share of the test nodes of the only batch that are right."""
        right = self.logits().argmax(dim=1) == self.batch.labels
        return right[self.batch.test].double().mean().item()


class Watched(Play):
    """A play that keeps every round's record and predictions."""

    def __init__(self, algorithm: Any, *batches: GraphBatch, rounds: int = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self.seen: list[Tensor] = []
        super().__init__(algorithm, *batches, rounds=rounds)

    def round(self, index: int, ids: Sequence[int] | None = None) -> None:
        """As always, and then a look."""
        super().round(index, ids)
        self.records.append(self.record())
        self.seen.append(self.logits())


def play(name: str, federation: Federation, backbone: str = "gcn", *, rounds: int = 3, **values: Any) -> Play:
    """A small network with dropout on all clients at once, in double precision."""
    algorithm = build(name, backbone, **{"hidden": 8, "dropout": 0.2, **values})
    return Play(algorithm, stack(federation), rounds=rounds)


def trained_accuracy(name: str, federation: Federation, **values: Any) -> float:
    """Test accuracy of a small GCN that learns fast, after 40 rounds."""
    return play(name, federation, rounds=40, dropout=0.0, init="glorot", lr=0.01, **values).accuracy()


def skewed_accuracy(name: str, **values: Any) -> float:
    """Mean test accuracy on four federations of clients with a class of their own each.

    Local steps with an optimizer that begins anew in each round take every client towards its own class.
    """
    settings = {"hidden": 16, "init": "glorot", "reset_optimizer": True, **values}
    games = [Play(build(name, **settings), stack(skewed_federation(seed)), rounds=80) for seed in range(4)]
    return sum(game.accuracy() for game in games) / len(games)


def same(a: Any, b: Any, tolerance: float = 0.0) -> bool:
    """Whether two states or messages hold the same tensors, up to ``tolerance``."""
    flat_a, flat_b = tree.flatten(a), tree.flatten(b)
    return flat_a.keys() == flat_b.keys() and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance)
        for a, b in ((flat_a[name], flat_b[name]) for name in flat_a)
    )


def finite(*states: Any) -> bool:
    """Whether every number of these states and messages is finite."""
    return all(torch.isfinite(value).all() for state in states for value in tree.flatten(state).values())


def _rows(message: Message, order: Sequence[int], wanted: Sequence[int]) -> Message:
    """The rows of some clients, from a message whose rows are in ``order``."""
    places = [list(order).index(k) for k in wanted]
    return {name: value[places] for name, value in message.items()}
