"""FedSpray (Fu et al., "Federated graph learning with structure proxy alignment", KDD 2024).

Every client trains a personal GNN θ. Clients share only a light feature-structure encoder
ω = {embedding g_e, fusion head g_p, feature head g_q} and one vector per class, the structure proxies S:

    e_i = relu(g_e(x_i))                   feature embedding
    q_i = softmax(g_q(e_i))                feature-only soft label
    s_i = S[y_i] for training nodes, else q_i S
    p_i = softmax(g_p(combine(e_i, s_i)))  soft target, free of the client's own neighbourhoods

    Phase 1 (θ):          L_G = CE(y, ŷ) + λ1 · mean KL(p ‖ ŷ)
    Phase 2 (ω, s_i):     L_F = CE(y, q) + λ2 · mean KL(ŷ ‖ p)     training nodes only

    server:  ω = Σ_k n_k ω_k / Σ n        S[j] = Σ_k a_jk S_k[j] / Σ_k a_jk,   a_jk = share of class j in client k

Travels down: ω, S. Travels up: ω, the client's class means of s_i, n_k and a_jk. The GNN, the node proxies
and all moments stay. Where the paper and the released code differ, both values are settings (`presets`);
docs/algorithms/fedspray.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.rows import NodeRows
from fedspray.errors import InputError
from fedspray.messages import CLASS_VECTORS, COUNTS, SHARES, TRAIN_NODES, Declared, mean, total
from fedspray.nn import init, ops
from fedspray.nn.layers import Linear
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator

BLENDS = tuple(i / 20 for i in range(13))
"""The weights of the feature head that ``blend = "auto"`` chooses among: 0, 0.05 … 0.6."""


@dataclass(frozen=True)
class ServerState:
    """What is shared."""

    encoder: Params
    class_proxies: Tensor
    """[C, D]."""
    blend_score: Tensor
    """[len(BLENDS)]: running validation score of each blend; empty unless ``blend = "auto"``."""


@dataclass(frozen=True)
class ClientState:
    """What stays at the client."""

    gnn: Params
    gnn_optimizer: AdamState = training_only()
    encoder_optimizer: AdamState = training_only()
    node_proxies: Tensor = training_only(per_train_node=True)
    """[n_train, D]: one free vector for each training node."""
    proxy_optimizer: AdamState = training_only(per_train_node=True)


@dataclass(frozen=True, kw_only=True)
class FedSpray(Algorithm[ServerState, ClientState]):
    """Personal GNNs that learn from a shared feature-structure encoder with aligned class proxies."""

    summary: ClassVar[str] = "personal GNNs, distilled from a shared encoder with aligned structure proxies"
    citation: ClassVar[str] = "Fu et al., KDD 2024"
    shares_gnn: ClassVar[bool] = False
    uplink: ClassVar[Declared] = {
        "encoder.*": mean("the feature-structure encoder after local training"),
        "class_proxies": mean("mean of the node proxies of each class", CLASS_VECTORS, weight="class_ratios"),
        "class_ratios": total(
            "share of each class among the training nodes",
            SHARES,
            reveals="the label distribution of the training nodes, exactly",
        ),
        "num_train": total("number of training nodes", TRAIN_NODES),
        "blend_counts": total(
            "only with blend=auto: correct validation predictions for each blend",
            COUNTS,
            reveals="how many validation nodes the model gets right",
        ),
    }
    downlink: ClassVar[dict[str, str]] = {
        "encoder.*": "the averaged encoder",
        "class_proxies": "the aligned class proxies",
        "blend": "only with blend=auto: weight of the feature head in predictions",
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "distill_weight": 5.0,
            "confidence": 0.0,
            "node_proxy_start": "class",
            "init": "glorot",
            "lr": 0.003,
            "rounds": 300,
        },
        "released": {
            "distill_weight": 1.0,
            "confidence": 0.7,
            "node_proxy_start": "kept",
            "projector_start": "fusion",
            "encoder_init": "uniform-out",
            "gnn_start": "own",
            "init": "uniform01",
            "lr": 0.003,
            "rounds": 500,
        },
    }

    proxy_dim: int = setting(64, "width of embeddings and structure proxies (D)", least=1)
    distill_weight: float = setting(1.0, "weight of the distillation loss of the GNN (λ1); 0 is Local exactly", least=0)
    encoder_distill_weight: float = setting(1.0, "weight of the distillation loss of the encoder (λ2)", least=0)
    confidence: float = setting(0.7, "unlabelled nodes are distilled only if max q_i exceeds this (τ)", least=0, most=1)
    encoder_lr: float = setting(0.003, "Adam's step size for the encoder", above=0)
    encoder_weight_decay: float = setting(0.0, "L2 penalty on the encoder's weights", least=0)
    proxy_lr: float = setting(0.02, "Adam's step size for the node proxies", above=0)
    combine: str = setting("add", "how embedding and proxy meet: add or concat", choices=("add", "concat"))
    node_proxy_start: str = setting(
        "class",
        "node proxies start each round at their class proxy (class), or persist (kept)",
        choices=("class", "kept"),
    )
    proxy_moments: str = setting(
        "keep", "Adam's moments of the node proxies across rounds: keep or reset", choices=("keep", "reset")
    )
    class_proxy_start: float = setting(0.01, "class proxy c starts at this times c, in every coordinate")
    projector_start: str = setting(
        "own",
        "feature head at the start of Phase 2: its own average (own) or the fusion head's (fusion)",
        choices=("own", "fusion"),
    )
    encoder_init: str = setting("glorot", "initial encoder weights", choices=init.INITIALISATIONS)
    gnn_start: str = setting(
        "common", "initial GNN weights: common to all clients, or own (drawn per client)", choices=("common", "own")
    )
    weighting: str = setting(
        "train", "the encoder's averaging weights n_k: train or all nodes", choices=("train", "all")
    )
    use_proxies: bool = setting(True, "False: all class and node proxies are 0 and untrained (the ablation)")
    proxy_noise: float = setting(0.0, "standard deviation of Gaussian noise on the uploaded proxies (σ)", least=0)
    blend: float | str = setting(
        0.0,
        "weight of the feature head in predictions: 0 (the paper), a number, or auto (by validation)",
        least=0,
        most=1,
        also=("auto",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combine == "concat" and self.projector_start == "fusion":
            raise InputError("projector_start is 'fusion', but with combine=concat the two heads differ in size")

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """A drawn encoder; class proxies that only differ in size, so that classes start distinguishable."""
        fusion_width = self.proxy_dim * (2 if self.combine == "concat" else 1)
        layers = {
            "embedding": (task.num_features, self.proxy_dim),
            "fusion_head": (fusion_width, task.num_classes),
            "feature_head": (self.proxy_dim, task.num_classes),
        }
        generator = torch_generator(seed, "encoder")
        encoder: Params = {}
        for name, (fan_in, fan_out) in layers.items():
            encoder |= prefixed(name, Linear().draw(fan_in, fan_out, generator, self.encoder_init))
        ramp = self.class_proxy_start * self.use_proxies * torch.arange(task.num_classes, dtype=torch.float32)
        scores = torch.zeros(len(BLENDS) if self.blend == "auto" else 0)
        return ServerState(encoder, ramp[:, None].repeat(1, self.proxy_dim), scores)

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Encoder and class proxies for everyone."""
        shared = {**prefixed("encoder", server.encoder), "class_proxies": server.class_proxies}
        if self.blend == "auto":
            shared["blend"] = torch.tensor(BLENDS)[server.blend_score.argmax()].to(server.class_proxies.dtype)
        return expand(shared, len(client_ids))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """Averages encoders by n_k and aligns class proxies by class ratios."""
        if message["num_train"] == 0:
            return server
        held = message["class_ratios"][:, None] > 0  # [C, 1]: a class that no client holds keeps its proxy
        proxies = torch.where(held, message["class_proxies"], server.class_proxies)
        score = server.blend_score
        if self.blend == "auto":
            score = 0.9 * score + message["blend_counts"].to(score.dtype)
        return ServerState(part_of(message, "encoder"), proxies, score)

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """A personal GNN, and empty optimizers."""
        gnn = self.backbone.init_params(task, batch, seed, common=self.gnn_start == "common")
        encoder = expand(self.init_server(task, seed).encoder, batch.num_clients)
        encoder = {name: value.to(batch.dtype) for name, value in encoder.items()}
        proxies = torch.full((len(batch.train), self.proxy_dim), 0.1 * self.use_proxies, dtype=batch.dtype)
        return ClientState(
            gnn=gnn,
            gnn_optimizer=self.empty_optimizer(gnn, batch),
            encoder_optimizer=self.empty_optimizer(
                encoder, batch, ["embedding.weight"], weight_decay=self.encoder_weight_decay
            ),
            node_proxies=proxies,
            proxy_optimizer=AdamState.zeros({"node": proxies}, batch.num_clients),
        )

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """Phase 1 trains the GNN, Phase 2 the encoder and the node proxies."""
        proxies = client.node_proxies
        if self.node_proxy_start == "class":
            proxies = message["class_proxies"][batch.train_rows.client_of, batch.train_labels]
        gnn, gnn_optimizer = self._train_gnn(client, message, proxies, batch, seed)
        encoder, encoder_optimizer, proxies, proxy_optimizer = self._train_encoder(
            client, message, proxies, self.backbone.logits(gnn, batch), batch
        )
        uplink = prefixed("encoder", encoder)
        uplink |= self._describe_classes(proxies, message["class_proxies"], batch, seed)
        uplink = self.uplink_of_whole(uplink, client, message, batch)
        return ClientState(gnn, gnn_optimizer, encoder_optimizer, proxies, proxy_optimizer), uplink

    def uplink_of_whole(self, uplink: Message, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        """With n_k and the scores of the blends, which use all nodes of a client even if it trains on a sample."""
        weights = batch.num_train if self.weighting == "train" else batch.rows.counts * batch.num_train.sign()
        scores = {"blend_counts": self._score_blends(client, message, batch)} if self.blend == "auto" else {}
        return {**uplink, "num_train": weights, **scores}

    def _train_gnn(
        self, client: ClientState, message: Message, proxies: Tensor, batch: GraphBatch, seed: int
    ) -> tuple[Params, AdamState]:
        """Phase 1: L_G, with ω and S frozen."""
        if self.distill_weight == 0:
            return self.fit(client.gnn, client.gnn_optimizer, batch, seed)
        targets = batch.train_targets + self.distill_weight * self._soft_targets(message, proxies, batch)
        return self.fit(
            client.gnn,
            client.gnn_optimizer,
            batch,
            seed,
            lambda out: ops.soft_cross_entropy(out.logits, targets, batch.rows),
        )

    def _soft_targets(self, message: Message, proxies: Tensor, batch: GraphBatch) -> Tensor:
        """p_i / n for the n nodes of a client that take part in the distillation, 0 for the others: [C, N].

        KL(p ‖ ŷ) and -Σ p log ŷ differ by the entropy of p, which is constant here.
        """
        with torch.no_grad():
            encoder = part_of(message, "encoder")
            embedding = self._embed(message, batch)
            labels = ops.probabilities(_head(encoder, "feature_head", embedding, batch.rows))  # q
            node_proxies = ops.linear(labels.T, batch.rows.ptr, message["class_proxies"])
            node_proxies[batch.train] = proxies
            targets = ops.probabilities(
                _head(encoder, "fusion_head", self._combine(embedding, node_proxies), batch.rows)
            )
            takes_part = (labels.amax(dim=0) > self.confidence).to(targets.dtype)
            takes_part[batch.train] = 1
            counts = ops.client_sum(takes_part, batch.rows).clamp(min=1)
            return targets * (takes_part / ops.per_row(counts, batch.rows))

    def _train_encoder(
        self, client: ClientState, message: Message, proxies: Tensor, logits: Tensor, batch: GraphBatch
    ) -> tuple[Params, AdamState, Tensor, AdamState]:
        """Phase 2: L_F on the training nodes, with θ frozen."""
        feature_targets = batch.train_targets[:, batch.train]
        predictions = ops.probabilities(logits[batch.train])  # ŷ
        fusion_targets = self.encoder_distill_weight * predictions / ops.per_row(batch.num_train, batch.train_rows)
        encoder = part_of(message, "encoder")
        if self.projector_start == "fusion":
            encoder |= {f"feature_head.{part}": encoder[f"fusion_head.{part}"] for part in ("weight", "bias")}
        steps = self.start_optimizer(
            encoder, client.encoder_optimizer, batch, self.encoder_lr, weight_decay=self.encoder_weight_decay
        )
        memory = client.proxy_optimizer
        if self.proxy_moments == "reset":
            memory = AdamState.zeros({"node": proxies}, batch.num_clients)
        proxy_steps = self.start_optimizer({"node": proxies}, memory, batch, self.proxy_lr)
        rows = batch.train_rows
        for _ in range(self.local_epochs):
            node_proxies = proxy_steps.params["node"] if self.use_proxies else proxies
            embedding = ops.feature_linear(
                rows, steps.params["embedding.weight"], steps.params["embedding.bias"]
            ).relu_()
            feature_logits = _head(steps.params, "feature_head", embedding, rows)
            fusion_logits = _head(steps.params, "fusion_head", self._combine(embedding, node_proxies), rows)
            losses = ops.soft_cross_entropy(feature_logits, feature_targets, rows)
            losses = losses + ops.soft_cross_entropy(fusion_logits, fusion_targets, rows)
            steps.step(losses, *([proxy_steps] if self.use_proxies else []))
        trained, proxy_memory = proxy_steps.result()
        return *steps.result(), trained["node"], proxy_memory

    def _describe_classes(self, proxies: Tensor, received: Tensor, batch: GraphBatch, seed: int) -> Message:
        """Class means of the node proxies, and class ratios; a class that a client lacks is sent as received."""
        counts = batch.train_class_counts  # [K, C]
        means = torch.where(counts[:, :, None] > 0, ops.class_means(proxies, batch), received)
        if self.proxy_noise > 0 and self.use_proxies:  # without proxies only zeros are uploaded
            draws = [
                torch.randn(received.shape[1:], generator=torch_generator(seed, "proxy noise", k))
                for k in batch.client_ids
            ]
            means = means + self.proxy_noise * torch.stack(draws).to(means.device, means.dtype)
        return {"class_proxies": means, "class_ratios": counts / batch.num_train.clamp(min=1)[:, None]}

    # ---- prediction -------------------------------------------------------------------------------

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The personal GNN; with `blend` w, the renormalised mix (1-w) log ŷ + w log q."""
        logits = self.backbone.logits(client.gnn, batch)
        if self.blend == 0:
            return logits
        weight = message["blend"] if self.blend == "auto" else logits.new_full((batch.num_clients,), float(self.blend))
        share = ops.per_row(weight, batch.rows)[:, None]
        feature_logits = self._feature_logits(message, batch)
        mixed = (1 - share) * logits.log_softmax(dim=1) + share * feature_logits.log_softmax(dim=1)
        return mixed.log_softmax(dim=1)

    def votes(self, client: ClientState, message: Message, batch: GraphBatch) -> dict[str, Tensor]:
        """The GNN and the feature head, whatever the blend."""
        return {"gnn": self.backbone.logits(client.gnn, batch), "shared_head": self._feature_logits(message, batch)}

    def _feature_logits(self, message: Message, batch: GraphBatch) -> Tensor:
        """The logits of q for all nodes, [N, C]."""
        return _head(part_of(message, "encoder"), "feature_head", self._embed(message, batch), batch.rows)

    def _score_blends(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """[K, len(BLENDS)]: correct validation predictions of the received model with each blend."""
        own = self.backbone.logits(client.gnn, batch)[batch.val].log_softmax(dim=1)
        feature = self._feature_logits(message, batch)[batch.val].log_softmax(dim=1)
        owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
        scores = []
        for blend in BLENDS:
            correct = ((1 - blend) * own + blend * feature).argmax(dim=1) == labels
            scores.append(own.new_zeros(batch.num_clients).index_add(0, owners, correct.to(own.dtype)))
        return torch.stack(scores, dim=1)

    def _embed(self, message: Mapping[str, Tensor], batch: GraphBatch) -> Tensor:
        """e of all nodes, [N, D]."""
        weights = {part: message[f"encoder.embedding.{part}"] for part in ("weight", "bias")}
        return batch.answers.cached(
            "fedspray embedding",
            weights,
            lambda: ops.feature_linear(batch.rows, weights["weight"], weights["bias"]).relu_(),
        )

    def _combine(self, embedding: Tensor, proxies: Tensor) -> Tensor:
        return embedding + proxies if self.combine == "add" else torch.cat([embedding, proxies], dim=1)


def _head(encoder: Params, name: str, inputs: Tensor, rows: NodeRows) -> Tensor:
    return ops.linear(inputs, rows.ptr, encoder[f"{name}.weight"], encoder[f"{name}.bias"])


# ---- the same with another default ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FedSprayPlus(FedSpray):
    """FedSpray whose predictions also use the shared feature head.

    The paper trains and shares the feature head q but discards it for prediction. Here a prediction
    is the renormalised mix (1-w) log ŷ + w log q. The weight w is chosen on validation data: each client counts its
    correct validation predictions for every w of a fixed list, the counts are added up over clients and (fading) over
    rounds, and the best w goes down with the next message.
    """

    summary: ClassVar[str] = "FedSpray, predictions blended with the shared feature head (weight by validation)"
    citation: ClassVar[str] = "this project, on Fu et al., KDD 2024"

    blend: float | str = setting(
        "auto",
        "weight of the feature head in predictions: a number, or auto (by validation)",
        least=0,
        most=1,
        also=("auto",),
    )


@dataclass(frozen=True, kw_only=True)
class FedSprayNoProxies(FedSpray):
    """FedSpray without structure proxies (S = 0): the paper's ablation, its Table 3."""

    summary: ClassVar[str] = "FedSpray with all structure proxies 0: what the proxies are worth"

    use_proxies: bool = setting(False, "False: all class and node proxies are 0 and untrained (the ablation)")
