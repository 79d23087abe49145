"""MOON (Li, He and Song, "Model-contrastive federated learning", CVPR 2021).

FedAvg with a contrastive term. For a node, z is its representation while the client trains, z_g that of the
global model as received, and z_p that of the client's model after its last round:

    ℓ_con = -log( e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ}) )
    client:  L_k + μ · mean ℓ_con

Travels down and up: as for FedAvg. The last local model stays at the client. A representation is the input of
the output layer; SGC has no hidden layer, so there it is the logits. Before a client has trained, z_p is that of the
initial model: in the run's first round z_p = z_g, and the term has no gradient. μ = 0 is FedAvg, bit for bit.
docs/algorithms/moon.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from fedspray.algorithms._averaging import ServerState
from fedspray.algorithms.base import Algorithm, Outputs, supervised_loss
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn import ops
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class ClientState:
    """Adam's moments, and the model that the client sent last."""

    gnn_optimizer: AdamState = training_only()
    previous: Params = training_only()


@dataclass(frozen=True, kw_only=True)
class MOON(Algorithm[ServerState, ClientState]):
    """Federated averaging; representations are pulled towards the global model's and away from the last local one's."""

    summary: ClassVar[str] = "FedAvg; clients keep their representations near the global GNN's by contrast"
    citation: ClassVar[str] = "Li, He and Song, CVPR 2021"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"weight_decay": 1e-5}}

    contrast_weight: float = setting(1.0, "weight of the contrastive loss (μ); 0 is FedAvg exactly", least=0)
    temperature: float = setting(0.5, "divisor of the cosines (τ)", above=0)
    contrast_nodes: str = setting(
        "train", "nodes whose representations are contrasted: train or all", choices=("train", "all")
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedAvg's draw."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The global model for everyone, as the start and the target."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """FedAvg's mean, by training nodes; without any, nothing changes."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer; the last local model is the initial one."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState(gnn_optimizer=self.empty_optimizer(gnn, batch), previous=gnn)

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the global model, with the contrastive term."""
        received = part_of(message, "gnn")
        loss = self._contrastive(received, client.previous, batch)
        gnn, optimizer = self.fit(received, client.gnn_optimizer, batch, seed, loss)
        uplink = {**prefixed("gnn", gnn), "num_train": batch.num_train}
        return ClientState(gnn_optimizer=optimizer, previous=gnn), uplink

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The global model."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def _contrastive(self, received: Params, previous: Params, batch: GraphBatch) -> Callable[[Outputs], Tensor] | None:
        if self.contrast_weight == 0:
            return None
        nodes, rows = (batch.train, batch.train_rows) if self.contrast_nodes == "train" else (slice(None), batch.rows)
        towards = self.backbone.representation(received, batch)[nodes]
        away = self.backbone.representation(previous, batch)[nodes]

        def loss(out: Outputs) -> Tensor:
            own = out.representation[nodes]
            gap = functional.cosine_similarity(own, away) - functional.cosine_similarity(own, towards)
            # -log(e^a / (e^a + e^b)) = softplus(b - a)
            contrast = ops.client_mean(functional.softplus(gap / self.temperature), rows)
            return supervised_loss(out.logits, batch) + self.contrast_weight * contrast

        return loss
