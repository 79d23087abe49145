"""AdaFGL (Li et al., "AdaFGL: a new paradigm for federated node classification with topology heterogeneity", 2024).

For `extractor_rounds` rounds clients average a GNN, as in FedAvg. Then it is frozen, and every client trains networks
of its own on its predictions: some suit graphs whose neighbours are alike, some suit graphs whose neighbours differ:

    P̂ = softmax of the averaged GNN                S = rows of P̂ scaled to length 1
    Ã = D^-1/2 (α A + (1-α) (S Sᵀ - I) + I) D^-1/2                  neighbours, and nodes that P̂ finds alike
    X̃ = [X | ÃX | … | Ã^k X]
    alike:    H_s = MLP(X̃)                                          CE(y, H_s) + mean (H_s - P̂)²
    unlike:   H_f = MLP(X), H_g = MLP(X̃), H_m = signed(MLP(X̃))      CE(y, H_f) + CE(y, H_g) + CE(y, H_m)
    signed:   V = rows of softmax(E) scaled to length 1, m = mean of V Vᵀ - I
              R_ij = (v_i·v_j - m) / (1-m) above m, else -v_i·v_j / m;  R_ii = 1
              H_m = (softmax(leaky(R) E) - softmax(leaky(-R) E) + E) / 2
    predict:  r (σ(H_s) + P̂) / 2 + (1-r) (σ(H_f) + σ(H_g) + σ(H_m)) / 3

r is how well labels spread along the client's edges: the share of one half of its training nodes that label propagation
from the other half gets right. It, and all networks but the averaged one, stay at the client.

Travels down: the averaged GNN, and which of the two stages it is. Travels up: the GNN after E steps, and n_k.
docs/algorithms/adafgl.md lists where the paper, its code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.algorithms.base import Algorithm, supervised_loss
from fedspray.backbones.base import Drop, Dropout, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn import ops
from fedspray.nn.layers import Linear, Table, draw_all
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator

_SLOPE = 0.25
_ROWS = 2048
"""Rows of R that are written out at a time."""


@dataclass(frozen=True)
class ServerState:
    """The averaged GNN, and how many rounds it has seen."""

    gnn: Params
    rounds: Tensor


@dataclass(frozen=True)
class ClientState:
    """What stays at the client."""

    personal: Params
    """The four networks of the second stage."""
    homophily: Tensor
    """[K]: r."""
    gnn_optimizer: AdamState = training_only()
    personal_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class AdaFGL(Algorithm[ServerState, ClientState]):
    """First an averaged GNN, then personal networks on its predictions, for similar and dissimilar neighbours."""

    summary: ClassVar[str] = "FedAvg first, then personal networks for similar and for dissimilar neighbours"
    citation: ClassVar[str] = "Li et al., ICDE 2024"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training; in the second stage as received"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the averaged GNN", "personal": "1 in the second stage, else 0"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {"local_epochs": 3, "lr": 0.01, "weight_decay": 5e-4, "dropout": 0.5, "rounds": 100}
    }

    extractor_rounds: int = setting(
        50, "rounds of the first stage, FedAvg; all later rounds are the second stage", least=0
    )
    topology_share: float = setting(
        0.5, "weight of the client's edges against links of similar nodes (α)", least=0, most=1
    )
    propagation_steps: int = setting(3, "powers of the propagation matrix that the networks read (k)", least=0)
    label_steps: int = setting(10, "steps of label propagation for measuring how alike neighbours are", least=0)
    personal_lr: float = setting(0.01, "Adam's step size for the personal networks", above=0)
    personal_weight_decay: float = setting(5e-4, "L2 penalty on the personal networks' weights", least=0)
    personal_dropout: float = setting(0.5, "share of their hidden units dropped while training", least=0, below=1)

    @property
    def first_comparable_round(self) -> int:
        """The first of the second stage."""
        return self.extractor_rounds + 1

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedAvg's start."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")), torch.zeros(()))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The same for everyone."""
        step = (server.rounds >= self.extractor_rounds).to(server.rounds.dtype)
        return expand({**prefixed("gnn", server.gnn), "personal": step}, len(client_ids))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the GNNs, weighted by training nodes; unchanged in the second stage."""
        stays = server.rounds >= self.extractor_rounds or message["num_train"] == 0
        return ServerState(server.gnn if stays else part_of(message, "gnn"), server.rounds + 1)

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Drawn networks, the same for all clients, and how alike neighbours are."""
        gnn = self.backbone.init_params(task, batch, seed)
        drawn = draw_all(self._layers(task), torch_generator(seed, "personal"))
        personal = {name: value.to(batch.dtype) for name, value in expand(drawn, batch.num_clients).items()}
        optimizer = self.empty_optimizer(personal, batch, ())
        return ClientState(personal, self._homophily(batch, seed), self.empty_optimizer(gnn, batch), optimizer)

    def _layers(self, task: Task) -> Table:
        """The personal networks; inputs are the features, or their propagated copies side by side."""
        width, wide, linear = self.backbone.hidden, (self.propagation_steps + 1) * task.num_features, Linear()
        layers = {"smooth.1": (linear, wide, width), "smooth.2": (linear, width, task.num_classes)}
        for name, inputs in (("feature", task.num_features), ("global", wide), ("message", wide)):
            layers |= {f"{name}.1": (linear, inputs, width), f"{name}.2": (linear, width, width)}
            layers[f"{name}.3"] = (linear, width, task.num_classes)
        return layers

    def _homophily(self, batch: GraphBatch, seed: int) -> Tensor:
        """r [K]; a half where there are no two training nodes to ask."""
        known, asked = [], []
        for k, (start, stop) in zip(batch.client_ids, pairwise(batch.train_rows.ptr), strict=True):
            order = start + torch.randperm(stop - start, generator=torch_generator(seed, "half", k))
            half = len(order) // 2
            known.append(order[:half])
            asked.append(order[half:] if half else order[:0])
        givers, takers = (batch.train[torch.cat(part).to(batch.device)] for part in (known, asked))
        first = batch.rows.counts.new_full((batch.num_nodes, batch.num_classes), 1 / batch.num_classes)
        first[givers] = functional.one_hot(batch.labels[givers], batch.num_classes).to(first.dtype)
        labels = first
        for _ in range(self.label_steps):
            labels = (ops.propagate(batch.gcn_adjacency, labels, batch.rows.ptr) + first) / 2
            labels = labels.index_add(0, givers, first[givers])
        owners, right = batch.rows.client_of[takers], labels[takers].argmax(dim=1) == batch.labels[takers]
        counts = first.new_zeros(batch.num_clients).index_add(0, owners, torch.ones_like(right, dtype=first.dtype))
        hits = torch.zeros_like(counts).index_add(0, owners, right.to(first.dtype))
        return torch.where(counts > 0, hits / counts.clamp(min=1), 0.5)

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps of the GNN, or of the personal networks."""
        gnn = part_of(message, "gnn")
        if not message["personal"].any():
            gnn, optimizer = self.fit(gnn, client.gnn_optimizer, batch, seed)
            trained = replace(client, gnn_optimizer=optimizer)
        else:
            steps = self.start_optimizer(
                client.personal,
                client.personal_optimizer,
                batch,
                self.personal_lr,
                weight_decay=self.personal_weight_decay,
            )
            for epoch in range(self.local_epochs):
                drop = Dropout(self.personal_dropout, batch, seed, epoch)
                steps.step(self._loss(self._outputs(steps.params, gnn, batch, drop, batch.train), gnn, batch))
            personal, optimizer = steps.result()
            trained = replace(client, personal=personal, personal_optimizer=optimizer)
        return trained, {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def _loss(self, outputs: dict[str, Tensor], gnn: Params, batch: GraphBatch) -> Tensor:
        """[K]: the cross-entropies of all networks, and how far the smooth one is from P̂."""
        said = self._probabilities(gnn, batch)
        gaps = (outputs["smooth"] - said).square().mean(dim=1)
        losses = ops.client_mean(gaps, batch.rows)
        for name in ("smooth", "feature", "global"):
            losses = losses + supervised_loss(outputs[name], batch)
        targets = batch.train_targets[:, batch.train]
        return losses + ops.soft_cross_entropy(outputs["message"], targets, batch.train_rows)

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The averaged GNN in the first stage; then the log of the mixture of all networks' probabilities."""
        gnn = part_of(message, "gnn")
        if not message["personal"].any():
            return self.backbone.logits(gnn, batch)
        with torch.no_grad():
            every = torch.arange(batch.num_nodes, device=batch.device)
            outputs = self._outputs(client.personal, gnn, batch, lambda hidden: hidden, every)
            chances = {name: value.softmax(dim=1) for name, value in outputs.items()}
            alike = (chances["smooth"] + self._probabilities(gnn, batch)) / 2
            unlike = (chances["feature"] + chances["global"] + chances["message"]) / 3
            share = ops.per_row(client.homophily, batch.rows)[:, None]
            return (share * alike + (1 - share) * unlike).log()

    # ---- the second stage ---------------------------------------------------------------------------

    def _probabilities(self, gnn: Params, batch: GraphBatch) -> Tensor:
        """P̂ [N, C]."""
        return self.backbone.logits(gnn, batch).softmax(dim=1)

    def _outputs(self, params: Params, gnn: Params, batch: GraphBatch, drop: Drop, rows: Tensor) -> dict[str, Tensor]:
        """The logits of each network: of all nodes, but those of ``message`` at ``rows`` (ascending)."""
        matrix = Propagation(functional.normalize(self._probabilities(gnn, batch), dim=1), batch, self.topology_share)

        def hidden(name: str, *, propagated: bool = True) -> Tensor:
            weight, bias = params[f"{name}.1.weight"], params[f"{name}.1.bias"]
            parts = weight.chunk(self.propagation_steps + 1, dim=1) if propagated else (weight,)
            result = ops.feature_linear(batch.rows, parts[-1])  # Σ_h Ã^h (X W_h), from the highest power down
            for part in reversed(parts[:-1]):
                result = matrix(result) + ops.feature_linear(batch.rows, part)
            return drop(functional.leaky_relu(result + ops.per_row(bias, batch.rows), _SLOPE))

        def layer(name: str, inputs: Tensor) -> Tensor:
            return ops.linear(inputs, batch.rows.ptr, params[f"{name}.weight"], params[f"{name}.bias"])

        found = {"smooth": layer("smooth.2", hidden("smooth"))}
        for name in ("feature", "global", "message"):
            second = layer(f"{name}.2", hidden(name, propagated=name != "feature"))
            found[name] = layer(f"{name}.3", drop(functional.leaky_relu(second, _SLOPE)))
        found["message"] = signed_messages(found["message"], batch, rows)
        return found


