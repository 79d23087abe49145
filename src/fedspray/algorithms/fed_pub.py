"""FED-PUB (Baek et al., "Personalized subgraph federated learning", ICML 2023): its similarity core.

Every client gets its own average of models that behave alike. Behaviour is measured on a
random graph G that the server draws once from the seed, so clients reveal only their weights:

    h_k = mean over the nodes of G of what model k computes there       functional embedding
    s_kj = cos(h_k, h_j)
    θ_k ← Σ_j α_kj θ_j,   α_kj = exp(τ s_kj) / Σ_l exp(τ s_kl)          over the clients that took part

Travels down: the client's own average. Travels up: the GNN after E steps, and n_k.
The personal sparse masks and the proximal term of the paper are not included; see docs/algorithms/fed-pub.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedspray.algorithms._averaging import ClientState
from fedspray.algorithms._personal import cosines, mixed_models, own_models, rounded, shares_by
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.graph import Graph
from fedspray.messages import TRAIN_NODES, WEIGHTS, Declared, each
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed
from fedspray.seeds import generator, torch_generator

_OWN_AVERAGE = "the server compares what each model computes, and gives every client an average of its own"


@dataclass(frozen=True)
class ProxyGraph:
    """The random graph on which models are compared."""

    features: Tensor
    """[n, F]."""
    edges: Tensor
    """[2, E], int64: each once."""
    num_classes: Tensor
    """[], int64."""


@dataclass(frozen=True)
class ServerState:
    """The clients' models, and what compares them."""

    start: Params
    """The initial model, without a client axis, for clients not seen yet."""
    gnn: Params
    """[M, …]: row k is client k's model; M - 1 is the highest id seen so far."""
    proxy: ProxyGraph
    similarity: Tensor
    """[K, K]: cosines of the clients that took part last."""


@dataclass(frozen=True, kw_only=True)
class FedPub(Algorithm[ServerState, ClientState]):
    """Personal averages by the similarity of what the models compute on a random graph."""

    summary: ClassVar[str] = "personal averages among models that act alike on a random graph (no masks)"
    citation: ClassVar[str] = "Baek et al., ICML 2023"
    uplink: ClassVar[Declared] = {
        "gnn.*": each("the GNN after local training", _OWN_AVERAGE, WEIGHTS),
        "num_train": each(
            "number of training nodes; without any, the model counts for nobody", _OWN_AVERAGE, TRAIN_NODES
        ),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the client's own average"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "sharpness": 3.0,
            "local_epochs": 1,
            "hidden": 128,
            "lr": 0.01,
            "weight_decay": 1e-6,
            "dropout": 0.5,
            "rounds": 100,
        }
    }

    sharpness: float = setting(
        10.0, "how sharply weights follow similarity (τ); 0 is the plain mean", least=0, most=1e30
    )  # the limit of single precision
    embedding: str = setting(
        "logits",
        "what models are compared by: logits, or the output layer's input (hidden)",
        choices=("logits", "hidden"),
    )
    centre: bool = setting(False, "subtract the clients' mean embedding before comparing (not in the paper)")
    proxy_blocks: int = setting(5, "blocks of the random graph, without edges between them", least=1)
    proxy_block_size: int = setting(100, "nodes of a block", least=1)
    proxy_density: float = setting(0.1, "probability of an edge inside a block", least=0, most=1)

    def init_server(self, task: Task, seed: int) -> ServerState:
        """Local's common start, and the random graph; no client is known yet."""
        start = self.backbone.draw(task, torch_generator(seed, "backbone"))
        return ServerState(start, expand(start, 0), self._draw_proxy(task, seed), torch.zeros(0, 0))

    def _draw_proxy(self, task: Task, seed: int) -> ProxyGraph:
        """Blocks of random edges, and standard normal features."""
        draw, size = generator(seed, "proxy graph"), self.proxy_block_size
        pairs = np.stack(np.triu_indices(size, k=1))
        edges = [
            pairs[:, draw.random(pairs.shape[1]) < self.proxy_density] + block * size
            for block in range(self.proxy_blocks)
        ]
        features = draw.standard_normal((self.proxy_blocks * size, task.num_features), dtype=np.float32)
        return ProxyGraph(
            torch.from_numpy(features), torch.from_numpy(np.concatenate(edges, axis=1)), torch.tensor(task.num_classes)
        )

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Each client's own average."""
        return prefixed("gnn", own_models(server.gnn, server.start, client_ids))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """A new average for every client that took part; the others keep theirs."""
        sent = part_of(message, "gnn")
        similarity = self._similarity(sent, server.proxy)
        shares = shares_by(similarity, message["num_train"], self.sharpness)
        gnn = mixed_models(server.gnn, server.start, sent, shares, client_ids)
        return replace(server, gnn=gnn, similarity=similarity)

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer."""
        return ClientState(self.empty_optimizer(self.backbone.init_params(task, batch, seed), batch))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the client's own average."""
        gnn, optimizer = self.fit(part_of(message, "gnn"), client.gnn_optimizer, batch, seed)
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train}

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's own average, as received."""
        return self.backbone.logits(part_of(message, "gnn"), batch)

    def _similarity(self, gnn: Params, proxy: ProxyGraph) -> Tensor:
        """[K, K]: cosines of the functional embeddings."""
        dtype = proxy.features.dtype
        graph = Graph.from_arrays(proxy.features.numpy(), proxy.edges.numpy(), num_classes=int(proxy.num_classes))
        batch = GraphBatch.from_graph(graph, dtype=dtype)
        answer = self.backbone.logits if self.embedding == "logits" else self.backbone.representation
        count = len(next(iter(gnn.values())))
        # One client at a time: K copies of the features would be most of the server's memory.
        models = ({name: value[k : k + 1] for name, value in gnn.items()} for k in range(count))
        embeddings = torch.stack([answer(model, batch).mean(dim=0) for model in models])
        if self.centre:
            embeddings = embeddings - embeddings.mean(dim=0)
        return cosines(embeddings)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """The similarity matrix and the resulting weights, in the order of the record's ``trained``."""
        shares = shares_by(server.similarity, message["num_train"], self.sharpness)
        return {"similarity": rounded(server.similarity), "shares": rounded(shares)}
