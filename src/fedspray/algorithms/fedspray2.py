"""FedSpray 2: personal GNNs beside one shared teacher that reads the labels around a node.

Every client trains a personal GNN ŷ. Clients share a light encoder ω = {g_e, g_q, g_p, S}, the teacher:

    e_i = relu(g_e(x_i / ‖x_i‖))           feature embedding
    q_i = softmax(g_q(e_i))                feature-only soft label
    z_i = onehot(y_i) for training nodes, else q_i
    h_i = (h1_i, h2_i): mean of z over neighbours, and over the ends of two-step walks that do not return
    p_i = softmax(g_p(e_i) + h_i S)        S [2C, C]: structure proxies, what a neighbour of each class says; start at 0

    client:   E steps of θ on CE(y, ŷ) + λ1 · mean KL(p ‖ ŷ);   G_k = Σ_i ∇(CE(y_i, q_i) + CE(y_i, p_i)), training nodes
    server:   one Adam step on Σ_k G_k / Σ_k n_k, the gradient of the pooled data: no client drifts
    predict:  (1-w) log ŷ + w log p - a log π_k,   π_k: the client's own class shares

The server chooses one (w, a) for all, by how many validation nodes each pair gets right, among those that are not
behind the GNN alone. A client whose own validation nodes put the blend clearly behind its GNN goes back to the GNN.
h_i never depends on y_i.

Travels down: ω, w, a. Travels up: G_k, n_k, and counts and losses of the choices. Everything up is only ever summed
over clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspray.algorithms._shift import (
    ACCURACY,
    SHIFTS,
    VALIDATION,
    choose,
    count_right,
    is_minority_val,
    log_shares,
    num_val,
)
from fedspray.algorithms._teacher import Blend, draw_teacher, embed, fuse, head, label_histograms, node_lengths
from fedspray.algorithms.base import Algorithm, Outputs, supervised_loss
from fedspray.backbones.base import Dropout, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import COUNTS, TRAIN_NODES, Declared, mean, total
from fedspray.nn import ops
from fedspray.nn.optim import Adam, AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import stream_key, torch_generator

BLENDS = tuple(i / 10 for i in range(11))
"""The teacher's weights w that ``blend = "auto"`` chooses among."""


@dataclass(frozen=True)
class ServerState:
    """What is shared, and how the choices did so far."""

    encoder: Params
    optimizer: AdamState
    choice_counts: Tensor
    """[2, W, A]: right predictions on all and on minority validation nodes, of each pair (w, a), fading."""
    choice_losses: Tensor
    """[W]: the loss on validation nodes with each w, fading."""
    num_val: Tensor
    """[]: validation nodes that they are counted over, fading."""


