"""FedLit: latent link types, found by each client and aligned by the server.

Xie, Xiong and Yang, "Federated node classification over graphs with latent link-type heterogeneity", WWW 2023.

Edges mean different things. Each client sorts its edges into T latent types, one channel of the network runs over
the edges of each, and the server aligns the types of all clients before it averages the channels:

    h = W_1 x + b                                    e_uv = [h_u | h_v]
    type(e) = argmax_c cos(e, μ_c)                   μ_c = mean of the edges of type c      (once in every step)
    z_c = W_2c h + b_c,   z_c ← relu(Conv_c(z_c)) over the edges of type c, L times
    logits = W_out Σ_c z_c + b

    server:  match μ_k to its centres m one to one by cosine; m_c = mean of the matched centres
             W_1, W_out by training nodes; channel c likewise, over the clients that have an edge of type c

Travels down: the network, m, and how the client's last upload was reordered. Travels up: the network, μ, the number
of edges of each type, n_k. Moments stay. Bugs of the published code are fixed; docs/algorithms/fedlit.md
lists them and every other difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms._personal import grow
from fedspray.algorithms.base import Algorithm, supervised_loss
from fedspray.backbones import layer_of
from fedspray.backbones.base import Drop, Dropout, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import COUNTS, TRAIN_NODES, WEIGHTS, Declared, each, mean
from fedspray.nn import edges, ops
from fedspray.nn.channels import Channel, split_edges
from fedspray.nn.layers import Layer, Linear, Table, closest_width, num_weights, shapes_of
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator

_LINEAR = Linear()
_ALIGNED = "the server matches every client's link types with its own before it averages"


@dataclass(frozen=True)
class ChannelNet:
    """The network of T channels. Channel weights are [T, …], so reordering them is one index."""

    convolution: Layer
    hidden: int
    layers: int
    num_types: int

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``project.*`` (W_1), ``channels.project.*`` (W_2c), ``channels.conv<l>.*`` and ``out.*``."""
        return {
            name: (self.num_types, *shape) if name.startswith("channels.") else shape
            for name, shape in shapes_of(self._layers(task)).items()
        }

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """Glorot weights and zero biases, drawn per channel."""
        drawn: Params = {}
        for name, (layer, fan_in, fan_out) in self._layers(task).items():
            if name.startswith("channels."):
                draws = [layer.draw(fan_in, fan_out, generator) for _ in range(self.num_types)]
                drawn |= prefixed(name, {part: torch.stack([one[part] for one in draws]) for part in draws[0]})
            else:
                drawn |= prefixed(name, layer.draw(fan_in, fan_out, generator))
        return drawn

    def project(self, params: Params, batch: GraphBatch) -> Tensor:
        """h [N, H]."""
        return ops.feature_linear(batch.rows, params["project.weight"], params["project.bias"])

    def logits(
        self, params: Params, projected: Tensor, channels: Sequence[Channel], batch: GraphBatch, drop: Drop
    ) -> Tensor:
        """Logits [N, C] from h and the edges of each type."""
        total = torch.zeros_like(projected)
        for number, channel in enumerate(channels):
            own = {name: value[:, number] for name, value in part_of(params, "channels").items()}
            hidden = _LINEAR(part_of(own, "project"), projected, channel, batch.rows)
            for layer in range(1, self.layers + 1):
                hidden = self.convolution(part_of(own, f"conv{layer}"), hidden, channel, batch.rows)
                hidden = drop(self.convolution.activate(hidden)) if self.convolution.has_weights else hidden
            total = total + (hidden if channel.self_loops else hidden * channel.touched)
        return _LINEAR(part_of(params, "out"), total, batch, batch.rows)

    def _layers(self, task: Task) -> Table:
        inner = {f"channels.conv{layer}": self.convolution for layer in range(1, self.layers + 1)}
        return {
            "project": (_LINEAR, task.num_features, self.hidden),
            "channels.project": (_LINEAR, self.hidden, self.hidden),
            **{name: (layer, self.hidden, self.hidden) for name, layer in inner.items()},
            "out": (_LINEAR, self.hidden, task.num_classes),
        }


