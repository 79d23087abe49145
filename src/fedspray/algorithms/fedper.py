"""FedPer (Arivazhagan et al., "Federated learning with personalization layers", arXiv:1912.00818, 2019).

FedAvg of the lower layers; the top `personal_layers` layers stay at their client and are trained together
with the others, E steps on L_k in each round.

Travels down: the shared layers. Travels up: the shared layers after training, and n_k.
0 personal layers is FedAvg, all layers is Local (only n_k travels). SGC has a single layer,
which is then cut inside: its bias stays, its matrix travels. docs/algorithms/fedper.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedspray.algorithms._averaging import ServerState
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class ClientState:
    """Adam's moments of all layers, and the personal layers."""

    gnn_optimizer: AdamState = training_only()
    personal: Params


@dataclass(frozen=True, kw_only=True)
class FedPer(Algorithm[ServerState, ClientState]):
    """Federated averaging of all but the top layers."""

    summary: ClassVar[str] = "shared lower layers, averaged; personal output layer"
    citation: ClassVar[str] = "Arivazhagan et al., arXiv:1912.00818"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the shared layers after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the shared layers"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"personal_start": "own"}}

    personal_layers: int = setting(
        1, "layers that stay personal, counted from the output; 0 is FedAvg, all layers is Local", least=0
    )
    personal_start: str = setting(
        "common", "initial personal layers: common to all clients, or own (drawn per client)", choices=("common", "own")
    )

    def personal_names(self, task: Task) -> list[str]:
        """The weights that stay at their client."""
        layers = self.backbone.layer_names(task)
        if len(layers) == 1:
            layers = [[name] for name in layers[0]]
        shared = max(len(layers) - self.personal_layers, 0)
        return [name for layer in layers[shared:] for name in layer]

    def init_server(self, task: Task, seed: int) -> ServerState:
        """The shared part of FedAvg's draw."""
        personal, whole = self.personal_names(task), self.backbone.draw(task, torch_generator(seed, "backbone"))
        return ServerState({name: value for name, value in whole.items() if name not in personal})

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The shared layers for everyone."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the shared layers, weighted by training nodes."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """The personal part of the same weights (or of weights drawn per client), and an empty optimizer."""
        gnn = self.backbone.init_params(task, batch, seed, common=self.personal_start == "common")
        personal = {name: gnn[name] for name in self.personal_names(task)}
        return ClientState(gnn_optimizer=self.empty_optimizer(gnn, batch), personal=personal)

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps on all layers together."""
        gnn, optimizer = self.fit(part_of(message, "gnn") | client.personal, client.gnn_optimizer, batch, seed)
        personal = {name: gnn.pop(name) for name in client.personal}
        uplink = {**prefixed("gnn", gnn), "num_train": batch.num_train}
        return ClientState(gnn_optimizer=optimizer, personal=personal), uplink

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The shared layers as received, under the client's own."""
        return self.backbone.logits(part_of(message, "gnn") | client.personal, batch)
