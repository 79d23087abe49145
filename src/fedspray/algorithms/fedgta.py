"""FedGTA (Li et al., "FedGTA: topology-aware averaging for federated graph learning", VLDB 2023).

Every client gets its own average, over clients whose predictions, spread over their graphs, look alike.

    Y⁰_i = one-hot(y_i) for training nodes, else softmax(logits_i)
    Y ← α Â Y + (1-α) Y⁰, and + Y⁰ on training nodes                 `propagation_steps` times
    P = softmax(Y), Q = softmax(Y / T)                               training nodes: one-hot again
    m_k = (mean P^p)_p=1…, or of P - mean P, or both                 mixed moments of each class
    H_k = Σ_i d_i (C/e + Σ_c Q_ic log Q_ic) ≥ 0                      local smoothing confidence; d_i with self-loop

    server:  θ_k ← Σ_j H_j θ_j / Σ_j H_j   over j = k and all j with cos(m_k, m_j) > `similarity_threshold`

Travels down: the client's own average. Travels up: the GNN after E steps, m_k and H_k.
docs/algorithms/fedgta.md lists where the paper, its code and this file differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.algorithms._averaging import ClientState
from fedspray.algorithms._personal import ServerState, mixed_models, own_models, rounded
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import WEIGHTS, Declared, each
from fedspray.nn import ops
from fedspray.nn.tree import Message, expand, part_of, prefixed
from fedspray.seeds import torch_generator

_OWN_AVERAGE = "every client gets an average of its own, over clients with similar moments"


@dataclass(frozen=True, kw_only=True)
class FedGTA(Algorithm[ServerState, ClientState]):
    """Personal averages among clients with similar mixed moments, weighted by smoothing confidence."""

    summary: ClassVar[str] = "personal averages among clients whose label-propagated predictions are alike"
    citation: ClassVar[str] = "Li et al., VLDB 2023"
    uplink: ClassVar[Declared] = {
        "gnn.*": each("the GNN after local training", _OWN_AVERAGE, WEIGHTS),
        "moments": each(
            "mixed moments of the propagated soft labels, for each order and class",
            _OWN_AVERAGE,
            reveals="how common each predicted class is, and how it spreads along edges",
        ),
        "confidence": each(
            "local smoothing confidence; 0 without training nodes",
            _OWN_AVERAGE,
            reveals="how sure the model is, weighted by degree: about how many edges the client has",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the client's own average"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "local_epochs": 3,
            "lr": 0.01,
            "weight_decay": 5e-4,
            "dropout": 0.5,
            "rounds": 100,
        }
    }

    similarity_threshold: float = setting(
        0.65, "clients are averaged if the cosine of their moments exceeds this (ε); 1 is Local, -1 averages all"
    )
    num_moments: int = setting(13, "highest order of the moments", least=1)
    moments: str = setting("raw", "moments: raw, central, or both (hybrid)", choices=("raw", "central", "hybrid"))
    propagation_steps: int = setting(5, "steps of label propagation (k)", least=0)
    propagation_share: float = setting(0.5, "weight of the neighbours in label propagation (α)", least=0, most=1)
    temperature: float = setting(20.0, "softens the labels whose entropy is the confidence (T)", above=0)
    weighting: str = setting(
        "confidence", "weights of the average: by confidence, or uniform", choices=("confidence", "uniform")
    )

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """The same draw that Local's common start uses; no client is known yet."""
        start = self.backbone.draw(task, torch_generator(seed, "backbone"))
        return ServerState(start, expand(start, 0))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Each client's own average."""
        return prefixed("gnn", own_models(server.gnn, server.start, client_ids))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """A new average for every client that took part; the others keep theirs."""
        sent, shares = part_of(message, "gnn"), self._shares(message)
        return ServerState(server.start, mixed_models(server.gnn, server.start, sent, shares, client_ids))

    def _shares(self, message: Message) -> Tensor:
        """[K, K]: row k is how much of each client's model goes into client k's."""
        moments, confidence = message["moments"], message["confidence"]
        direction = functional.normalize(moments, dim=1)
        # Rounding may lift the cosine of equal clients above 1, but a threshold of 1 must keep them apart.
        similar = (direction @ direction.T).clamp(max=1) > self.similarity_threshold
        itself = torch.eye(len(confidence), dtype=torch.bool)
        weights = confidence if self.weighting == "confidence" else confidence.sign()
        shares = (similar | itself).to(weights.dtype) * weights
        totals = shares.sum(dim=1, keepdim=True)
        # If no client has training nodes, each keeps its model.
        return torch.where(totals > 0, shares / totals.clamp(min=1e-30), itself.to(weights.dtype))

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """Confidences, and whose models went into whose, in the order of the record's ``trained``."""
        shares = self._shares(message)
        return {
            "confidence": [round(value, 4) for value in message["confidence"].tolist()],
            "shares": rounded(shares),
        }

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer."""
        return ClientState(self.empty_optimizer(self.backbone.init_params(task, batch, seed), batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the client's own average, then moments and confidence of the trained model."""
        gnn, optimizer = self.fit(part_of(message, "gnn"), client.gnn_optimizer, batch, seed)
        propagated = self._propagate(self.backbone.logits(gnn, batch).softmax(dim=1), batch)
        return ClientState(optimizer), {
            **prefixed("gnn", gnn),
            "moments": self._moments(_soften(propagated, batch), batch),
            "confidence": _confidence(_soften(propagated / self.temperature, batch), batch),
        }

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's own average."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def _propagate(self, predictions: Tensor, batch: GraphBatch) -> Tensor:
        """Label propagation from the training labels and, elsewhere, the predictions: [N, C]."""
        first = _with_labels(predictions, batch)
        labels = first
        for _ in range(self.propagation_steps):
            neighbours = ops.propagate(batch.gcn_adjacency, labels, batch.rows.ptr)
            labels = self.propagation_share * neighbours + (1 - self.propagation_share) * first
            labels = labels.index_add(0, batch.train, first[batch.train])
        return labels

    def _moments(self, labels: Tensor, batch: GraphBatch) -> Tensor:
        """[K, orders · C]: the moments of each class over a client's nodes."""

        def mean(values: Tensor) -> Tensor:
            return ops.client_sum(values, batch.rows) / batch.rows.counts[:, None]

        centred = labels - ops.per_row(mean(labels), batch.rows)
        variables = {"raw": [labels], "central": [centred], "hybrid": [labels, centred]}[self.moments]
        found = []
        for values in variables:
            power = torch.ones_like(values)
            for _ in range(self.num_moments):
                power = power * values
                found.append(mean(power))
        return torch.cat(found, dim=1)


def _with_labels(values: Tensor, batch: GraphBatch) -> Tensor:
    """``values`` [N, C] with one-hot labels at the training nodes."""
    return values.index_copy(0, batch.train, functional.one_hot(batch.train_labels, batch.num_classes).to(values.dtype))


def _soften(propagated: Tensor, batch: GraphBatch) -> Tensor:
    return _with_labels(propagated.softmax(dim=1), batch)


def _confidence(labels: Tensor, batch: GraphBatch) -> Tensor:
    """[K]: C/e minus the entropy, which it can never exceed, summed over nodes by their degrees."""
    degrees = torch.bincount(batch.edge_index_with_loops[0], minlength=batch.num_nodes).to(labels.dtype)
    certainty = batch.num_classes / math.e + torch.xlogy(labels, labels).sum(dim=1)
    return ops.client_sum(degrees * certainty, batch.rows) * batch.num_train.sign()
