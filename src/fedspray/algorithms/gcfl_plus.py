"""GCFL+ (Xie, Ma, Xiong and Yang, NeurIPS 2021): GCFL that compares how the clients' gradient norms went over time.

A single round's update is noisy, so the server keeps the last d norms g_k of every client and cuts a cluster by
their distance under dynamic time warping (DTW):

    D_ij = DTW(g_i, g_j)        similarity = 1 - D_ij / max D        minimum cut of these weights

All else is GCFL's. A cluster is cut only when all its members have d norms, and a cut clears everybody's.

Travels up beside what GCFL sends: one number, the norm of the last local step's gradient (`sequence = "grad"`,
as in the released code) or of the round's update (`"update"`, as in the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms._averaging import ClientState
from fedspray.algorithms.base import Outputs, supervised_loss
from fedspray.algorithms.gcfl import GCFL, ServerState
from fedspray.backbones.base import setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.messages import Declared, each
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, part_of, prefixed


@dataclass(frozen=True, kw_only=True)
class GCFLPlus(GCFL):
    """GCFL whose cuts follow sequences of gradient norms."""

    summary: ClassVar[str] = "GCFL that compares clients by their gradient norms over time"
    uplink: ClassVar[Declared] = {
        **GCFL.uplink,
        "norm": each(
            "norm of the last local step's gradient, or of the round's update",
            "the server compares how the clients' norms went over time",
        ),
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {name: value for name, value in GCFL.presets["published"].items() if name != "cut"},
    }

    cut: str = setting(
        "minimum", "minimum cut of the similarities, or complete linkage (complete)", choices=("minimum", "complete")
    )
    sequence: str = setting(
        "grad",
        "the norm that is compared over time: of the last local step's gradient (grad), or of the update",
        choices=("grad", "update"),
    )
    sequence_length: int = setting(5, "norms of each client that are compared (d)")
    standardise: bool = setting(False, "divide each client's norms by their standard deviation first")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 1:
            raise InputError(f"sequence_length is {self.sequence_length}, but must be at least 1")

    @property
    def norm_memory(self) -> int:
        """`sequence_length`."""
        return self.sequence_length

    def remember_norms(self, server: ServerState, message: Message, ids: Tensor) -> ServerState:
        """Appends this round's norm to each client's last ones."""
        norms, counts = server.norms.clone(), server.norm_counts.clone()
        newest = message["norm"].to(norms.dtype)[:, None]
        norms[ids] = torch.cat([norms[ids, 1:], newest], dim=1)
        counts[ids] = (counts[ids] + 1).clamp(max=self.sequence_length)
        return replace(server, norms=norms, norm_counts=counts)

    def similarities(self, server: ServerState, updates: Tensor, ids: Tensor) -> Tensor | None:
        """1 - D / max D; None while a member has too few norms, or if no pair is closer than the others."""
        if (server.norm_counts[ids] < self.sequence_length).any():
            return None
        sequences = server.norms[ids]
        if self.standardise:
            sequences = sequences / sequences.std(dim=1, correction=0, keepdim=True).clamp(min=1e-12)
        distances = dtw_distances(sequences)
        pairs = distances[torch.ones_like(distances).triu(diagonal=1).bool()]
        if pairs.max() == 0 or (len(pairs) > 1 and pairs.max() == pairs.min()):
            return None
        return 1 - distances / distances.max()

    def cut_weights(self, similarities: Tensor) -> Tensor:
        """The similarities themselves: none is negative."""
        return similarities

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        """An empty optimizer of all weights, for the norms of all gradients."""
        gnn = self.backbone.init_params(task, batch, seed)
        return ClientState(AdamState.zeros(gnn, batch.num_clients))

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        """E steps from the cluster's model, and the norm that the server compares."""
        received = part_of(message, "gnn")
        steps: Params = {}

        def loss(out: Outputs) -> Tensor:
            steps.update(out.params)
            return supervised_loss(out.logits, batch)

        gnn, optimizer = self.fit(received, client.gnn_optimizer, batch, seed, loss)
        if self.sequence == "update":
            norm = norms_of({name: value - received[name] for name, value in gnn.items()})
        else:
            norm = norms_of({name: value.grad for name, value in steps.items() if value.grad is not None})
        return ClientState(optimizer), {**prefixed("gnn", gnn), "num_train": batch.num_train, "norm": norm}


def norms_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """[K]: one norm for each client, over all tensors [K, …] together."""
    return torch.cat([value.flatten(1) for value in tensors.values()], dim=1).square().sum(dim=1).sqrt()


def dtw_distances(sequences: Tensor) -> Tensor:
    """Distance of every two sequences under dynamic time warping: [m, d] → [m, m].

    It is the root of the least sum of squared differences along a path that pairs all entries of both in order.
    """
    count, length = sequences.shape
    border = sequences.new_full((count, count), torch.inf)
    above = [torch.zeros_like(border), *[border] * length]
    for i in range(length):
        row = [border]
        for j in range(length):
            step = (sequences[:, None, i] - sequences[None, :, j]).square()
            row.append(step + torch.minimum(torch.minimum(above[j], above[j + 1]), row[j]))
        above = row
    return above[-1].sqrt()
