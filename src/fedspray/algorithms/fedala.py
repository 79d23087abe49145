"""FedALA (Zhang et al., "Adaptive local aggregation for personalized federated learning", AAAI 2023).

A client does not overwrite its model θ_k with the global θ but mixes the two, weight by weight, with shares W
in [0, 1] that it learns on its own training nodes before it trains:

    θ̂_k = θ_k + W ⊙ (θ - θ_k)        top `mixed_layers` layers;  θ̂_k = θ below
    W ← clip(W - η · ∂L_k(θ̂_k)/∂W, 0, 1)        1 step a round, more in the first in which the models differ
    θ_k ← E steps of Adam on L_k from θ̂_k

Travels down and up: as for FedAvg, and one number up (the mean of W, for the record).
Predictions are those of θ̂_k with the θ received last and the W learned last. All layers mixed and η = 0:
W = 1 is FedAvg, W = 0 is Local. docs/algorithms/fedala.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.algorithms._averaging import ServerState
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import SHARES, TRAIN_NODES, Declared, each, mean, total
from fedspray.nn import ops
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import stream_key, torch_generator


@dataclass(frozen=True, kw_only=True)
class ClientState:
    """Adam's moments, the client's own model and the shares."""

    gnn_optimizer: AdamState = training_only()
    gnn: Params
    """θ_k, as it was sent last."""
    shares: Params
    """W: for each weight of the mixed layers, how much of the global one is taken."""
    learned: Tensor = training_only()
    """[K]: 1 once W has been learned, else 0."""


@dataclass(frozen=True, kw_only=True)
class FedALA(Algorithm[ServerState, ClientState]):
    """Federated averaging; clients mix the global model into their own by learned shares."""

    summary: ClassVar[str] = "FedAvg; each client learns, weight by weight, how much of the global GNN it takes"
    citation: ClassVar[str] = "Zhang et al., AAAI 2023"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
        "mean_share": each(
            "mean of the learned shares",
            "for the records only",
            SHARES,
            reveals="how far the client prefers the common model to its own",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}

    mixed_layers: int = setting(1, "mixed layers, counted from the output (p); 0 is FedAvg", least=0)
    share_lr: float = setting(1.0, "step size of the shares (η); 0 keeps their initial values", least=0)
    share_steps: int = setting(1, "steps of the shares in a round", least=0)
    first_share_steps: int = setting(20, "steps of the shares in the first round in which the models differ", least=0)
    share_start: float = setting(1.0, "initial shares: 1 takes the global model, 0 the client's own", least=0, most=1)
    share_sample: float = setting(
        0.8, "share of the training nodes, redrawn each round, to learn the shares on (s)", above=0, most=1
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedAvg's draw."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """θ for everyone; each client decides what to take."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the clients' whole models, weighted by training nodes."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """The client's model is the initial global one; shares are all alike."""
        gnn = self.backbone.init_params(task, batch, seed)
        layers = self.backbone.layer_names(task)
        mixed = [name for layer in layers[max(len(layers) - self.mixed_layers, 0) :] for name in layer]
        shares = {name: torch.full_like(gnn[name], self.share_start) for name in mixed}
        return ClientState(
            gnn_optimizer=self.empty_optimizer(gnn, batch),
            gnn=gnn,
            shares=shares,
            learned=torch.zeros(batch.num_clients, dtype=batch.dtype),
        )

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """Learns the shares, mixes, and takes E steps from there."""
        received = part_of(message, "gnn")
        shares, learned = self._learn_shares(client, received, batch, seed)
        start = _mix(client.gnn, received, shares)
        gnn, optimizer = self.fit(start, client.gnn_optimizer, batch, seed)
        uplink = {**prefixed("gnn", gnn), "num_train": batch.num_train, "mean_share": _mean(shares, batch)}
        return ClientState(gnn_optimizer=optimizer, gnn=gnn, shares=shares, learned=learned), uplink

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The mix of both models."""
        return self.backbone.logits(_mix(client.gnn, part_of(message, "gnn"), client.shares), batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """``mean_share``: how much of the global model each client that trained takes, on average."""
        return {"mean_share": message["mean_share"].tolist()}

    def _learn_shares(
        self, client: ClientState, received: Params, batch: GraphBatch, seed: int
    ) -> tuple[Params, Tensor]:
        """Projected gradient steps on W. None if both models are the same, as in the first round."""
        shares = client.shares
        if self.share_lr == 0 or not shares:
            return shares, client.learned
        differs = torch.stack([(received[name] != client.gnn[name]).flatten(1).any(dim=1) for name in shares]).any(0)
        steps = torch.where(client.learned > 0, self.share_steps, self.first_share_steps) * differs  # [K]
        sample = self._draw_sample(batch, seed)
        for step in range(int(steps.max())):
            leaves = {name: share.clone().requires_grad_() for name, share in shares.items()}
            mixed = _mix(client.gnn, received, leaves)
            _, logits = self.backbone.train_outputs(mixed, batch, stream_key(seed, "shares"), step)
            losses = functional.cross_entropy(logits[batch.train], batch.train_labels, reduction="none")
            gradients = torch.autograd.grad((losses * sample).sum(), list(leaves.values()))
            shares = {
                name: torch.where(
                    (step < steps).view(-1, *[1] * (share.ndim - 1)),
                    (share - self.share_lr * gradient).clamp(0, 1),
                    share,
                )
                for (name, share), gradient in zip(shares.items(), gradients, strict=True)
            }
        return shares, torch.maximum(client.learned, differs.to(client.learned.dtype))

    def _draw_sample(self, batch: GraphBatch, seed: int) -> Tensor:
        """[n_train]: 1/m for each of the m nodes of a client that are drawn (at least one), 0 for the others."""
        parts = []
        for k, size in zip(batch.client_ids, batch.train_rows.sizes, strict=True):
            order = torch.randperm(size, generator=torch_generator(seed, "share sample", k))
            parts.append((order < max(1, int(self.share_sample * size))).to(batch.dtype))
        chosen = torch.cat(parts).to(batch.device)
        return chosen / ops.per_row(ops.client_sum(chosen, batch.train_rows), batch.train_rows)


def _mix(own: Params, received: Params, shares: Params) -> Params:
    """θ_k + W ⊙ (θ - θ_k) where there are shares, θ elsewhere; exactly θ_k for W = 0 and θ for W = 1."""
    return {
        name: torch.lerp(own[name], value, shares[name]) if name in shares else value
        for name, value in received.items()
    }


def _mean(shares: Params, batch: GraphBatch) -> Tensor:
    """[K]; 1 if nothing is mixed, since all of the global model is taken then."""
    if not shares:
        return torch.ones_like(batch.num_train)
    return torch.cat([share.flatten(1) for share in shares.values()], dim=1).mean(dim=1)