@dataclass(frozen=True)
class ClientState:
    """What stays at the client."""

    gnn: Params
    log_shares: Tensor
    """[K, C]: log π."""
    kept: Params
    """The GNN of the round with the smallest loss on the client's own validation nodes."""
    alone: Tensor | None
    """[K]: 1 where the client uses `kept` instead of the blend; None in models of earlier versions."""
    gnn_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class FedSpray2(Algorithm[ServerState, ClientState]):
    """Personal GNNs, blended with a shared teacher that is trained on pooled gradients."""

    summary: ClassVar[str] = "personal GNNs, blended with a shared teacher that reads the labels around a node"
    citation: ClassVar[str] = "this project, after Fu et al., KDD 2024"
    shares_gnn: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"prior_shift"})
    uplink: ClassVar[Declared] = {
        "gradient.*": total(
            "sum over the training nodes of the gradient of the teacher's loss",
            reveals="a sum over training nodes: features and labels can be inferred, the better the fewer nodes there "
            "are, and the gradient of a bias is the difference between predicted and true class counts",
        ),
        "num_train": total("number of training nodes", TRAIN_NODES),
        "choice_counts": total(
            "right predictions on all and on minority validation nodes, for each blend and shift",
            COUNTS,
            reveals=ACCURACY,
        ),
        "choice_losses": total(
            "sum of the cross-entropy on validation nodes, for each blend",
            reveals="how sure the model is of the client's validation nodes",
        ),
        "num_val": total("number of validation nodes", COUNTS, reveals=VALIDATION),
    }
    downlink: ClassVar[dict[str, str]] = {
        "encoder.*": "the teacher",
        "blend": "weight of the teacher in predictions (w)",
        "shift": "how far predictions are shifted towards a client's rare classes (a)",
    }

    embedding_dim: int = setting(64, "width of the teacher's embedding (D)", least=1)
    distill_weight: float = setting(
        0.0, "weight of the distillation loss of the GNN (λ1); 0: the GNN is Local's", least=0
    )
    confidence: float = setting(0.7, "unlabelled nodes are distilled only if max q_i exceeds this (τ)", least=0, most=1)
    encoder_lr: float = setting(0.02, "step size of the server's Adam for the teacher", above=0)
    encoder_weight_decay: float = setting(5e-4, "L2 penalty on the teacher's weights", least=0)
    encoder_dropout: float = setting(
        0.5, "share of the embedding dropped while the teacher is trained", least=0, below=1
    )
    blend: float | str = setting(
        "auto",
        "weight of the teacher in predictions (w): a number, or auto (by validation)",
        least=0,
        most=1,
        also=("auto",),
    )
    shift: float | str = setting(
        "auto", "exponent of the class shares in predictions (a): a number, or auto", least=0, most=1, also=("auto",)
    )
    tolerance: float = setting(
        0.05, "share by which a blend and shift may increase the errors on validation nodes", least=0
    )
    fading: float = setting(0.5, "share of the earlier counts kept each round", least=0, most=1)
    safety: float | str = setting(
        1.0,
        "standard errors by which a client's blend may be behind its own GNN on its validation nodes; off: any",
        least=0,
        also=("off",),
    )

    record_clip: float = setting(
        0.0,
        "largest length of one training node's gradient, for the link dp with level=record; 0: any",
        neutral=0.0,
        least=0,
    )
    reads_neighbours: bool = setting(
        True, "the teacher reads the labels around a node (h); false: h is 0", neutral=True
    )

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """A drawn teacher."""
        encoder = draw_teacher(task, self.embedding_dim, torch_generator(seed, "encoder"))
        counts, losses = torch.zeros(2, len(self._blends), len(self._shifts)), torch.zeros(len(self._blends))
        return ServerState(encoder, AdamState.zeros(encoder, 1), counts, losses, torch.zeros(()))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The teacher and the choice, for everyone."""
        blend, shift = (server.num_val.new_tensor(value) for value in self._choice(server))
        return expand({**prefixed("encoder", server.encoder), "blend": blend, "shift": shift}, len(client_ids))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """One step of Adam down the pooled gradient; the new counts and losses join the old ones."""
        num_train = message["num_train"]
        encoder, optimizer = server.encoder, server.optimizer
        if num_train > 0:
            steps = Adam(encoder, optimizer, lr=self.encoder_lr, weight_decay=self.encoder_weight_decay)
            steps.follow({name: value / num_train for name, value in part_of(message, "gradient").items()})
            encoder, optimizer = steps.result()
        names = ("choice_counts", "choice_losses", "num_val")
        seen = {name: self.fading * getattr(server, name) + message[name] for name in names}
        return replace(server, encoder=encoder, optimizer=optimizer, **seen)

    def _choice(self, server: ServerState) -> tuple[float, float]:
        """The pair (w, a) with the best minority accuracy among those with at most `tolerance` more errors than needed.

        Ties go to the higher overall accuracy, then to the smaller w, then to the smaller a. Pairs that are behind the
        GNN alone, on all nodes, on minority nodes or by their loss, are left out. Before anything was counted, w is in
        the middle and a is 0.
        """
        counts = server.choice_counts.flatten(1)
        place = len(self._blends) // 2 * len(self._shifts)
        if server.num_val > 0:
            losses = server.choice_losses.repeat_interleave(len(self._shifts))
            safe = (counts >= counts[:, :1]).all(dim=0) & (losses <= losses[0])  # the first pair is the GNN alone
            place = choose(counts, server.num_val, self.tolerance, safe if self._is_safe else None)
        return self._blends[place // len(self._shifts)], self._shifts[place % len(self._shifts)]

    @property
    def _is_safe(self) -> bool:
        """Whether the GNN alone is among the choices; a fixed blend is used as it is."""
        return self.safety != "off" and self.blend == "auto"

    @property
    def _blends(self) -> tuple[float, ...]:
        return BLENDS if self.blend == "auto" else (float(self.blend),)

    @property
    def _shifts(self) -> tuple[float, ...]:
        return SHIFTS if self.shift == "auto" else (float(self.shift),)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """The choice that the next message carries."""
        return dict(zip(("blend", "shift"), self._choice(server), strict=True))

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Local's GNN, and π: every class counts as if it had one node more, so that none is 0."""
        gnn = self.backbone.init_params(task, batch, seed)
        alone = torch.zeros_like(batch.num_train)
        return ClientState(gnn, log_shares(batch), gnn, alone, self.empty_optimizer(gnn, batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """Trains the GNN; takes the gradient of the teacher that was received; counts what each choice gets right."""
        targets = batch.train_targets
        if self.distill_weight > 0:
            targets = targets + self.distill_weight * self._soft_targets(message, batch)
        gnn, optimizer = self.fit(
            client.gnn,
            client.gnn_optimizer,
            batch,
            seed,
            lambda out: ops.soft_cross_entropy(out.logits, targets, batch.rows),
        )
        uplink = prefixed("gradient", self._gradient(message, batch, seed)) | {"num_train": batch.num_train}
        uplink |= self._count_choices(client, message, batch)
        trained = replace(client, gnn=gnn, gnn_optimizer=optimizer)
        return self.state_of_whole(trained, client, message, batch), uplink

    def state_of_whole(
        self, trained: ClientState, client: ClientState, message: Message, batch: GraphBatch
    ) -> ClientState:
        """Keeps the GNN if it is the best so far, and goes back to the kept one where the blend is clearly behind it.

        Clearly: by more than `safety` standard errors of the difference, on all or on minority validation nodes of the
        client, and not ahead by as much on the others.
        """
        if not self._is_safe or len(batch.val) == 0:
            return trained
        owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]

        def per_client(values: Tensor) -> Tensor:
            return own.new_zeros(batch.num_clients).index_add(0, owners, values.to(own.dtype))

        own = self.backbone.logits(client.gnn, batch)[batch.val]
        blended = self._shifted(client, message, batch)[batch.val]
        earlier = self._kept_logits(client, batch)[batch.val]
        losses = [cross_entropy(logits, labels, reduction="none") for logits in (own, earlier)]
        better = per_client(losses[0] - losses[1]) < 0
        kept = client.kept
        if better.any():
            kept = {name: torch.where(_like(better, value), client.gnn[name], value) for name, value in kept.items()}
        right, reference = (
            logits.argmax(dim=1) == labels for logits in (blended, torch.where(better[owners, None], own, earlier))
        )
        verdicts = own.new_zeros(batch.num_clients)
        for nodes in (torch.ones_like(right), is_minority_val(batch)):
            lead = per_client((right & nodes).to(own.dtype) - (reference & nodes).to(own.dtype))
            margin = float(self.safety) * per_client((right != reference) & nodes).sqrt()
            verdicts += (lead > margin).to(own.dtype) - (lead < -margin).to(own.dtype)
        return replace(trained, kept=kept, alone=(verdicts < 0).to(own.dtype))

    def uplink_of_whole(self, uplink: Message, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        """A sample's gradient stands for all training nodes, and choices are counted on all validation nodes."""
        weight = batch.num_train / uplink["num_train"].clamp(min=1)
        scaled = {
            name: torch.einsum("k,k...->k...", weight, value) for name, value in part_of(uplink, "gradient").items()
        }
        return {
            **prefixed("gradient", scaled),
            "num_train": batch.num_train,
            **self._count_choices(client, message, batch),
        }

    def _soft_targets(self, message: Message, batch: GraphBatch) -> Tensor:
        """p_i / n for the n nodes of a client that take part in the distillation, 0 for the others: [C, N].

        KL(p ‖ ŷ) and -Σ p log ŷ differ by the entropy of p, which is constant here.
        """
        confidence, _, log_targets = self._teach(message, batch)
        takes_part = (confidence > self.confidence).to(log_targets.dtype)
        takes_part[batch.train] = 1
        counts = ops.client_sum(takes_part, batch.rows).clamp(min=1)
        return log_targets.exp().T * (takes_part / ops.per_row(counts, batch.rows))

    def _gradient(self, message: Message, batch: GraphBatch, seed: int) -> Params:
        """The gradient of Σ_i CE(y_i, q_i) + CE(y_i, p_i) over each client's training nodes, with h held fixed."""
        rows, targets = batch.train_rows, batch.train_targets[:, batch.train]
        _, histograms, _ = self._teach(message, batch)
        encoder = {name: value.detach().requires_grad_() for name, value in part_of(message, "encoder").items()}
        drop = Dropout(self.encoder_dropout, batch, stream_key(seed, "encoder"), 0, rows)
        before = embed(encoder, rows)
        embedding, heard = drop(before.relu()), histograms[batch.train]
        feature_logits = head(encoder, "feature_head", embedding, rows)
        fusion_logits = fuse(encoder, embedding, heard, rows)

        def loss(weighted: Tensor) -> Tensor:
            losses = ops.soft_cross_entropy(feature_logits, weighted, rows)
            losses = losses + ops.soft_cross_entropy(fusion_logits, weighted, rows)
            return (batch.num_train * losses).sum()

        if self.record_clip > 0:
            ends = (before, feature_logits, fusion_logits)
            deltas = torch.autograd.grad(loss(targets), ends, retain_graph=True)
            targets = targets * (self.record_clip / node_lengths(deltas, embedding, heard)).clamp(max=1)
        gradients = torch.autograd.grad(loss(targets), list(encoder.values()))
        return dict(zip(encoder, gradients, strict=True))

    def _count_choices(self, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        """How many validation nodes the received model gets right with each blend and shift: all, and minority ones."""
        owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
        own, taught = (part[batch.val].T.contiguous() for part in self._both(client, message, batch))  # [C, n]
        counts, losses = [], []
        for blend in self._blends:
            mixed = (1 - blend) * own + blend * taught
            losses.append(mixed.logsumexp(dim=0) - mixed.gather(0, labels[None])[0])
            counts.append(count_right(mixed, self._shifts, client.log_shares, batch))
        sums = own.new_zeros(batch.num_clients, len(losses)).index_add(0, owners, torch.stack(losses, dim=1))
        return {"choice_counts": torch.stack(counts, dim=2), "choice_losses": sums, "num_val": num_val(batch)}

    # ---- teacher and prediction -------------------------------------------------------------------

    def _teach(self, message: Message, batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
        """max q [N], h [N, 2C] and log p [N, C] of all nodes, from what was received, without dropout."""
        encoder = part_of(message, "encoder")

        def answer() -> Tensor:
            embedding = embed(encoder, batch.rows).relu()
            labels = ops.probabilities(head(encoder, "feature_head", embedding, batch.rows)).T.contiguous()
            confidence = labels.amax(dim=1, keepdim=True)
            labels[batch.train] = torch.eye(batch.num_classes, dtype=batch.dtype, device=batch.device)[
                batch.train_labels
            ]
            histograms = label_histograms(labels, batch)
            if not self.reads_neighbours:
                histograms = torch.zeros_like(histograms)
            fusion_logits = fuse(encoder, embedding, histograms, batch.rows)
            return torch.cat([confidence, histograms, fusion_logits.log_softmax(dim=1)], dim=1)

        known = batch.answers.cached("fedspray2 teacher", encoder, answer)
        widths = [1, 2 * batch.num_classes, batch.num_classes]
        confidence, histograms, log_p = torch.split(known, widths, dim=1)
        return confidence[:, 0], histograms, log_p

    def _both(self, client: ClientState, message: Message, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """log ŷ and log p of all nodes, [N, C] each."""
        own = self.backbone.logits(self._blended_gnn(client, message), batch)
        return own.log_softmax(dim=1), self._teach(message, batch)[2]

    def _blended_gnn(self, client: ClientState, message: Message) -> Params:
        """ŷ of the blend; here what the client trains alone."""
        return client.gnn

    def loss_logits(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The blend, (1-w) log ŷ + w log p: neither the shift nor a client's own GNN have a say in the reported round.

        The shift moves the decision, and is not meant as a probability. Rounds in which more clients go back to their
        GNNs would seem worse.
        """
        own, taught = self._both(client, message, batch)
        share = ops.per_row(message["blend"], batch.rows)[:, None]
        return (1 - share) * own + share * taught

    def _shifted(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The blend, shifted towards classes that are rare at the client."""
        offsets = message["shift"][:, None] * client.log_shares
        return self.loss_logits(client, message, batch) - ops.per_row(offsets, batch.rows)

    def _kept_logits(self, client: ClientState, batch: GraphBatch) -> Tensor:
        return batch.answers.cached(
            "fedspray2 kept", client.kept, lambda: self.backbone.logits(client.kept, batch).log_softmax(dim=1)
        )

    def alone_logits(self, client: ClientState, batch: GraphBatch) -> Tensor | None:
        """The kept GNN; with distillation, or without safety, there is none that a client would have had alone."""
        is_known = self._is_safe and self.distill_weight == 0 and client.alone is not None
        return self._kept_logits(client, batch) if is_known else None

    def votes(self, client: ClientState, message: Message, batch: GraphBatch) -> dict[str, Tensor]:
        """The GNN, which is the kept one where a client went back to it, and the teacher."""
        own, taught = self._both(client, message, batch)
        return {"gnn": self._or_kept(client, own, batch), "shared_head": taught}

    def to_torch(self, client: ClientState, message: Message, task: Task) -> nn.Module:
        """GNN and teacher; it also takes ``labels`` [N], of training nodes, -1 for all others."""
        if client.alone is not None and client.alone.any():
            return self.backbone.to_torch({name: value[0] for name, value in client.kept.items()}, task)
        blended = self._blended_gnn(client, message)
        gnn = self.backbone.to_torch({name: value[0] for name, value in blended.items()}, task)
        encoder = {name: value[0] for name, value in part_of(message, "encoder").items()}
        return Blend(gnn, encoder, message["blend"][0], message["shift"][0] * client.log_shares[0])

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The shifted blend, or what the kept GNN says where a client went back to it."""
        return self._or_kept(client, self._shifted(client, message, batch), batch)

    def _or_kept(self, client: ClientState, logits: Tensor, batch: GraphBatch) -> Tensor:
        if client.alone is None or not client.alone.any():
            return logits
        return torch.where(ops.per_row(client.alone, batch.rows)[:, None] > 0, self._kept_logits(client, batch), logits)


def _like(per_client: Tensor, value: Tensor) -> Tensor:
    """[K] with as many axes as ``value`` [K, …]."""
    return per_client.view(-1, *(1,) * (value.dim() - 1))


# ---- with a shared GNN ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedServerState(ServerState):
    """FedSpray 2's, and the shared GNN."""

    shared_gnn: Params


@dataclass(frozen=True)
class SharedClientState(ClientState):
    """FedSpray 2's, and Adam's memory for the shared GNN."""

    shared_optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class FedSpray2Shared(FedSpray2):
    """FedSpray 2 that blends its teacher with one GNN for all, averaged as in FedProx: for graphs with few labels.

    client:   E steps from θ on L_k(θ_k) + μ/2 · ‖θ_k - θ‖²;   else as FedSpray 2, with a GNN of its own
    server:   θ ← Σ_k (n_k / Σ n) θ_k;                         else as FedSpray 2
    predict:  (1-w) log ŷ_θ + w log p - a log π_k,   or the client's own GNN where that is clearly better

    So θ is FedProx's and the client's own GNN is Local's, both bit for bit.
    """

    summary: ClassVar[str] = "FedSpray 2 that blends its teacher with one averaged GNN for all"
    shares_gnn: ClassVar[bool] = True
    one_model: ClassVar[bool] = False
    uplink: ClassVar[Declared] = {**FedSpray2.uplink, "gnn.*": mean("the shared GNN after local training")}
    downlink: ClassVar[dict[str, str]] = {**FedSpray2.downlink, "gnn.*": "the shared GNN"}

    proximal_weight: float = setting(
        0.01, "weight of the squared distance to the shared GNN (μ); 0: plain averaging", least=0
    )

    def init_server(self, task: Task, seed: int) -> ServerState:
        """FedProx's draw too."""
        gnn = self.backbone.draw(task, torch_generator(seed, "backbone"))
        return SharedServerState(**vars(super().init_server(task, seed)), shared_gnn=gnn)

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The shared GNN too."""
        assert isinstance(server, SharedServerState)
        return {**super().broadcast(server, client_ids), **prefixed("gnn", expand(server.shared_gnn, len(client_ids)))}

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the clients' GNNs too; as before if nobody has training nodes."""
        updated = super().server_update(server, message, client_ids)
        assert isinstance(updated, SharedServerState)
        return replace(updated, shared_gnn=part_of(message, "gnn")) if message["num_train"] > 0 else updated

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """A second empty optimizer."""
        own = super().init_clients(task, batch, seed)
        return SharedClientState(**vars(own), shared_optimizer=self.empty_optimizer(own.gnn, batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """Trains the shared GNN too."""
        assert isinstance(client, SharedClientState)
        start = part_of(message, "gnn")

        def loss(out: Outputs) -> Tensor:
            return supervised_loss(out.logits, batch) + self.proximal_weight / 2 * out.optimizer.distance(start)

        gnn, optimizer = self.fit(start, client.shared_optimizer, batch, seed, loss if self.proximal_weight else None)
        trained, uplink = super().client_update(client, message, batch, seed)
        assert isinstance(trained, SharedClientState)
        return replace(trained, shared_optimizer=optimizer), {**uplink, **prefixed("gnn", gnn)}

    def uplink_of_whole(self, uplink: Message, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        """The GNN is sent as the sample trained it."""
        return {**super().uplink_of_whole(uplink, client, message, batch), **prefixed("gnn", part_of(uplink, "gnn"))}

    def _blended_gnn(self, client: ClientState, message: Message) -> Params:
        return part_of(message, "gnn")
