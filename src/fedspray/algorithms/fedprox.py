"""FedProx (Li et al., "Federated optimization in heterogeneous networks", MLSys 2020).

FedAvg on a leash: a client that starts from the global θ minimises

    L_k(θ_k) + μ/2 · ‖θ_k - θ‖²

Travels down and up: as for FedAvg. The term is 0 at the start of a round and pulls harder the further a
client has gone. μ = 0 is FedAvg, bit for bit. docs/algorithms/fedprox.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedspray.algorithms._averaging import ClientState, ServerState
from fedspray.algorithms.base import Algorithm, Outputs, supervised_loss
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn import ops
from fedspray.nn.tree import Message, expand, part_of, prefixed
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm[ServerState, ClientState]):
    """Federated averaging with a proximal term."""

    summary: ClassVar[str] = "FedAvg whose clients are pulled back to the global GNN while they train"
    citation: ClassVar[str] = "Li et al., MLSys 2020"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}

    proximal_weight: float = setting(
        0.01, "weight of the squared distance to the global GNN (μ); 0 is FedAvg exactly", least=0
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedAvg's draw."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """θ for everyone."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """θ ← Σ_k (n_k / Σ n) θ_k; as before if nobody has training nodes."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer."""
        return ClientState(self.empty_optimizer(self.backbone.init_params(task, batch, seed), batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the global model, with the proximal term."""
        start = part_of(message, "gnn")

        def loss(out: Outputs) -> Tensor:
            supervised = supervised_loss(out.logits, batch)
            if self.proximal_weight == 0:
                return supervised
            return supervised + self.proximal_weight / 2 * out.optimizer.distance(start)

        gnn, optimizer = self.fit(start, client.gnn_optimizer, batch, seed, loss)
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """θ as received."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """``distance``: of each client that trained from the new average, ‖θ_k - θ‖."""
        return {"distance": ops.squared_distance(part_of(message, "gnn"), server.gnn).sqrt().tolist()}