class Propagation:
    """H → Ã H; the part of Ã that is not sparse is kept as S, ``alike``: [N, C], rows of length 1. ``share`` is α."""

    def __init__(self, alike: Tensor, batch: GraphBatch, share: float) -> None:
        self._alike, self._batch, self._share = alike, batch, share
        self._scale = torch.ones_like(alike[:, :1])
        self._scale = self(self._scale).clamp(min=1e-12).rsqrt()

    def __call__(self, inputs: Tensor) -> Tensor:
        """[N, H] → [N, H]."""
        moved, batch, ptr = self._scale * inputs, self._batch, self._batch.rows.ptr
        sums = torch.stack([self._alike[a:b].T @ moved[a:b] for a, b in pairwise(ptr)])
        near = ops.propagate(batch.adjacency, moved, ptr)
        far = ops.linear(self._alike, ptr, sums) - moved
        return self._scale * (self._share * near + (1 - self._share) * far + moved)


def signed_messages(scores: Tensor, batch: GraphBatch, rows: Tensor) -> Tensor:
    """H_m at ``rows``: what alike nodes say, less what unlike ones say. R is written out in slices of rows.

    Shapes: scores E [N, C], rows [n] ascending → [n, C].
    """
    direction = functional.normalize(scores.softmax(dim=1), dim=1)
    starts = torch.searchsorted(rows, torch.tensor(batch.rows.ptr, device=rows.device)).tolist()
    found = []
    for (a, b), (start, stop) in zip(pairwise(batch.rows.ptr), pairwise(starts), strict=True):
        said, all_directions = scores[a:b], direction[a:b]
        middle = (all_directions.sum(dim=0).square().sum() - (b - a)) / max(b - a, 1) ** 2
        middle = middle.clamp(1e-9, 1 - 1e-6)
        for chosen in torch.split(rows[start:stop], _ROWS):
            alike = direction[chosen] @ all_directions.T
            signs = torch.where(alike > middle, (alike - middle) / (1 - middle), -alike / middle)
            itself = torch.arange(a, b, device=rows.device) == chosen[:, None]
            signs = torch.where(itself, torch.ones_like(signs), signs)
            positive, negative = (functional.leaky_relu(part, _SLOPE) @ said for part in (signs, -signs))
            found.append((positive.softmax(dim=1) - negative.softmax(dim=1) + scores[chosen]) / 2)
    return torch.cat(found) if found else scores[:0]
