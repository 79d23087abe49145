"""Variants of FedSpray 2 that were tried on validation nodes; `trials.csv` has what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms import fedspray2
from fedspray.algorithms._teacher import embed, fuse, head, label_histograms
from fedspray.algorithms.fedspray2 import FedSpray2
from fedspray.backbones.base import Dropout, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.nn import ops
from fedspray.nn.optim import Adam, AdamState
from fedspray.nn.tree import Message, Params, part_of, prefixed, training_only
from fedspray.seeds import stream_key

# ---- the GNN ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoppedState:
    """With the GNN that had the smallest loss on the client's own validation nodes."""

    gnn: Params
    log_shares: Tensor
    trained: Params
    best_loss: Tensor
    gnn_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class Stopped(FedSpray2):
    """Each client blends the GNN of its own best round, and trains on with the last one."""

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> Any:
        """As always."""
        own = super().init_clients(task, batch, seed)
        worst = torch.full((batch.num_clients,), torch.inf, dtype=batch.dtype)
        return StoppedState(own.gnn, own.log_shares, own.gnn, worst, own.gnn_optimizer)

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        """Trains the last GNN, and keeps it if it is better."""
        now = fedspray2.ClientState(client.trained, client.log_shares, client.gnn_optimizer)
        updated, uplink = super().client_update(now, message, batch, seed)
        uplink |= self._count_choices(client, message, batch)
        logits = self.backbone.logits(updated.gnn, batch)[batch.val].log_softmax(dim=1)
        losses = -logits[torch.arange(len(batch.val)), batch.labels[batch.val]]
        owners = batch.rows.client_of[batch.val]
        sums = losses.new_zeros(batch.num_clients).index_add(0, owners, losses)
        better = sums < client.best_loss
        kept = {
            name: torch.where(better.view(-1, *[1] * (value.dim() - 1)), updated.gnn[name], value)
            for name, value in client.gnn.items()
        }
        best = torch.where(better, sums, client.best_loss)
        return StoppedState(kept, client.log_shares, updated.gnn, best, updated.gnn_optimizer), uplink


@dataclass(frozen=True)
class JudgedState:
    """With this client's own counts of right validation predictions."""

    gnn: Params
    log_shares: Tensor
    counts: Tensor
    """[K, 2, W, A], fading."""
    gnn_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class Judged(FedSpray2):
    """Clients remember how each pair did on their own validation nodes."""

    margin: float = setting(1.0, "standard errors")

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> Any:
        """As always."""
        own = super().init_clients(task, batch, seed)
        counts = torch.zeros(batch.num_clients, 2, len(self._blends), len(self._shifts), dtype=batch.dtype)
        return JudgedState(own.gnn, own.log_shares, counts, own.gnn_optimizer)

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        """As always, and counts."""
        updated, uplink = super().client_update(client, message, batch, seed)
        counts = self.fading * client.counts + uplink["choice_counts"]
        return JudgedState(updated.gnn, client.log_shares, counts, updated.gnn_optimizer), uplink


@dataclass(frozen=True, kw_only=True)
class SafeChoice(Judged):
    """A client goes back to Local where the pooled pair is worse on its own validation nodes, by a margin."""

    def loss_logits(self, client: Any, message: Message, batch: GraphBatch) -> Tensor:
        """The blend with this client's w."""
        return super().loss_logits(client, self._own(client, message), batch)

    def predict(self, client: Any, message: Message, batch: GraphBatch) -> Tensor:
        """With this client's w and a."""
        return super().predict(client, self._own(client, message), batch)

    def _own(self, client: Any, message: Message) -> Message:
        places = [
            (message["blend"] * 10).round().long().clamp(max=len(self._blends) - 1),
            (message["shift"] * 10).round().long().clamp(max=len(self._shifts) - 1),
        ]
        k = torch.arange(len(client.counts))
        memory = 1 / (1 - self.fading) if self.fading < 1 else 1.0
        ours, local = client.counts[k, 0, places[0], places[1]] / memory, client.counts[:, 0, 0, 0] / memory
        behind = (local - ours) > self.margin * (local + ours).clamp(min=1).sqrt() * 0.3
        return {**message, **{name: torch.where(behind, 0, message[name]) for name in ("blend", "shift")}}


