"""FedAvgM (Hsu, Qi and Brown, 2019): FedAvg whose server keeps moving in the direction of its last steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import fedspray as fs


@dataclass(frozen=True)
class ServerState:
    gnn: fs.Params
    velocity: fs.Params


@dataclass(frozen=True)
class ClientState:
    gnn_optimizer: fs.AdamState = fs.training_only()  # prediction does not need it


@dataclass(frozen=True, kw_only=True)
class FedAvgM(fs.Algorithm[ServerState, ClientState]):
    summary: ClassVar[str] = "FedAvg with momentum at the server"
    citation: ClassVar[str] = "Hsu, Qi and Brown, arXiv:1909.06335"
    uplink: ClassVar[fs.messages.Declared] = {
        "gnn.*": fs.messages.mean("the GNN after local training", weight="num_train"),
        "num_train": fs.messages.total("training nodes", fs.messages.TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the global GNN"}

    momentum: float = fs.setting(0.5, "share of the server's last step that is taken again (β)")

    def init_server(self, task: fs.Task, seed: int) -> ServerState:
        gnn = self.backbone.draw(task, fs.torch_generator(seed, "backbone"))
        return ServerState(gnn, {name: torch.zeros_like(value) for name, value in gnn.items()})

    def init_clients(self, task: fs.Task, batch: fs.GraphBatch, seed: int) -> ClientState:
        return ClientState(fs.AdamState.zeros(self.backbone.init_params(task, batch, seed), batch.num_clients))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> fs.Message:
        return fs.prefixed("gnn", fs.expand(server.gnn, len(client_ids)))  # [K, …]

    def client_update(
        self, client: ClientState, message: fs.Message, batch: fs.GraphBatch, seed: int
    ) -> tuple[ClientState, fs.Message]:
        start = fs.part_of(message, "gnn")
        gnn, optimizer = self.fit(
            start, client.gnn_optimizer, batch, seed, lambda out: fs.supervised_loss(out.logits, batch)
        )
        return ClientState(optimizer), {**fs.prefixed("gnn", gnn), "num_train": batch.num_train}

    def server_update(self, server: ServerState, message: fs.Message, client_ids: Sequence[int]) -> ServerState:
        if message["num_train"] == 0:  # nobody trained
            return server
        means = fs.part_of(message, "gnn")
        velocity = {name: self.momentum * server.velocity[name] + means[name] - server.gnn[name] for name in means}
        return ServerState({name: server.gnn[name] + velocity[name] for name in means}, velocity)

    def predict(self, client: ClientState, message: fs.Message, batch: fs.GraphBatch) -> Tensor:
        return self.backbone.logits(fs.part_of(message, "gnn"), batch)
