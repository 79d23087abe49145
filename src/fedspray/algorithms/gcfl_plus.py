"""GCFL+ (Xie, Ma, Xiong and Yang, NeurIPS 2021): GCFL that compares the clients' gradient norms over time.

A single round's update is noisy, so the server keeps the last d norms g_k of every client and cuts a cluster by
their distance under dynamic time warping (DTW):

    D_ij = DTW(g_i, g_j)        similarity = 1 - D_ij / max D        minimum cut of these weights

The rest is GCFL. A cluster is cut only if all its members have d norms, and a cut clears the norms of all clients.

Travels up in addition to GCFL: one number, the norm of the last local step's gradient (`sequence = "grad"`,
as in the released code) or of the round's update (`"update"`, as in the paper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms import _clusters
from fedspray.algorithms._averaging import ClientState
from fedspray.algorithms._clusters import ServerState
from fedspray.algorithms.base import Algorithm, Outputs, supervised_loss
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, WEIGHTS, Declared, each
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, part_of, prefixed
from fedspray.seeds import torch_generator

_CLUSTERS = "the server finds clusters, and averages inside them"


@dataclass(frozen=True, kw_only=True)
class GCFLPlus(Algorithm[ServerState, ClientState]):
    """GCFL whose cuts follow sequences of gradient norms."""

    summary: ClassVar[str] = "GCFL that compares clients by their gradient norms over time"
    citation: ClassVar[str] = "Xie, Ma, Xiong and Yang, NeurIPS 2021"
    uplink: ClassVar[Declared] = {
        "gnn.*": each("the GNN after local training", _CLUSTERS, WEIGHTS),
        "num_train": each("number of training nodes", _CLUSTERS, TRAIN_NODES),
        "norm": each(
            "norm of the last local step's gradient, or of the round's update",
            "the server compares how the clients' norms went over time",
            reveals="how far the client's data are from what the model has learned",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the GNN of the client's cluster"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            **{"threshold": "fixed", "min_gap": -2.0, "pause": 0, "layers": 3, "lr": 0.001, "weight_decay": 0.0005},
            **{"local_epochs": 1, "rounds": 200},
        },
    }

    threshold: str = setting(
        "auto",
        "a cluster is cut where ρ < max_ratio (auto), or where δ_mean < eps1 and δ_max > eps2 (fixed)",
        choices=("auto", "fixed"),
    )
    max_ratio: float = setting(0.3, "auto: a cluster is cut if ρ = δ_mean/δ_max is below this", least=0)
    eps1: float = setting(0.05, "fixed: a cluster is cut only where δ_mean is below this (ε1)", least=0)
    eps2: float = setting(0.1, "fixed: a cluster is cut only where δ_max is above this (ε2)", least=0)
    min_gap: float = setting(0.3, "a cut counts if members of a part are more alike than others by this; -2: always")
    warmup: int = setting(20, "rounds at the start without a cut", least=0)
    pause: int = setting(10, "rounds after a cut in which its parts are not cut again", least=0)
    min_members: int = setting(3, "fewest trained members for a cut", least=0)
    cut: str = setting(
        "minimum", "minimum cut of the similarities, or complete linkage (complete)", choices=("minimum", "complete")
    )
    sequence: str = setting(
        "grad",
        "the norm that is compared over time: of the last local step's gradient (grad), or of the update",
        choices=("grad", "update"),
    )
    sequence_length: int = setting(5, "norms of each client that are compared (d)", least=1)
    standardise: bool = setting(False, "divide each client's norms by their standard deviation first")

    def init_server(self, task: Task, seed: int) -> ServerState:
        """One cluster with FedAvg's initial weights; d norms of each client will be kept."""
        gnn = self.backbone.draw(task, torch_generator(seed, "backbone"))
        return _clusters.first_cluster(gnn, norm_memory=self.sequence_length)

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The model of each client's cluster."""
        return _clusters.models_for(server, client_ids)

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """Stores the norms; tests and cuts clusters by their distances, averages inside the new ones."""
        server = self._with_norms(_clusters.next_round(server, client_ids), message, torch.tensor(client_ids))
        cost = None if self.cut == "complete" else lambda similar: similar  # no similarity is negative
        return _clusters.taken_in(server, message, client_ids, self, self._alike, cost)

    def _with_norms(self, server: ServerState, message: Message, ids: Tensor) -> ServerState:
        """Appends this round's norm to each client's last ones."""
        norms, counts = server.norms.clone(), server.norm_counts.clone()
        newest = message["norm"].to(norms.dtype)[:, None]
        norms[ids] = torch.cat([norms[ids, 1:], newest], dim=1)
        counts[ids] = (counts[ids] + 1).clamp(max=self.sequence_length)
        return replace(server, norms=norms, norm_counts=counts)

    def _alike(self, server: ServerState, updates: Tensor, ids: Tensor) -> Tensor | None:
        """1 - D / max D; None while a member has too few norms, or if no pair is closer than the others."""
        if (server.norm_counts[ids] < self.sequence_length).any():
            return None
        sequences = server.norms[ids]
        if self.standardise:
            sequences = sequences / sequences.std(dim=1, correction=0, keepdim=True).clamp(min=1e-12)
        distances = dtw_distances(sequences)
        pairs = distances[torch.ones_like(distances).triu(diagonal=1).bool()]
        if pairs.max() == 0 or (len(pairs) > 1 and pairs.max() == pairs.min()):
            return None
        return 1 - distances / distances.max()

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer of all weights, for the norms of all gradients."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState(AdamState.zeros(gnn, batch.num_clients))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the cluster's model, and the norm that the server compares."""
        received = part_of(message, "gnn")
        steps: Params = {}

        def loss(out: Outputs) -> Tensor:
            steps.update(out.params)
            return supervised_loss(out.logits, batch)

        gnn, optimizer = self.fit(received, client.gnn_optimizer, batch, seed, loss)
        if self.sequence == "update":
            norm = norms_of({name: value - received[name] for name, value in gnn.items()})
        else:
            norm = norms_of({name: value.grad for name, value in steps.items() if value.grad is not None})
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train, "norm": norm}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The model of the client's cluster."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """As for GCFL: clusters, figures, outcomes."""
        return _clusters.record_of(server)


def norms_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """[K]: one norm for each client, over all tensors [K, …] together."""
    return torch.cat([value.flatten(1) for value in tensors.values()], dim=1).square().sum(dim=1).sqrt()


def dtw_distances(sequences: Tensor) -> Tensor:
    """Distance of every two sequences under dynamic time warping: [m, d] → [m, m].

    It is the root of the least sum of squared differences along a path that pairs all entries of both in order.
    """
    count, length = sequences.shape
    border = sequences.new_full((count, count), torch.inf)
    above = [torch.zeros_like(border), *[border] * length]
    for i in range(length):
        row = [border]
        for j in range(length):
            step = (sequences[:, None, i] - sequences[None, :, j]).square()
            row.append(step + torch.minimum(torch.minimum(above[j], above[j + 1]), row[j]))
        above = row
    return above[-1].sqrt()
