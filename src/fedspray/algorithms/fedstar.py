"""FedStar (Tan et al., "Federated learning on non-IID graphs via structural knowledge sharing", AAAI 2023).

Two channels run side by side. One sees a node's surroundings only and is shared; the other sees features and
stays personal. They meet by concatenation in every layer:

    s_0 = W_emb [RWSE | DSE] + b                x_0 = W_pre X + b
    s_l = tanh(GCN_l(s_{l-1}))                  x_l = dropout(relu(Conv_l([x_{l-1} | s_{l-1}])))
    logits = W_out [x_L | s_L] + b

    server:  θ_s = Σ_k (n_k / Σ n) θ_s,k        θ_s = {W_emb, GCN_1 … GCN_L}

Travels down: θ_s. Travels up: θ_s after E steps on all weights together, and n_k. Layers that touch features,
the output layer included, and all moments stay. The published network is for whole graphs; this one is its
node-level form, and docs/algorithms/fedstar.md lists what that changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.backbones import layer_of
from fedspray.backbones.base import Backbone, Drop, setting
from fedspray.backbones.gcn import GCNLayer
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.messages import TRAIN_NODES, Declared, mean, total
from fedspray.nn import ops
from fedspray.nn.layers import Layer, Linear, Shapes, Table, closest_width, draw_all, num_weights, shapes_of
from fedspray.nn.optim import AdamState
from fedspray.nn.structure import StructureEmbedding
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed, training_only
from fedspray.seeds import torch_generator

_LINEAR, _GCN = Linear(), GCNLayer()


@dataclass(frozen=True)
class DecoupledNet(Backbone):
    """The network of two channels. As a backbone, it lets you compare Local and FedAvg on it.

    Weights under ``structure.`` see the graph only. With SGC there are no inner feature layers:
    logits = W_out [Â^L [X | s_0] | s_L] + b, where the hops run over C columns.
    """

    convolution: Layer = _GCN
    embedding: StructureEmbedding = StructureEmbedding()
    published_head: bool = False

    def shapes(self, task: Task) -> Shapes:
        """``structure.*``, ``feature.*`` and ``out.*``."""
        return shapes_of(self._layers(task))

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """Glorot weights and zero biases."""
        return draw_all(self._layers(task), generator)

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """[x_L | s_L], or what the published head makes of it; None for SGC."""
        if not self.convolution.has_weights:
            return None
        surroundings = self._surroundings(params, batch)
        hidden = ops.feature_linear(batch.rows, params["feature.pre.weight"], params["feature.pre.bias"])
        for layer, structure in enumerate(surroundings[:-1], start=1):
            joined = torch.cat([hidden, structure], dim=1)
            weights = part_of(params, f"feature.conv{layer}")
            hidden = drop(self.convolution.activate(self.convolution(weights, joined, batch, batch.rows)))
        joined = torch.cat([hidden, surroundings[-1]], dim=1)
        if not self.published_head:
            return joined
        joined = _LINEAR(part_of(params, "feature.joint"), joined, batch, batch.rows)
        return drop(_LINEAR(part_of(params, "feature.post"), joined, batch, batch.rows).relu())

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        weight, bias = params["out.weight"], params["out.bias"]
        if hidden is not None:
            return ops.linear(hidden, batch.rows.ptr, weight, bias)
        surroundings = self._surroundings(params, batch)
        widths = [batch.num_features, self.hidden, self.hidden]
        of_features, of_first, of_last = torch.split(weight, widths, dim=1)
        scores = ops.feature_linear(batch.rows, of_features) + ops.linear(surroundings[0], batch.rows.ptr, of_first)
        for _ in range(self.layers):
            scores = self.convolution({}, scores, batch, batch.rows)
        return scores + ops.linear(surroundings[-1], batch.rows.ptr, of_last, bias)

    def _surroundings(self, params: Params, batch: GraphBatch) -> list[Tensor]:
        """s_0 … s_L, each [N, H]."""
        structure = _LINEAR(part_of(params, "structure.emb"), self.embedding.of(batch), batch, batch.rows)
        found = [structure]
        for layer in range(1, self.layers + 1):
            structure = _GCN(part_of(params, f"structure.conv{layer}"), structure, batch, batch.rows).tanh()
            found.append(structure)
        return found

    def _layers(self, task: Task) -> Table:
        """Every layer with its widths, in drawing order."""
        width, numbers = self.hidden, range(1, self.layers + 1)
        layers: dict[str, tuple[Layer, int, int]] = {"structure.emb": (_LINEAR, self.embedding.width, width)}
        layers |= {f"structure.conv{layer}": (_GCN, width, width) for layer in numbers}
        if not self.convolution.has_weights:
            return layers | {"out": (_LINEAR, task.num_features + 2 * width, task.num_classes)}
        layers["feature.pre"] = (_LINEAR, task.num_features, width)
        layers |= {f"feature.conv{layer}": (self.convolution, 2 * width, width) for layer in numbers}
        if self.published_head:
            layers |= {"feature.joint": (_LINEAR, 2 * width, width), "feature.post": (_LINEAR, width, width)}
        return layers | {"out": (_LINEAR, width if self.published_head else 2 * width, task.num_classes)}


@dataclass(frozen=True)
class ServerState:
    """What is shared, without a client axis."""

    shared: Params
    drift: Tensor
    """How far the last round moved the shared weights (Euclidean norm)."""


@dataclass(frozen=True)
class ClientState:
    """What stays at the client."""

    personal: Params
    optimizer: AdamState = training_only()
    """Of all weights, the shared ones too."""


@dataclass(frozen=True, kw_only=True)
class FedStar(Algorithm[ServerState, ClientState]):
    """A shared structure channel beside a personal feature channel."""

    summary: ClassVar[str] = "personal feature channel, shared channel of structure embeddings"
    citation: ClassVar[str] = "Tan et al., AAAI 2023"
    shares_gnn: ClassVar[bool] = False
    uplink: ClassVar[Declared] = {
        "shared.*": mean("the structure channel after local training"),
        "num_train": total("number of training nodes", TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"shared.*": "the averaged structure channel"}
    ignores: ClassVar[frozenset[str]] = frozenset({"init"})
    own_network: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "personal_start": "own",
            "head": "published",
            "layers": 3,
            "dropout": 0.5,
            "lr": 0.001,
            "weight_decay": 0.0005,
            "local_epochs": 1,
            "rounds": 200,
        }
    }

    walk_steps: int = setting(
        16, "length of the random-walk embedding (return probabilities after 1, 2 … steps)", least=0
    )
    degree_buckets: int = setting(
        16, "length of the one-hot degree embedding; the last bucket is for all above", least=0
    )
    degree_scale: str = setting(
        "linear", "degree buckets: linear (one for each degree) or log (⌊2 log2(1+degree)⌋)", choices=("linear", "log")
    )
    isolated_bucket: bool = setting(False, "a separate degree bucket for nodes without neighbours")
    head: str = setting(
        "linear",
        "what follows the channels: linear (one layer), or published (three, with one relu; not for SGC)",
        choices=("linear", "published"),
    )
    personal_start: str = setting(
        "common",
        "initial personal weights: common to all clients, or own (per client)",
        choices=("common", "own"),
    )
    share: str = setting(
        "structure",
        "what is averaged: structure (FedStar), nothing (local training of the same network), or everything (FedAvg)",
        choices=("structure", "nothing", "everything"),
    )
    match_parameters: bool = setting(
        False, "ignore `hidden` and pick the width closest to the plain backbone's parameter count"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_of(self.backbone, "fedstar")
        if self.walk_steps + self.degree_buckets == 0:
            raise InputError("walk_steps and degree_buckets are both 0, but the structure channel needs an input")

    def network(self, sizes: Task | GraphBatch) -> DecoupledNet:
        """The network for this many features and classes; it starts from Glorot weights whatever `init` says."""
        task = Task(sizes.num_features, sizes.num_classes)
        plain = {f.name: getattr(self.backbone, f.name) for f in fields(Backbone)}
        convolution = layer_of(self.backbone, "fedstar")
        embedding = StructureEmbedding(
            self.walk_steps, self.degree_buckets, self.degree_scale == "log", self.isolated_bucket
        )

        def build(width: int) -> DecoupledNet:
            own = {"init": "glorot", "hidden": width, "published_head": self.head == "published"}
            return DecoupledNet(**{**plain, **own}, convolution=convolution, embedding=embedding)

        if not self.match_parameters:
            return build(self.backbone.hidden)
        target = num_weights(self.backbone.shapes(task))
        return build(
            closest_width(lambda width: num_weights(build(width).shapes(task)), target, convolution.width_step)
        )

    # ---- server -----------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ServerState:
        """A drawn structure channel."""
        drawn = self.network(task).draw(task, torch_generator(seed, "backbone"))
        return ServerState(self._part(drawn, shared=True), torch.zeros(()))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """The same structure channel for everyone."""
        return prefixed("shared", expand(server.shared, len(client_ids)))

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """The mean of the structure channels, weighted by training nodes."""
        if message["num_train"] == 0:
            return ServerState(server.shared, torch.zeros_like(server.drift))
        shared = part_of(message, "shared")
        moved = {name: (value - server.shared[name])[None] for name, value in shared.items()}
        return ServerState(shared, _norms(moved, 1)[0].to(server.drift.dtype))

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """How far the shared weights moved, their norm, and each client's distance from their mean."""
        sent = {name: value - server.shared[name] for name, value in part_of(message, "shared").items()}
        return {
            "shared_drift": float(server.drift),
            "shared_norm": float(_norms({name: value[None] for name, value in server.shared.items()}, 1)[0]),
            "client_distance": _norms(sent, len(message["num_train"])).tolist(),
        }

    # ---- client -----------------------------------------------------------------------------------

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """Personal weights and an empty optimizer."""
        params = self.network(task).init_params(task, batch, seed, common=self.personal_start == "common")
        of_features = [name for name in params if name == "feature.pre.weight"]
        return ClientState(self._part(params, shared=False), self.empty_optimizer(params, batch, of_features))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps on both channels together."""
        network, params = self.network(batch), self._params(client, message, batch)
        trained, optimizer = self.fit(params, client.optimizer, batch, seed, network=network)
        uplink = {**prefixed("shared", self._part(trained, shared=True)), "num_train": batch.num_train}
        return ClientState(self._part(trained, shared=False), optimizer), uplink

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's feature channel on the averaged structure channel."""
        return self.network(batch).logits(self._params(client, message, batch), batch)

    def _params(self, client: ClientState, message: Message, batch: GraphBatch) -> Params:
        """The client's whole network, in drawing order."""
        known = {**client.personal, **part_of(message, "shared")}
        shapes = self.network(batch).shapes(Task(batch.num_features, batch.num_classes))
        if any(name not in known or known[name].shape[1:] != shape for name, shape in shapes.items()):
            raise InputError(
                "the averaged structure channel does not fit this client's network: clients with different "
                "backbones need the same hidden and layers, share=structure and match_parameters=false"
            )
        return {name: known[name] for name in shapes}

    def _part(self, params: Params, *, shared: bool) -> Params:
        if self.share != "structure":
            return params if shared == (self.share == "everything") else {}
        return {name: value for name, value in params.items() if name.startswith("structure.") == shared}


def _norms(params: Params, num_clients: int) -> Tensor:
    """[K]: Euclidean norms of all weights of each client together."""
    squares = [value.flatten(1).square().sum(dim=1) for value in params.values()]
    return torch.stack(squares).sum(dim=0).sqrt() if squares else torch.zeros(num_clients)
