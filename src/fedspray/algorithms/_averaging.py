"""FedAvg in two halves, for the algorithms that change only one of them.

`AveragingServer` holds one global GNN, θ ← Σ_k (n_k / Σ n) θ_k with n_k the client's training nodes.
`ReceivingClients` take E steps from the GNN that they were sent, send it back, and predict with what they get next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedspray.algorithms.base import Algorithm, ClientT, ServerT, supervised_loss
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator


@dataclass(frozen=True)
class ServerState:
    """The global model, without a client axis."""

    gnn: Params


@dataclass(frozen=True)
class ClientState:
    """A client keeps its optimizer only."""

    gnn_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class AveragingServer(Algorithm[ServerState, ClientT]):
    """The server's half."""

    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}

    def init_server(self, task: Task, seed: int) -> ServerState:
        """The same draw that Local's common start uses."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The global model for everyone."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the clients' models, weighted by training nodes."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server


@dataclass(frozen=True, kw_only=True)
class ReceivingClients(Algorithm[ServerT, ClientState]):
    """The clients' half."""

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState(self.empty_optimizer(gnn, batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the model that was received."""
        gnn, optimizer = self.fit(
            part_of(message, "gnn"),
            client.gnn_optimizer,
            batch,
            seed,
            lambda out: supervised_loss(out.logits, batch),
        )
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The model that was received."""
        return self.backbone.logits(part_of(message, "gnn"), batch)