@dataclass(frozen=True, kw_only=True)
class AutoDistill(Judged):
    """Only clients whose own validation nodes the teacher gets more right than the GNN learn from it."""

    def _soft_targets(self, message: Message, batch: GraphBatch) -> Tensor:
        return super()._soft_targets(message, batch) * ops.per_row(self._believes, batch.rows)

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        """As always, with a λ1 for each client."""
        gap = client.counts[:, 0, -1, 0] - client.counts[:, 0, 0, 0]
        object.__setattr__(self, "_believes", (gap > 0).to(batch.dtype))
        return super().client_update(client, message, batch, seed)


# ---- the teacher --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Surrounded(FedSpray2):
    """The fusion head also sees the mean embedding of the neighbours, held fixed as the histograms are."""

    def init_server(self, task: Task, seed: int) -> Any:
        """With more proxies."""
        server = super().init_server(task, seed)
        width = 2 * task.num_classes + self.embedding_dim
        encoder = {**server.encoder, "proxies": torch.zeros(width, task.num_classes)}
        return replace(server, encoder=encoder, optimizer=AdamState.zeros(encoder, 1))

    def _teach(self, message: Message, batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
        encoder = part_of(message, "encoder")

        def answer() -> Tensor:
            embedding = embed(encoder, batch.rows)
            labels = ops.probabilities(head(encoder, "feature_head", embedding, batch.rows)).T.contiguous()
            confidence = labels.amax(dim=1, keepdim=True)
            labels[batch.train] = torch.eye(batch.num_classes, dtype=batch.dtype)[batch.train_labels]
            around = ops.propagate(batch.mean_adjacency, embedding, batch.rows.ptr)
            context = torch.cat([label_histograms(labels, batch), around], dim=1)
            logits = fuse(encoder, embedding, context, batch.rows)
            return torch.cat([confidence, context, logits.log_softmax(dim=1)], dim=1)

        known = batch.answers.ask("surrounded", encoder, answer)
        width = known.shape[1] - 1 - batch.num_classes
        confidence, context, log_p = torch.split(known, [1, width, batch.num_classes], dim=1)
        return confidence[:, 0], context, log_p


@dataclass(frozen=True, kw_only=True)
class Propagated(FedSpray2):
    """A light shared GNN: e = relu(v + (Mv) U + b), v = g_e(x / ‖x‖), M the mean over neighbours; U starts at 0."""

    hops: int = setting(1, "how often v is propagated")

    def init_server(self, task: Task, seed: int) -> Any:
        """With U."""
        server = super().init_server(task, seed)
        width = self.embedding_dim
        encoder = {**server.encoder} | {f"around{hop}": torch.zeros(width, width) for hop in range(self.hops)}
        return replace(server, encoder=encoder, optimizer=AdamState.zeros(encoder, 1))

    def _embed(self, encoder: Params, batch: GraphBatch) -> Tensor:
        rows = batch.rows
        v = ops.feature_linear(rows, encoder["embedding.weight"]) * rows.to_unit_length[:, None]
        total = v + ops.per_row(encoder["embedding.bias"], rows)
        for hop in range(self.hops):
            v = ops.propagate(batch.mean_adjacency, v, rows.ptr)
            total = total + ops.linear(v, rows.ptr, encoder[f"around{hop}"])
        return total.relu()

    def _teach(self, message: Message, batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
        encoder = part_of(message, "encoder")

        def answer() -> Tensor:
            embedding = self._embed(encoder, batch)
            labels = ops.probabilities(head(encoder, "feature_head", embedding, batch.rows)).T.contiguous()
            confidence = labels.amax(dim=1, keepdim=True)
            labels[batch.train] = torch.eye(batch.num_classes, dtype=batch.dtype)[batch.train_labels]
            histograms = label_histograms(labels, batch)
            logits = fuse(encoder, embedding, histograms, batch.rows)
            return torch.cat([confidence, histograms, logits.log_softmax(dim=1)], dim=1)

        known = batch.answers.ask("propagated", encoder, answer)
        confidence, histograms, log_p = torch.split(known, [1, 2 * batch.num_classes, batch.num_classes], dim=1)
        return confidence[:, 0], histograms, log_p

    def _gradient(self, message: Message, batch: GraphBatch, seed: int) -> Params:
        rows, targets = batch.train_rows, batch.train_targets[:, batch.train]
        _, histograms, _ = self._teach(message, batch)
        encoder = {name: value.detach().requires_grad_() for name, value in part_of(message, "encoder").items()}
        drop = Dropout(self.encoder_dropout, batch, stream_key(seed, "encoder"), 0, rows)
        embedding = drop(self._embed(encoder, batch)[batch.train])
        losses = ops.soft_cross_entropy(head(encoder, "feature_head", embedding, rows), targets, rows)
        logits = fuse(encoder, embedding, histograms[batch.train], rows)
        losses = losses + ops.soft_cross_entropy(logits, targets, rows)
        gradients = torch.autograd.grad((batch.num_train * losses).sum(), list(encoder.values()))
        return dict(zip(encoder, gradients, strict=True))


@dataclass(frozen=True, kw_only=True)
class Apart(FedSpray2):
    """A light shared GNN for p alone: p sees relu(v + (Mv) U + b), q and with it z stay feature-only.

    In `Propagated` q_j remembers the label of a training node i through x_i, and h_i brings it back to i.
    """

    def init_server(self, task: Task, seed: int) -> Any:
        """With U."""
        server = super().init_server(task, seed)
        encoder = {**server.encoder, "around": torch.zeros(self.embedding_dim, self.embedding_dim)}
        return replace(server, encoder=encoder, optimizer=AdamState.zeros(encoder, 1))

    def _embeddings(self, encoder: Params, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        rows = batch.rows
        v = ops.feature_linear(rows, encoder["embedding.weight"]) * rows.to_unit_length[:, None]
        own = v + ops.per_row(encoder["embedding.bias"], rows)
        around = ops.propagate(batch.mean_adjacency, v, rows.ptr)
        return own.relu(), (own + ops.linear(around, rows.ptr, encoder["around"])).relu()

    def _teach(self, message: Message, batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
        encoder = part_of(message, "encoder")

        def answer() -> Tensor:
            own, propagated = self._embeddings(encoder, batch)
            labels = ops.probabilities(head(encoder, "feature_head", own, batch.rows)).T.contiguous()
            confidence = labels.amax(dim=1, keepdim=True)
            labels[batch.train] = torch.eye(batch.num_classes, dtype=batch.dtype)[batch.train_labels]
            histograms = label_histograms(labels, batch)
            logits = fuse(encoder, propagated, histograms, batch.rows)
            return torch.cat([confidence, histograms, logits.log_softmax(dim=1)], dim=1)

        known = batch.answers.ask("apart", encoder, answer)
        confidence, histograms, log_p = torch.split(known, [1, 2 * batch.num_classes, batch.num_classes], dim=1)
        return confidence[:, 0], histograms, log_p

    def _gradient(self, message: Message, batch: GraphBatch, seed: int) -> Params:
        rows, targets = batch.train_rows, batch.train_targets[:, batch.train]
        _, histograms, _ = self._teach(message, batch)
        encoder = {name: value.detach().requires_grad_() for name, value in part_of(message, "encoder").items()}
        drop = Dropout(self.encoder_dropout, batch, stream_key(seed, "encoder"), 0, rows)
        own, propagated = (drop(part[batch.train]) for part in self._embeddings(encoder, batch))
        losses = ops.soft_cross_entropy(head(encoder, "feature_head", own, rows), targets, rows)
        logits = fuse(encoder, propagated, histograms[batch.train], rows)
        losses = losses + ops.soft_cross_entropy(logits, targets, rows)
        gradients = torch.autograd.grad((batch.num_train * losses).sum(), list(encoder.values()))
        return dict(zip(encoder, gradients, strict=True))


# ---- the blend ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateServer:
    """With the gate and its optimizer."""

    encoder: Params
    optimizer: AdamState
    choice_counts: Tensor
    choice_losses: Tensor
    num_val: Tensor
    gate: Params
    gate_optimizer: AdamState


@dataclass(frozen=True, kw_only=True)
class Gated(FedSpray2):
    """Weights of log ŷ and log p that depend on the node, learnt on validation nodes by pooled gradients.

    The weights are softplus(α·f_i) and softplus(β·f_i), f_i: 1, the largest ŷ and p, whether both agree, whether the
    node has neighbours, log degree. The shift is chosen by counts, as always.
    """

    experts: ClassVar[tuple[str, ...]] = ("own", "taught")
    gate_lr: float = setting(0.05, "step size of the gate's Adam")
    gate_decay: float = setting(0.0, "its weight decay")
    facts: bool = setting(True, "False: the weights of the experts are the same for all nodes")

    @property
    def _blends(self) -> tuple[float, ...]:
        return (2.0,) if self.blend == "auto" else (float(self.blend),)

    def init_server(self, task: Task, seed: int) -> Any:
        """With a gate that gives both the same say."""
        own = super().init_server(task, seed)
        gate = {name: torch.zeros(4 + len(self.experts)) for name in self.experts}
        return GateServer(**vars(own), gate=gate, gate_optimizer=AdamState.zeros(gate, 1))

    def broadcast(self, server: Any, client_ids: Sequence[int]) -> Message:
        """And the gate."""
        gate = {name: value.expand(len(client_ids), -1) for name, value in server.gate.items()}
        return super().broadcast(server, client_ids) | prefixed("gate", gate)

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        """And the gate's gradient, summed over validation nodes."""
        updated, uplink = super().client_update(client, message, batch, seed)
        gate = {name: value.detach().requires_grad_() for name, value in part_of(message, "gate").items()}
        with torch.enable_grad():
            logits = self._mix(client, message, batch, gate)[batch.val]
            loss = torch.nn.functional.cross_entropy(logits, batch.labels[batch.val], reduction="sum")
            gradients = torch.autograd.grad(loss, list(gate.values()))
        return updated, uplink | prefixed("gate", dict(zip(gate, gradients, strict=True)))

    def server_update(self, server: Any, message: Message, client_ids: Sequence[int]) -> Any:
        """And one step of the gate."""
        own = super().server_update(server, message, client_ids)
        steps = Adam(server.gate, server.gate_optimizer, lr=self.gate_lr, weight_decay=self.gate_decay)
        total = message["num_val"].sum().clamp(min=1)
        steps.follow({name: value.sum(dim=0) / total for name, value in part_of(message, "gate").items()})
        return GateServer(*vars(own).values(), *steps.result())

    def _said(self, client: Any, message: Message, batch: GraphBatch) -> tuple[Tensor, ...]:
        """The experts' log probabilities."""
        return self._both(client, message, batch)

    def _mix(self, client: Any, message: Message, batch: GraphBatch, gate: Params) -> Tensor:
        said = [part.detach() for part in self._said(client, message, batch)]
        degrees = torch.from_numpy(batch.neighbours.sum(axis=1)).to(said[0].dtype)
        guesses = [part.argmax(dim=1) for part in said]
        facts = [
            torch.ones_like(degrees),
            *(part.amax(dim=1).exp() for part in said),
            (guesses[0] == guesses[1]).to(degrees.dtype),
            (degrees > 0).to(degrees.dtype),
            degrees.log1p() / 3,
        ]
        known = torch.stack(facts, dim=1)
        if not self.facts:
            known = known * (torch.arange(known.shape[1]) == 0)
        weights = [
            torch.nn.functional.softplus((ops.per_row(gate[name], batch.rows) * known).sum(dim=1, keepdim=True))
            for name in self.experts
        ]
        return torch.stack([weight * part for weight, part in zip(weights, said, strict=True)]).sum(dim=0)

    def _count_choices(self, client: Any, message: Message, batch: GraphBatch) -> Message:
        owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
        mixed = self._mix(client, message, batch, part_of(message, "gate"))[batch.val].log_softmax(dim=1).T
        offsets = torch.tensor(self._shifts, dtype=mixed.dtype)[:, None, None] * client.log_shares[owners].T
        minority = (labels != batch.train_class_counts.argmax(dim=1)[owners]) & (batch.num_train[owners] > 0)
        right = (mixed - offsets).argmax(dim=1) == labels
        both = torch.stack([right, right & minority]).movedim(2, 0).to(mixed.dtype)
        counts = mixed.new_zeros(batch.num_clients, *both.shape[1:]).index_add(0, owners, both)
        num_val = mixed.new_zeros(batch.num_clients).index_add(0, owners, mixed.new_ones(len(owners)))
        none = mixed.new_zeros(batch.num_clients, 1)
        return {"choice_counts": counts[:, :, None], "choice_losses": none, "num_val": num_val}

    def loss_logits(self, client: Any, message: Message, batch: GraphBatch) -> Tensor:
        """The gate's mix."""
        return self._mix(client, message, batch, part_of(message, "gate")).log_softmax(dim=1)


@dataclass(frozen=True, kw_only=True)
class Third(Gated):
    """Three experts: ŷ, p, and r = softmax(g_r relu(v + (Mv) U + b)), a light shared GNN without label histograms."""

    experts: ClassVar[tuple[str, ...]] = ("own", "taught", "third")

    def init_server(self, task: Task, seed: int) -> Any:
        """With U and g_r, which starts at g_p."""
        server = super().init_server(task, seed)
        encoder = {
            **server.encoder,
            "around": torch.zeros(self.embedding_dim, self.embedding_dim),
            "third.weight": server.encoder["fusion_head.weight"],
            "third.bias": server.encoder["fusion_head.bias"],
        }
        return replace(server, encoder=encoder, optimizer=AdamState.zeros(encoder, 1))

    def _third(self, encoder: Params, batch: GraphBatch) -> Tensor:
        """relu(v + (Mv) U + b)."""
        rows = batch.rows
        v = ops.feature_linear(rows, encoder["embedding.weight"]) * rows.to_unit_length[:, None]
        around = ops.linear(ops.propagate(batch.mean_adjacency, v, rows.ptr), rows.ptr, encoder["around"])
        return (v + around + ops.per_row(encoder["embedding.bias"], rows)).relu()

    def _said(self, client: Any, message: Message, batch: GraphBatch) -> tuple[Tensor, ...]:
        encoder = part_of(message, "encoder")

        def answer() -> Tensor:
            return head(encoder, "third", self._third(encoder, batch), batch.rows).log_softmax(dim=1)

        return *self._both(client, message, batch), batch.answers.ask("third", encoder, answer)

    def _gradient(self, message: Message, batch: GraphBatch, seed: int) -> Params:
        rows, targets = batch.train_rows, batch.train_targets[:, batch.train]
        encoder = {name: value.detach().requires_grad_() for name, value in part_of(message, "encoder").items()}
        drop = Dropout(self.encoder_dropout, batch, stream_key(seed, "third"), 0, rows)
        logits = head(encoder, "third", drop(self._third(encoder, batch)[batch.train]), rows)
        losses = batch.num_train * ops.soft_cross_entropy(logits, targets, rows)
        gradients = torch.autograd.grad(losses.sum(), list(encoder.values()), allow_unused=True)
        plain = {name: v for name, v in message.items() if not name.startswith(("encoder.third", "encoder.around"))}
        first = super()._gradient(plain, batch, seed)
        found = dict(zip(encoder, gradients, strict=True))
        return {name: sum_of(first.get(name), found[name]) for name in encoder}


def sum_of(a: Tensor | None, b: Tensor | None) -> Tensor:
    """The sum of those that are there."""
    parts = [part for part in (a, b) if part is not None]
    return torch.stack(parts).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class GatedApart(Gated, Apart):
    """Both."""


@dataclass(frozen=True, kw_only=True)
class GatedSurrounded(Gated, Surrounded):
    """Both."""
