"""Ditto (Li, Hu, Beirami and Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021).

Two models at every client. The shared one is FedAvg's, untouched by the other; the personal one v_k never
leaves the client and is trained on its labels with a leash to the global model θ that was received:

    v_k ← E steps on L_k(v_k) + λ/2 · ‖v_k - θ‖²

Travels down and up: as for FedAvg, and one number up (‖v_k - θ‖, for the record). Predictions are v_k's.
λ = 0 is Local with FedAvg running beside it; a large λ is FedAvg. docs/algorithms/ditto.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedspray.algorithms._averaging import ServerState
from fedspray.algorithms.base import Algorithm, Outputs, supervised_loss
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, each, mean, total
from fedspray.nn import ops
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class ClientState:
    """Adam's moments, and the personal model."""

    gnn_optimizer: AdamState = training_only()
    personal: Params
    personal_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm[ServerState, ClientState]):
    """FedAvg, and a personal GNN beside it that stays near the global one."""

    one_model: ClassVar[bool] = False
    summary: ClassVar[str] = "a personal GNN on a leash to the global one, which is FedAvg's"
    citation: ClassVar[str] = "Li et al., ICML 2021"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
        "distance": each(
            "length of (personal GNN - global GNN as received)",
            "for the records only",
            reveals="how much the client's data differ from the others'",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}

    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"local_epochs": 10}}

    proximal_weight: float = setting(
        1.0, "weight of the squared distance between personal and global GNN (λ); 0 is Local exactly", least=0
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedAvg's draw."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The global model for everyone, to start from and to stay near."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """FedAvg's mean of the shared models; without the personal ones."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """The personal model starts as the global one; both optimizers are empty."""
        gnn = self.backbone.init_params(task, batch, seed)
        alone = self.empty_optimizer(gnn, batch)
        leashed = AdamState.zeros(gnn, batch.num_clients) if self.proximal_weight else alone
        return ClientState(gnn_optimizer=alone, personal=gnn, personal_optimizer=leashed)

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """FedAvg's steps, then as many for the personal model, both from the model as received."""
        received = part_of(message, "gnn")
        shared, shared_optimizer = self.fit(received, client.gnn_optimizer, batch, seed)

        def loss(out: Outputs) -> Tensor:
            supervised = supervised_loss(out.logits, batch)
            if self.proximal_weight == 0:
                return supervised
            return supervised + self.proximal_weight / 2 * out.optimizer.distance(received)

        # Both models use the round's seed: with dropout, each gets the masks it would get alone.
        personal, optimizer = self.fit(client.personal, client.personal_optimizer, batch, seed, loss)
        distance = ops.squared_distance(personal, received).sqrt()
        uplink = {**prefixed("gnn", shared), "num_train": batch.num_train, "distance": distance}
        return ClientState(gnn_optimizer=shared_optimizer, personal=personal, personal_optimizer=optimizer), uplink

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The personal model."""
        return self.backbone.logits(client.personal, batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """``distance``: of each client's personal model from the global one that it received."""
        return {"distance": message["distance"].tolist()}
