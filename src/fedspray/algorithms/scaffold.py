"""SCAFFOLD (Karimireddy et al., "Stochastic controlled averaging for federated learning", ICML 2020).

Client k keeps c_k, roughly its gradient at the global model θ; the server keeps their mean c. Local
steps are corrected by the difference, so they go where all clients together would go:

    θ_k ← θ;   E times:  θ_k ← θ_k - η (∇L_k(θ_k) - c_k + c)
    c_k ← c_k - c + (θ - θ_k) / (E η)                 option II of the paper: no extra gradient is needed
    server:  θ ← θ + η_s (Σ_k p_k θ_k - θ)            c ← Σ_k p_k c_k,   p_k = n_k / Σ n

Travels down: θ and c. Travels up: θ_k, the change of c_k, and n_k.
The steps are plain SGD: c_k is a mean gradient only if a step is a multiple of the gradient, which Adam's are
not. So `lr`, `adam_eps` and `reset_optimizer` have no effect here; use `init=glorot` for a
network with hidden layers. With one client c_k = c, and what is left is SGD.
docs/algorithms/scaffold.md lists the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms._personal import grow
from fedspray.algorithms.base import Algorithm, supervised_loss
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, Declared, each, mean
from fedspray.nn.optim import SGD
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator


@dataclass(frozen=True)
class ServerState:
    """The global model and the mean control."""

    gnn: Params
    control: Params
    """c: the mean of the controls of all clients that have trained so far."""
    weights: Tensor
    """[M]: each client's weight in that mean, by its id; 0 for one that has not trained yet."""


@dataclass(frozen=True)
class ClientState:
    """A client keeps its control only."""

    control: Params = training_only()


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Algorithm[ServerState, ClientState]):
    """Federated averaging of SGD steps, corrected for each client's drift."""

    summary: ClassVar[str] = "FedAvg with SGD; control variates keep clients from drifting apart"
    citation: ClassVar[str] = "Karimireddy et al., ICML 2020"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the GNN after local training"),
        "control.*": mean("change of the client's control"),
        "num_train": each(
            "number of training nodes; with weighting=uniform 1 if there are any",
            "the mean control uses each client's last weight",
            TRAIN_NODES,
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN", "control.*": "the mean control"}
    ignores: ClassVar[frozenset[str]] = frozenset({"lr", "adam_eps", "reset_optimizer"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"init": "glorot", "weighting": "uniform"}}

    sgd_lr: float = setting(0.3, "SGD's step size at the clients (η)", above=0)
    server_lr: float = setting(1.0, "the server's step towards the clients' mean (η_s); 1 goes all the way", above=0)
    weighting: str = setting(
        "train", "weights p_k of the clients: train nodes, or uniform", choices=("train", "uniform")
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """The same draw as FedAvg's; nobody has a control yet."""
        gnn = self.backbone.draw(task, torch_generator(seed, "backbone"))
        return ServerState(gnn, {name: torch.zeros_like(value) for name, value in gnn.items()}, torch.zeros(0))

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Controls of 0: the first round is FedAvg with SGD."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState({name: torch.zeros_like(value) for name, value in gnn.items()})

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Model and mean control for everyone."""
        return expand({**prefixed("gnn", server.gnn), **prefixed("control", server.control)}, len(client_ids))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E corrected steps of SGD, and the control that they imply."""
        start, mean = part_of(message, "gnn"), part_of(message, "control")
        correction = {name: mean[name] - own for name, own in client.control.items()}
        steps = SGD(start, lr=self.sgd_lr, weight_decay=self.backbone.weight_decay)
        for epoch in range(self.local_epochs):
            _, logits = self.backbone.train_outputs(steps.params, batch, seed, epoch)
            # ⟨c - c_k, θ_k⟩ has the gradient c - c_k, which is its only purpose.
            steps.step(supervised_loss(logits, batch) + _inner(correction, steps.params))
        gnn = steps.result()
        span = self.local_epochs * self.sgd_lr
        change = {name: (start[name] - gnn[name]) / span - mean[name] for name in gnn}
        control = {name: own + change[name] for name, own in client.control.items()}
        uplink = {**prefixed("gnn", gnn), **prefixed("control", change)}
        return ClientState(control), self.uplink_of_whole(uplink, client, message, batch)

    def uplink_of_whole(self, uplink: Message, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        """With the client's weight in both means; one without training nodes has none."""
        return {**uplink, "num_train": batch.num_train if self.weighting == "train" else batch.num_train.sign()}

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """A step to the clients' mean; c stays exactly the mean of all controls, absent clients included."""
        now = message["num_train"]
        if not now.any():
            return server
        before = server.weights.sum()
        weights = grow(server.weights, client_ids, now.new_zeros(())).index_copy(0, torch.tensor(client_ids), now)
        total, heard = weights.sum(), now.sum()
        gnn = {
            name: torch.lerp(server.gnn[name], value, self.server_lr) for name, value in part_of(message, "gnn").items()
        }
        control = {
            name: server.control[name] * (before / total) + value * (heard / total)
            for name, value in part_of(message, "control").items()
        }
        return ServerState(gnn, control, weights)

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The global model."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """``control``: length of c; ``control_change``: of what each client that trained added to its own."""
        change = torch.cat([value.flatten(1) for value in part_of(message, "control").values()], dim=1)
        control = torch.cat([value.flatten() for value in server.control.values()])
        return {"control": float(control.norm()), "control_change": change.norm(dim=1).tolist()}


def _inner(a: Params, b: Params) -> Tensor:
    """⟨a, b⟩ over all weights of each client, [K]."""
    return torch.stack([(value * b[name]).flatten(1).sum(dim=1) for name, value in a.items()]).sum(dim=0)
