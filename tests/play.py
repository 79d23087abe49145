"""Rounds by hand: algorithms without an engine, so that a test sees every state and message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor
from toys import skewed_federation, stack

from fedspray.algorithms.base import Outputs
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.experiment import RunSettings
from fedspray.messages import combine
from fedspray.nn.tree import Message
from fedspray.runs.settings import resolve
from fedspray.testing import Play as Play
from fedspray.testing import finite as finite
from fedspray.testing import same as same


def build(name: str, backbone: str = "gcn", *, preset: str | None = None, **values: Any) -> Any:
    """An algorithm by name, with any settings of its own and of its backbone."""
    return resolve(RunSettings(algorithm=name, backbone=backbone, preset=preset, values=values)).algorithm


def take_in(algorithm: Any, server: Any, uplink: Message, client_ids: Sequence[int]) -> Any:
    """The server after a round in which these clients sent this."""
    return algorithm.server_update(server, combine(algorithm.uplink, uplink), client_ids)


def last_loss(algorithm: Any, client: Any, message: Message, batch: GraphBatch) -> Callable[[Outputs], Tensor]:
    """The loss of the last model that a round trains, as a function, so that a test can ask for single values."""
    losses: list[Callable[[Outputs], Tensor]] = []

    def listen(params: Any, optimizer: Any, batch: Any, seed: int, loss: Any = None) -> Any:
        losses.append(loss)
        return params, optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(algorithm), "fit", lambda self, *given: listen(*given))
        algorithm.client_update(client, message, batch, 0)
    return losses[-1]


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