@dataclass(frozen=True)
class ServerState:
    """The global network and centres, and what the last round's matching found."""

    gnn: Params
    centres: Tensor
    """[T, 2H]: m; all 0 until a client with edges has sent some."""
    orders: Tensor
    """[M, T], int64: which of client k's channels, in its last upload, became each of the server's; M > all ids."""
    cosines: Tensor
    """[K, T]: of the clients' matched centres with the server's, in the last round."""
    type_counts: Tensor
    """[K, T]: edges of each type, in the server's order, in the last round."""


@dataclass(frozen=True)
class ClientState:
    """A client keeps its optimizer."""

    kept: Message
    """Its own network and centres if nothing is shared, else empty."""
    optimizer: AdamState = training_only()


@dataclass(frozen=True, kw_only=True)
class FedLit(Algorithm[ServerState, ClientState]):
    """One channel for each latent link type, aligned across clients."""

    summary: ClassVar[str] = "one GNN channel for each latent link type, aligned across clients and averaged"
    citation: ClassVar[str] = "Xie, Xiong and Yang, WWW 2023"
    uplink: ClassVar[Declared] = {
        "gnn.*": mean("what all channels share, after local training"),
        "gnn.channels.*": each("the channels after local training, in the client's order", _ALIGNED, WEIGHTS),
        "centres": each(
            "mean representation of the edges of each link type; as received where there are none",
            _ALIGNED,
            WEIGHTS,
            reveals="what the two ends of an edge look like on average, for each link type",
        ),
        "type_counts": each(
            "number of edges of each link type", _ALIGNED, COUNTS, reveals="how many edges the client has, exactly"
        ),
        "num_train": each("number of training nodes", _ALIGNED, TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {
        "gnn.*": "the averaged network",
        "centres": "the averaged centres of the link types",
        "order": "how the channels of the client's last upload were reordered, for its moments",
    }
    ignores: ClassVar[frozenset[str]] = frozenset({"init"})
    own_network: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "self_loops": False,
            "branch_weights": "uniform",
            "dropout": 0.3,
            "lr": 0.01,
            "weight_decay": 0.0005,
            "local_epochs": 1,
            "rounds": 100,
        }
    }

    link_types: int = setting(4, "number of latent link types (T); try 2, 3 and 4", least=1)
    edge_repr: str = setting(
        "concat",
        "an edge's vector: concat (both ends, in the order of nodes) or sym (their sum and absolute difference)",
        choices=edges.REPRESENTATIONS,
    )
    recluster: str = setting("epoch", "find types in every epoch, or once per round", choices=("epoch", "round"))
    em_steps: int = setting(1, "sweeps of assignment and means each time", least=1)
    self_loops: bool = setting(
        True, "every channel runs on all nodes; false: only on nodes with an edge of its type, without self-loops"
    )
    branch_weights: str = setting(
        "train",
        "channels are averaged by training nodes (train) or equally (uniform), over clients that have the type",
        choices=("train", "uniform"),
    )
    share: str = setting(
        "everything",
        "what is averaged: everything (FedLit) or nothing (local training of the same network)",
        choices=("everything", "nothing"),
    )
    match_parameters: bool = setting(
        False, "ignore `hidden` and pick the width closest to the plain backbone's parameter count"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_of(self.backbone, "fedlit")

    def network(self, sizes: Task | GraphBatch) -> ChannelNet:
        """The network for this many features and classes."""
        task = Task(sizes.num_features, sizes.num_classes)
        convolution = layer_of(self.backbone, "fedlit")

        def build(width: int) -> ChannelNet:
            return ChannelNet(convolution, width, self.backbone.layers, self.link_types)

        if not self.match_parameters:
            return build(self.backbone.hidden)
        target = num_weights(self.backbone.shapes(task))
        return build(
            closest_width(lambda width: num_weights(build(width).shapes(task)), target, convolution.width_step)
        )

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """A drawn network; the types are not known yet."""
        network, types = self.network(task), self.link_types
        return ServerState(
            gnn=network.draw(task, torch_generator(seed, "backbone")),
            centres=torch.zeros(types, 2 * network.hidden),
            orders=torch.zeros(0, types, dtype=torch.int64),
            cosines=torch.zeros(0, types),
            type_counts=torch.zeros(0, types),
        )

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The network and centres for everyone; each client's own order."""
        if self.share == "nothing":
            return {}
        shared = expand({**prefixed("gnn", server.gnn), "centres": server.centres}, len(client_ids))
        return {**shared, "order": self._grown(server.orders, client_ids)[list(client_ids)]}

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """Aligns the clients' types with the server's and averages."""
        if self.share == "nothing":
            return server
        reference = self._reference(server, message)
        orders, cosines = self._match(reference, message)
        centres, counts, weights = _ordered(message["centres"], orders), message["type_counts"], message["num_train"]
        counts = _ordered(counts, orders)  # [K, T]
        has = (counts > 0).to(centres.dtype)
        by_type = has * (weights[:, None] if self.branch_weights == "train" else weights[:, None].sign())
        gnn = {}
        for name, sent in part_of(message, "gnn").items():
            if name.startswith("channels."):
                gnn[name] = _mean_by_type(_ordered(sent, orders), by_type, server.gnn[name])
            else:
                gnn[name] = sent if weights.any() else server.gnn[name]
        known = self._grown(server.orders, client_ids).index_copy(0, torch.tensor(client_ids), orders)
        return ServerState(gnn, _mean_by_type(centres, has, reference), known, cosines, counts)

    def _grown(self, orders: Tensor, client_ids: Sequence[int]) -> Tensor:
        """The orders with rows for these clients too: a new client has nothing to reorder."""
        return grow(orders, client_ids, torch.arange(self.link_types))

    def _reference(self, server: ServerState, message: Message) -> Tensor:
        """The centres to match with: the server's, at first those of the client with the most edges."""
        if server.centres.any():
            return server.centres
        return message["centres"][message["type_counts"].sum(dim=1).argmax()]

    def _match(self, reference: Tensor, message: Message) -> tuple[Tensor, Tensor]:
        """Each client's order and the cosines of its matched centres; a client without edges keeps its order."""
        orders, cosines = [], []
        for centres, counts in zip(message["centres"], message["type_counts"], strict=True):
            order, cosine = edges.match(centres, reference)
            orders.append(order if counts.any() else torch.arange(self.link_types))
            cosines.append(cosine if counts.any() else torch.zeros_like(cosine))
        return torch.stack(orders), torch.stack(cosines)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """Shares of the link types at each client that trained, how many clients lack each, and matching cosines."""
        if self.share == "nothing":
            counts, cosines = message["type_counts"], message["type_counts"][:0]
        else:
            counts, cosines = server.type_counts, server.cosines
        return {
            "type_shares": (counts / counts.sum(dim=1, keepdim=True).clamp(min=1)).tolist(),
            "clients_without_type": (counts == 0).sum(dim=0).tolist(),
            "empty_types": (counts.sum(dim=0) == 0).nonzero().flatten().tolist(),
            "matching_cosine": cosines.mean(dim=1).tolist(),
        }

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer; with share=nothing also the network that others get from the server."""
        server = self.init_server(task, seed)
        start = {**prefixed("gnn", server.gnn), "centres": server.centres}
        start = {name: v.to(batch.dtype).contiguous() for name, v in expand(start, batch.num_clients).items()}
        optimizer = self.empty_optimizer(part_of(start, "gnn"), batch, ["project.weight"])
        return ClientState(start if self.share == "nothing" else {}, optimizer)

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E times: find the types, then one step."""
        received, own, network = message or client.kept, self.backbone, self.network(batch)
        memory = _follow(client.optimizer, message["order"]) if message else client.optimizer
        steps = self.start_optimizer(
            part_of(received, "gnn"), memory, batch, own.lr, weight_decay=own.weight_decay, eps=own.adam_eps
        )
        centres, counts, channels = received["centres"], batch.num_train[:0], []
        for epoch in range(self.local_epochs):
            projected = network.project(steps.params, batch)
            if epoch == 0 or self.recluster == "epoch":
                types, centres, counts = self.find_types(projected.detach(), centres, batch, seed)
                channels = split_edges(batch, types, self.link_types, self_loops=self.self_loops)
            drop = Dropout(own.dropout, batch, seed, epoch)
            steps.step(supervised_loss(network.logits(steps.params, projected, channels, batch, drop), batch))
        gnn, optimizer = steps.result()
        result = {**prefixed("gnn", gnn), "centres": centres}
        uplink = {**result, "type_counts": counts, "num_train": batch.num_train}
        return ClientState(result if self.share == "nothing" else {}, optimizer), uplink

    def find_types(
        self, projected: Tensor, centres: Tensor, batch: GraphBatch, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Types [E] of all edges, the clients' new centres [K, T, 2H], and edges of each type [K, T]."""
        types, new, counts = [], [], []
        for k, own in enumerate(edges.client_edges(batch)):
            vectors, centre = edges.edge_vectors(projected, own, self.edge_repr), centres[k]
            if not centre.any():
                centre = edges.first_centres(vectors, self.link_types, seed, batch.client_ids[k])
            for _ in range(self.em_steps):
                found = edges.assign(vectors, centre)
                centre, count = edges.mean_by_type(vectors, found, centre)
            types.append(found)
            new.append(centre)
            counts.append(count)
        return torch.cat(types), torch.stack(new), torch.stack(counts)

    def assign_types(self, projected: Tensor, centres: Tensor, batch: GraphBatch) -> Tensor:
        """Types [E] of all edges, by fixed centres."""
        own = zip(edges.client_edges(batch), centres, strict=True)
        return torch.cat([edges.assign(edges.edge_vectors(projected, e, self.edge_repr), c) for e, c in own])

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The averaged network, over types found with the averaged centres."""
        received, network = message or client.kept, self.network(batch)
        params = part_of(received, "gnn")
        projected = network.project(params, batch)
        types = self.assign_types(projected, received["centres"], batch)
        channels = split_edges(batch, types, self.link_types, self_loops=self.self_loops)
        return network.logits(params, projected, channels, batch, lambda hidden: hidden)


def _ordered(values: Tensor, orders: Tensor) -> Tensor:
    """Each client's channels in the order given for it: [K, T, …], [K, T] → [K, T, …]."""
    return values[torch.arange(len(orders), device=orders.device)[:, None], orders]


def _follow(optimizer: AdamState, orders: Tensor) -> AdamState:
    """The moments, moved along with the channels that they belong to."""

    def reorder(moments: Params) -> Params:
        return {n: _ordered(v, orders) if n.startswith("channels.") else v for n, v in moments.items()}

    return replace(optimizer, first=reorder(optimizer.first), second=reorder(optimizer.second))


def _mean_by_type(values: Tensor, weights: Tensor, otherwise: Tensor) -> Tensor:
    """Means over clients with a weight for each type: [K, T, …], [K, T] → [T, …]; ``otherwise`` where all are 0."""
    total = weights.sum(dim=0)
    shares = (weights / total.clamp(min=1e-12)).to(values.dtype)
    means = torch.einsum("kt,kt...->t...", shares, values)
    return torch.where((total > 0).view(-1, *[1] * (values.dim() - 2)), means, otherwise)
