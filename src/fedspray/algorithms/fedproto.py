"""FedProto (Tan et al., "Federated prototype learning across heterogeneous clients", AAAI 2022).

Every client trains its own GNN and sends no weights but, for each class, the mean representation of
its training nodes (its prototype). Clients are pulled towards the federation's prototypes:

    C_k[j] = mean of r_i over the client's training nodes of class j
    C[j]   = Σ_k a_kj C_k[j] / Σ_k a_kj          a_kj = nodes of class j (or 1 if there are any)
    client:  L_k + λ · (1 / n_k) Σ_i ‖r_i - C[y_i]‖² / H          training nodes whose class has a prototype

Travels down: C, and which classes have one. Travels up: C_k and the class counts.
A representation r is the input of the output layer; SGC has no hidden layer, so there it is the logits. A class
that a client lacks has weight 0, one that nobody sent keeps its prototype. λ = 0 is Local, bit for bit.
docs/algorithms/fedproto.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm, Outputs, supervised_loss
from fedspray.backbones.base import Backbone, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.messages import CLASS_VECTORS, COUNTS, Declared, mean, total
from fedspray.nn import ops
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, training_only


@dataclass(frozen=True)
class ServerState:
    """The federation's prototypes."""

    prototypes: Tensor
    """[C, H]."""
    known: Tensor
    """[C]: 1 for a class that some client has sent, else 0."""


@dataclass(frozen=True)
class ClientState:
    """A client's own model."""

    gnn: Params
    gnn_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class FedProto(Algorithm[ServerState, ClientState]):
    """Personal GNNs whose representations of a class are pulled together."""

    summary: ClassVar[str] = "personal GNNs that share class means of representations"
    citation: ClassVar[str] = "Tan et al., AAAI 2022"
    shares_gnn: ClassVar[bool] = False
    uplink: ClassVar[Declared] = {
        "prototypes": mean(
            "mean representation of the training nodes of each class (0 where there are none)",
            CLASS_VECTORS,
            weight="class_counts",
        ),
        "class_counts": total(
            "training nodes of each class; with weighting=uniform 1 for each class that the client has",
            COUNTS,
            reveals="the label distribution of the training nodes, exactly; with weighting=uniform which classes occur",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {
        "prototypes": "the federation's prototype of each class",
        "known": "1 for each class that has a prototype, else 0",
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"weighting": "uniform", "predict_by": "prototype"}}

    prototype_weight: float = setting(1.0, "weight of the distance to the prototypes (λ); 0 is Local exactly", least=0)
    weighting: str = setting(
        "train", "a client's weight in a class's prototype: its train nodes, or uniform", choices=("train", "uniform")
    )
    predict_by: str = setting(
        "classifier",
        "predictions: the GNN's own output (classifier), or the nearest prototype",
        choices=("classifier", "prototype"),
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """No class has a prototype."""
        width = _representation_width(self.backbone, task)
        return ServerState(torch.zeros(task.num_classes, width), torch.zeros(task.num_classes))

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Local's start: the same weights for everyone."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState(gnn, self.empty_optimizer(gnn, batch))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The prototypes for everyone."""
        return expand({"prototypes": server.prototypes, "known": server.known}, len(client_ids))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps on the client's labels and the prototypes; then its own prototypes."""
        self._check_width(message, batch)
        owners, labels = batch.train_rows.client_of, batch.train_labels
        targets, known = message["prototypes"][owners, labels], message["known"][owners, labels]

        def loss(out: Outputs) -> Tensor:
            supervised = supervised_loss(out.logits, batch)
            if self.prototype_weight == 0:
                return supervised
            distance = (out.representation[batch.train] - targets).square().mean(dim=1) * known
            return supervised + self.prototype_weight * ops.client_mean(distance, batch.train_rows)

        gnn, optimizer = self.fit(client.gnn, client.gnn_optimizer, batch, seed, loss)
        means = ops.class_means(self.backbone.representation(gnn, batch)[batch.train], batch)
        counts = batch.train_class_counts if self.weighting == "train" else batch.train_class_counts.sign()
        return ClientState(gnn, optimizer), {"prototypes": means, "class_counts": counts}

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The weighted mean of each class over the clients that have it."""
        held = message["class_counts"].sign()  # [C]
        prototypes = torch.where(held[:, None] > 0, message["prototypes"], server.prototypes)
        return ServerState(prototypes, torch.maximum(server.known, held))

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's own output layer, or minus the squared distance to each prototype."""
        if self.predict_by == "classifier":
            return self.backbone.logits(client.gnn, batch)
        own, prototypes = self.backbone.representation(client.gnn, batch), message["prototypes"]
        products = ops.linear(own, batch.rows.ptr, prototypes.transpose(1, 2).contiguous())  # [N, C]
        lengths = ops.per_row(prototypes.square().sum(dim=2), batch.rows)
        distances = own.square().sum(dim=1, keepdim=True) - 2 * products + lengths
        missing = ops.per_row(message["known"], batch.rows) == 0
        furthest = distances.masked_fill(missing, 0).amax(dim=1, keepdim=True)
        return -torch.where(missing, furthest + 1, distances)  # a class without a prototype is never the nearest

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """``spread``: for each class, how far the clients' prototypes are from the new one, on average by weight."""
        counts = message["class_counts"]
        distances = (message["prototypes"] - server.prototypes).norm(dim=2)  # [K, C]
        return {"spread": ((counts * distances).sum(dim=0) / counts.sum(dim=0).clamp(min=1)).tolist()}

    def _check_width(self, message: Message, batch: GraphBatch) -> None:
        given = message["prototypes"].shape[2]
        own = _representation_width(self.backbone, Task(batch.num_features, batch.num_classes))
        if given != own:
            raise InputError(
                f"fedproto: the federation's prototypes have {given} coordinates, but this client's representations "
                f"have {own}: give all backbones the same width of the last hidden layer"
            )


@cache
def _representation_width(backbone: Backbone, task: Task) -> int:
    """H, found by running the backbone on a single node."""
    node = Graph.from_arrays(np.zeros((1, task.num_features)), np.zeros((2, 0)), None, num_classes=task.num_classes)
    batch = GraphBatch.from_graph(node)
    return backbone.representation(backbone.init_params(task, batch, 0), batch).shape[1]
