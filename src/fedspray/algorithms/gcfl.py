"""GCFL (Xie, Ma, Xiong and Yang, "Federated graph classification over non-IID graphs", NeurIPS 2021), for nodes.

Clients whose updates pull in different directions go into different clusters; every cluster c has its
own model θ_c. With Δ_k = θ_k - θ_c, each round and cluster (m members that trained):

    δ_mean = ‖ (1/m) Σ_k Δ_k ‖        δ_max = max_k ‖Δ_k‖        ρ = δ_mean / δ_max
    test:    ρ < 0.3 (auto), or δ_mean < ε1 and δ_max > ε2 (fixed)
    cut:     global minimum cut of the members, joined with weights relu(cos(Δ_i, Δ_j)) + 1e-9
    accept:  mean cos inside the two parts - mean cos across them ≥ 0.3
    average: θ_c ← Σ_{k in c} (n_k / n_c) θ_k    with the new clusters

Travels down: the model of the client's cluster. Travels up: the GNN after E steps, and n_k.
docs/algorithms/gcfl.md explains why the published thresholds on norms can't work with Adam, and lists all differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedspray.algorithms import _clusters
from fedspray.algorithms._averaging import ClientState
from fedspray.algorithms._clusters import ServerState
from fedspray.algorithms._cuts import cosines
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, WEIGHTS, Declared, each
from fedspray.nn.tree import Message, part_of, prefixed
from fedspray.seeds import torch_generator

_CLUSTERS = "the server compares the clients' updates to find clusters, and averages inside them"


@dataclass(frozen=True, kw_only=True)
class GCFL(Algorithm[ServerState, ClientState]):
    """FedAvg inside clusters of clients whose updates agree."""

    summary: ClassVar[str] = "one GNN for each cluster; clusters split where updates disagree"
    citation: ClassVar[str] = "Xie, Ma, Xiong and Yang, NeurIPS 2021"
    uplink: ClassVar[Declared] = {
        "gnn.*": each("the GNN after local training", _CLUSTERS, WEIGHTS),
        "num_train": each("number of training nodes", _CLUSTERS, TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the GNN of the client's cluster"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "threshold": "fixed",
            "cut": "cos+1",
            "min_gap": -2.0,
            "pause": 0,
            "layers": 3,
            "lr": 0.001,
            "weight_decay": 0.0005,
            "local_epochs": 1,
            "rounds": 200,
        },
    }

    threshold: str = setting(
        "auto",
        "a cluster is cut if ρ < max_ratio (auto), or if δ_mean < eps1 and δ_max > eps2 (fixed)",
        choices=("auto", "fixed"),
    )
    max_ratio: float = setting(0.3, "auto: a cluster with ρ = δ_mean/δ_max below this is cut", least=0)
    eps1: float = setting(0.05, "fixed: a cluster is cut only if δ_mean is below this (ε1)", least=0)
    eps2: float = setting(0.1, "fixed: a cluster is cut only if δ_max is above this (ε2)", least=0)
    min_gap: float = setting(0.3, "a cut counts if similarity inside its parts exceeds that across by this; -2: always")
    warmup: int = setting(20, "rounds at the start without a cut", least=0)
    pause: int = setting(10, "rounds after a cut in which its parts are not cut again", least=0)
    min_members: int = setting(3, "fewest trained members for a cut", least=0)
    cut: str = setting(
        "relu",
        "minimum cut of relu(cos), minimum cut of cos+1, or complete linkage of cos (complete)",
        choices=("relu", "cos+1", "complete"),
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """One cluster, with the initial weights of FedAvg and Local."""
        return _clusters.first_cluster(self.backbone.draw(task, torch_generator(seed, "backbone")), norm_memory=0)

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Every client gets its cluster's model."""
        return _clusters.models_for(server, client_ids)

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """Tests and cuts clusters by the cosines of their members' updates, averages inside the new ones."""
        cost = None if self.cut == "complete" else self._cost
        server = _clusters.next_round(server, client_ids)
        return _clusters.taken_in(server, message, client_ids, self, lambda _, updates, ids: cosines(updates), cost)

    def _cost(self, similarities: Tensor) -> Tensor:
        """[m, m]: what a cut between two clients costs."""
        # with cos+1 unrelated clients are tied together, and the cheapest cut is nearly always a single client
        return similarities.clamp(min=0) + 1e-9 if self.cut == "relu" else (similarities + 1).clamp(min=0)

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer."""
        return ClientState(self.empty_optimizer(self.backbone.init_params(task, batch, seed), batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the cluster's model."""
        gnn, optimizer = self.fit(part_of(message, "gnn"), client.gnn_optimizer, batch, seed)
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The cluster's model."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """Clusters, and the figures and outcome of each one's test."""
        return _clusters.record_of(server)
