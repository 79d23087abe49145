"""FedAvg (McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017).

θ ← Σ_k (n_k / Σ n) θ_k, with n_k the client's training nodes and θ_k the result of E steps from θ on L_k.

Travels down: the GNN. Travels up: the GNN after E steps, and n_k.
Adam's moments stay at the client and are kept across rounds (`reset_optimizer` resets them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedspray.algorithms._averaging import ClientState, ServerState
from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn.tree import Message, expand, part_of, prefixed
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[ServerState, ClientState]):
    """Federated averaging of the whole GNN."""

    summary: ClassVar[str] = "one global GNN, averaged by training nodes"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}

    def init_server(self, task: Task, seed: int) -> ServerState:
        """The same weights as Local's common start."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The global model for everyone."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the clients' models, weighted by training nodes; unchanged if there are none."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer."""
        return ClientState(self.empty_optimizer(self.backbone.init_params(task, batch, seed), batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the received model."""
        gnn, optimizer = self.fit(part_of(message, "gnn"), client.gnn_optimizer, batch, seed)
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The received model."""
        return self.backbone.logits(part_of(message, "gnn"), batch)
