"""FedAux (Zhuo, Zhan and Yu, "Personalized subgraph federated learning with differentiable auxiliary projections",
NeurIPS 2025).

Together with its GNN every client learns one vector a and orders its nodes along it; nodes at similar positions
exchange their embeddings. The trained a characterises the client's graph, so the server compares clients by it and
gives each an average of its own:

    h = the GNN's embedding [N, H]                         s_i = cos(h_i, a)
    z_i = Σ_j κ(s_i, s_j) h_j / Σ_j κ(s_i, s_j)            κ(s, t) = exp(-(s - t)² / σ²), nodes j of the same client
    logits = W [h | z] + b

    server:  θ_k ← Σ_j α_kj θ_j,   α_kj = exp(τ cos(a_k, a_j)) / Σ_l exp(τ cos(a_k, a_l)),   a ∈ θ

Travels down: the client's own average. Travels up: the network with a after E steps, and n_k.
The sum over all pairs of nodes is never written out, see `kernel_mean`. docs/algorithms/fedaux.md says what differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.algorithms._personal import ServerState, cosines, mixed_models, own_models, rounded, shares_by
from fedspray.algorithms.base import Algorithm
from fedspray.backbones import layer_of
from fedspray.backbones.base import Backbone, Drop, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import TRAIN_NODES, WEIGHTS, Declared, each
from fedspray.nn import ops
from fedspray.nn.layers import Layer, Linear, Shapes, Table, draw_all, shapes_of
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator

VECTOR = "auxiliary.vector"
"""The name of a among the weights."""
_LINEAR = Linear()
_OWN_AVERAGE = "the server compares the clients' vectors, and gives every client an average of its own"


@dataclass(frozen=True)
class AuxiliaryNet(Backbone):
    """Convolutions, the exchange along a, and an output layer. With SGC: one linear map, then hops."""

    convolution: Layer = _LINEAR
    kernel_width: float = 1.0

    @property
    def feature_weights(self) -> tuple[str, ...]:
        """That of the first layer."""
        return ("conv1.weight",)

    def shapes(self, task: Task) -> Shapes:
        """``conv<l>.*``, the vector and ``out.*``."""
        return {**shapes_of(self._layers(task)), VECTOR: (self.hidden,), **shapes_of(self._output(task))}

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """Glorot's weights and zero biases; the vector's entries are uniform between 0 and 1."""
        drawn = draw_all(self._layers(task), generator)
        vector = torch.rand(self.hidden, generator=generator)
        return {**drawn, VECTOR: vector, **draw_all(self._output(task), generator)}

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor:
        """[h | z]: [N, 2H]."""
        own = self._embed_alone(params, batch, drop)
        scores = functional.cosine_similarity(own, ops.per_row(params[VECTOR], batch.rows))
        return torch.cat([own, kernel_mean(own, scores, batch.rows.ptr, self.kernel_width)], dim=1)

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        assert hidden is not None
        return ops.linear(hidden, batch.rows.ptr, params["out.weight"], params["out.bias"])

    def _embed_alone(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor:
        """h: no activation follows the last convolution."""
        if not self.convolution.has_weights:
            moved = ops.feature_linear(batch.rows, params["conv1.weight"], params["conv1.bias"])
            for _ in range(self.layers):
                moved = self.convolution({}, moved, batch, batch.rows)
            return moved
        hidden = self.convolution(part_of(params, "conv1"), None, batch, batch.rows)
        for layer in range(2, self.layers + 1):
            inputs = drop(self.convolution.activate(hidden))
            hidden = self.convolution(part_of(params, f"conv{layer}"), inputs, batch, batch.rows)
        return hidden

    def _layers(self, task: Task) -> Table:
        if not self.convolution.has_weights:
            return {"conv1": (_LINEAR, task.num_features, self.hidden)}
        ends = pairwise([task.num_features, *[self.hidden] * self.layers])
        return {f"conv{layer}": (self.convolution, *widths) for layer, widths in enumerate(ends, start=1)}

    def _output(self, task: Task) -> Table:
        return {"out": (_LINEAR, 2 * self.hidden, task.num_classes)}


def kernel_mean(values: Tensor, scores: Tensor, ptr: Sequence[int], width: float) -> Tensor:
    """Σ_j κ(s_i, s_j) v_j / Σ_j κ(s_i, s_j) over the nodes j of the client of i, in time that grows with N, not N².

    exp(-(s-t)²/σ²) = Σ_n φ_n(s) φ_n(t) with φ_n(s) = exp(-s²/σ²) (√2 s/σ)^n / √n!. Scores are cosines, so the terms
    fall like (2/σ²)^n / n!, and those that are below rounding are left out.

    Shapes: values [N, H], scores [N] between -1 and 1 → [N, H].
    """
    terms = [(-(scores**2) / width**2).exp()]
    rest = 2 / width**2
    while rest > torch.finfo(values.dtype).eps:
        count = len(terms)
        terms.append(terms[-1] * scores * (math.sqrt(2 / count) / width))
        rest *= 2 / width**2 / (count + 1)
    waves = torch.stack(terms, dim=1)  # [N, P]
    counted = torch.cat([values, torch.ones_like(values[:, :1])], dim=1)
    sums = torch.stack([waves[a:b].T @ counted[a:b] for a, b in pairwise(ptr)])  # [K, P, H+1]
    found = ops.linear(waves, ptr, sums)
    return found[:, :-1] / found[:, -1:]


@dataclass(frozen=True)
class ClientState:
    """A client keeps its optimizer only."""

    optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class FedAux(Algorithm[ServerState, ClientState]):
    """Personal averages by the similarity of learned vectors that order each client's nodes."""

    summary: ClassVar[str] = "personal averages among clients whose nodes line up along similar vectors"
    citation: ClassVar[str] = "Zhuo, Zhan and Yu, NeurIPS 2025"
    uplink: ClassVar[Declared] = {
        "gnn.*": each("the network after local training, with the vector", _OWN_AVERAGE, WEIGHTS),
        "num_train": each(
            "number of training nodes; without any, the model counts for nobody", _OWN_AVERAGE, TRAIN_NODES
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the client's own average"}
    ignores: ClassVar[frozenset[str]] = frozenset({"init"})
    own_network: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "local_epochs": 1,
            "hidden": 256,
            "lr": 0.01,
            "weight_decay": 5e-4,
            "dropout": 0.5,
            "rounds": 100,
        }
    }

    sharpness: float = setting(
        10.0, "how fast weights fall with the similarity of vectors (τ); 0 is the plain mean", least=0, most=1e30
    )  # the limit of single precision
    # Below 0.2 the terms of the kernel leave single precision.
    kernel_width: float = setting(1.0, "how far apart nodes may lie that exchange embeddings (σ)", least=0.2)

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_of(self.backbone, "fedaux")

    @property
    def net(self) -> AuxiliaryNet:
        """It starts from Glorot's weights whatever `init` says."""
        plain = {f.name: getattr(self.backbone, f.name) for f in fields(Backbone)}
        layer = layer_of(self.backbone, "fedaux")
        return AuxiliaryNet(**{**plain, "init": "glorot"}, convolution=layer, kernel_width=self.kernel_width)

    def init_server(self, task: Task, seed: int) -> ServerState:
        """A common start; no client is known yet."""
        start = self.net.draw(task, torch_generator(seed, "backbone"))
        return ServerState(start, expand(start, 0))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Each client's own average."""
        return prefixed("gnn", own_models(server.gnn, server.start, client_ids))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """A new average for every client that took part; the others keep theirs."""
        sent = part_of(message, "gnn")
        shares = shares_by(cosines(sent[VECTOR]), message["num_train"], self.sharpness)
        return ServerState(server.start, mixed_models(server.gnn, server.start, sent, shares, client_ids))

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """The vectors' cosines and the weights that follow, in the order of the record's ``trained``."""
        similarity = cosines(message[f"gnn.{VECTOR}"])
        shares = shares_by(similarity, message["num_train"], self.sharpness)
        return {"similarity": rounded(similarity), "shares": rounded(shares)}

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Adam without memory."""
        net = self.net
        return ClientState(self.empty_optimizer(net.init_params(task, batch, seed), batch, net.feature_weights))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps on the network and the vector together."""
        gnn, optimizer = self.fit(part_of(message, "gnn"), client.optimizer, batch, seed, network=self.net)
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's own average, as received."""
        return self.net.logits(part_of(message, "gnn"), batch)
