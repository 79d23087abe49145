"""APFL (Deng, Kamani and Mahdavi, "Adaptive personalized federated learning", arXiv:2003.13461, 2020).

Every client trains its copy of the shared model w and a personal model v, and predicts with a mixture whose
weight α it learns:

    v̄ = α v + (1-α) w

    each local step, all gradients at the same point, w constant inside v̄:
        w ← Adam(w, ∇f(w))          v ← Adam(v, ∇_v f(v̄)) = Adam(v, α ∇f(v̄))
    once per round, at the first step, where w is the model that just arrived:
        α ← clip(α - η_α (⟨v - w, ∇f(v̄)⟩ + ρ α), 0, 1)

    server:  w ← Σ_k (n_k / Σ n) w_k

Travels down: w. Travels up: w_k, n_k, and α_k for the records; v and both optimizers stay.
docs/algorithms/apfl.md lists where this differs from the paper and from published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedspray.algorithms._averaging import ServerState
from fedspray.algorithms.base import Algorithm, supervised_loss
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import SHARES, TRAIN_NODES, Declared, each, mean, total
from fedspray.nn import ops
from fedspray.nn.optim import Adam, AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator


@dataclass(frozen=True)
class ClientState:
    """What stays at the client."""

    personal: Params
    """v."""
    alpha: Tensor
    """[K]: weight of the personal model."""
    shared: Params
    """w as the client left it; empty unless ``predict_with = "own"``."""
    personal_optimizer: AdamState = training_only()
    shared_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm[ServerState, ClientState]):
    """A personal model mixed with the shared one, by a learned weight."""

    one_model: ClassVar[bool] = False
    summary: ClassVar[str] = "personal GNN mixed with the averaged one; every client learns the mixing weight"
    citation: ClassVar[str] = "Deng, Kamani and Mahdavi, arXiv:2003.13461, 2020"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("the shared GNN after local training"),
        "num_train": total("number of training nodes; with weighting=uniform 1 if there are any", TRAIN_NODES),
        "alpha": each(
            "weight of the personal model",
            "for the records only",
            SHARES,
            reveals="how far the client prefers its own model to the common one",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the shared GNN"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {"mix": "logits", "alpha_decay": 0.02, "weighting": "uniform", "predict_with": "own"},
    }

    alpha_start: float = setting(0.5, "initial weight of the personal model (α)", least=0, most=1)
    alpha_lr: float | None = setting(None, "step size of α (η_α); none: the GNN's lr", least=0)
    alpha_update: str = setting(
        "round",
        "α moves at the first step of a round (round), at every step (step), or not at all (never)",
        choices=("round", "step", "never"),
    )
    alpha_decay: float = setting(0.0, "pull of α towards 0, the shared model (ρ)", least=0)
    mix: str = setting("params", "what α mixes: the two models' params or logits", choices=("params", "logits"))
    weighting: str = setting(
        "train", "averaging weights of w: training nodes (train) or all alike (uniform)", choices=("train", "uniform")
    )
    predict_with: str = setting(
        "average",
        "the shared model in predictions: the server's average, or the client's own before averaging",
        choices=("average", "own"),
    )

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedAvg's draw."""
        return ServerState(self.backbone.draw(task, torch_generator(seed, "backbone")))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """w for everyone."""
        return prefixed("gnn", expand(server.gnn, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the clients' copies of w; as before if none has training nodes."""
        return ServerState(part_of(message, "gnn")) if message["num_train"] > 0 else server

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """α of every client that trained, in the order of the record's ``trained``."""
        return {"alpha": message["alpha"].tolist()}

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """v = w; α is 0 without training nodes, since v would stay random forever."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState(
            personal=gnn,
            alpha=self.alpha_start * batch.num_train.sign(),
            shared=gnn if self.predict_with == "own" else {},
            personal_optimizer=self.empty_optimizer(gnn, batch),
            shared_optimizer=self.empty_optimizer(gnn, batch),
        )

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps of w on its own loss and of v on the mixture's."""
        shared = self._start(part_of(message, "gnn"), client.shared_optimizer, batch)
        personal = self._start(client.personal, client.personal_optimizer, batch)
        alpha = client.alpha
        for epoch in range(self.local_epochs):
            alpha = alpha.detach().requires_grad_()
            _, logits = self.backbone.train_outputs(shared.params, batch, seed, epoch)
            mixed = self._mixed_logits(alpha, personal, shared.params, logits, batch, seed, epoch)
            shared.step(supervised_loss(logits, batch) + supervised_loss(mixed, batch), personal)
            if self.alpha_update == "step" or (self.alpha_update == "round" and epoch == 0):
                alpha = self._step_alpha(alpha)
        gnn, shared_optimizer = shared.result()
        alpha = alpha.detach()
        kept = gnn if self.predict_with == "own" else {}
        trained, personal_optimizer = personal.result()
        uplink = {**prefixed("gnn", gnn), "num_train": self._weight(batch), "alpha": alpha}
        return ClientState(trained, alpha, kept, personal_optimizer, shared_optimizer), uplink

    def uplink_of_whole(self, uplink: Message, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        """With the weight of the whole client."""
        return {**uplink, "num_train": self._weight(batch)}

    def _weight(self, batch: GraphBatch) -> Tensor:
        """Each client's weight in the mean; 0 without training nodes."""
        return batch.num_train if self.weighting == "train" else batch.num_train.sign()

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The mixture of v and w."""
        shared = client.shared if self.predict_with == "own" else part_of(message, "gnn")
        if self.mix == "params":
            shares = dict.fromkeys(shared, client.alpha)
            return self.backbone.logits(_mix_params(shares, client.personal, shared), batch)
        own = self.backbone.logits(client.personal, batch)
        return _mix(ops.per_row(client.alpha, batch.rows), own, self.backbone.logits(shared, batch))

    def _start(self, params: Params, state: AdamState, batch: GraphBatch) -> Adam:
        own = self.backbone
        return self.start_optimizer(params, state, batch, own.lr, weight_decay=own.weight_decay, eps=own.adam_eps)

    def _mixed_logits(
        self, alpha: Tensor, personal: Adam, shared: Params, logits: Tensor, batch: GraphBatch, seed: int, epoch: int
    ) -> Tensor:
        """Logits of the mixture, with gradients to v and α but none to w (``logits`` are w's own)."""
        if self.mix == "params":
            constant = {name: value.detach() for name, value in shared.items()}
            mixture = _mix_params(personal.per_weight(alpha), personal.params, constant)
            return self.backbone.train_outputs(mixture, batch, seed, epoch)[1]
        _, own = self.backbone.train_outputs(personal.params, batch, seed, epoch)
        return _mix(ops.per_row(alpha, batch.rows), own, logits.detach())

    def _step_alpha(self, alpha: Tensor) -> Tensor:
        """One step down the gradient that the last backward pass left on α."""
        assert alpha.grad is not None
        gradient = alpha.grad.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) + self.alpha_decay * alpha.detach()
        rate = self.backbone.lr if self.alpha_lr is None else self.alpha_lr
        return (alpha.detach() - rate * gradient).clamp(0, 1)


def _mix_params(shares: Params, own: Params, shared: Params) -> Params:
    """v̄, weight by weight."""
    return {name: _mix(shares[name], own[name], shared[name]) for name in own}


def _mix(alpha: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    """α own + (1-α) shared; α has one number for each entry of the first axis."""
    share = alpha.view(-1, *[1] * (own.dim() - 1))
    return share * own + (1 - share) * shared
