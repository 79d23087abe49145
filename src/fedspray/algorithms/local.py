"""Local: every client trains alone; nothing travels. The yardstick for every federation.

All clients start from the same weights, unless `gnn_start` says otherwise, and are evaluated and selected
by the same rule as every other algorithm (no per-client best round, which would favour Local).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import Declared
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, training_only


@dataclass(frozen=True)
class ServerState:
    """The server has no state."""


@dataclass(frozen=True)
class ClientState:
    """A client's own model."""

    gnn: Params
    gnn_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm[ServerState, ClientState]):
    """Local training only."""

    summary: ClassVar[str] = "every client trains alone"
    citation: ClassVar[str] = "the usual yardstick"
    uplink: ClassVar[Declared] = {}
    downlink: ClassVar[dict[str, str]] = {}
    shares_gnn: ClassVar[bool] = False

    gnn_start: str = setting(
        "common", "initial GNN weights: common to all clients, or own (drawn per client)", choices=("common", "own")
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """Nothing."""
        return ServerState()

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Initial weights and an empty optimizer."""
        gnn = self.backbone.init_params(task, batch, seed, common=self.gnn_start == "common")
        return ClientState(gnn, self.empty_optimizer(gnn, batch))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Nothing."""
        return {}

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps on the client's own labels."""
        return ClientState(*self.fit(client.gnn, client.gnn_optimizer, batch, seed)), {}

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """Nothing."""
        return server

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's own model."""
        return self.backbone.logits(client.gnn, batch)
