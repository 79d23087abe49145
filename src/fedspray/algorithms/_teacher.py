"""FedSpray 2's teacher: what it reads around a node, what it says, and what it is worth as a plain module.

    e_i = relu(g_e(x_i / ‖x_i‖))     q_i = softmax(g_q(e_i))     p_i = softmax(g_p(e_i) + h_i S)

An encoder has the layers `embedding` (g_e), `feature_head` (g_q) and `fusion_head` (g_p), and `proxies` (S).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.rows import NodeRows
from fedspray.nn import ops
from fedspray.nn.layers import Linear, draw_all
from fedspray.nn.plain import linear, neighbour_sum, unit
from fedspray.nn.tree import Params


def draw_teacher(task: Task, width: int, generator: torch.Generator) -> Params:
    """An encoder whose structure proxies say nothing yet."""
    to_classes = (Linear(), width, task.num_classes)
    layers = {"embedding": (Linear(), task.num_features, width), "feature_head": to_classes, "fusion_head": to_classes}
    return {**draw_all(layers, generator), "proxies": torch.zeros(2 * task.num_classes, task.num_classes)}


def label_histograms(labels: Tensor, batch: GraphBatch) -> Tensor:
    """The mean label over the neighbours of each node, and over the ends of its two-step walks that do not return.

    Of the (A²)_ij two-step walks from i to j, those that return are the deg_i with j = i: taking them off leaves
    A(Az) - deg·z for the sum and A·deg - deg for the number. So no row depends on the node's own label (up to
    rounding). Without neighbours, or without such walks, the mean is 0.

    Shapes: labels [N, C] → [N, 2C].
    """
    counted = torch.cat([labels, labels.new_ones(len(labels), 1)], dim=1)  # the last column counts walks
    once = ops.propagate(batch.adjacency, counted, batch.rows.ptr)
    twice = ops.propagate(batch.adjacency, once, batch.rows.ptr) - once[:, -1:] * counted
    means = [torch.where(sums[:, -1:] > 0, sums[:, :-1] / sums[:, -1:], 0) for sums in (once, twice)]
    return torch.cat(means, dim=1)


def embed(encoder: Params, rows: NodeRows) -> Tensor:
    """e before its relu, from features that are scaled to length 1."""
    products = ops.feature_linear(rows, encoder["embedding.weight"]) * rows.to_unit_length[:, None]
    return products + ops.per_row(encoder["embedding.bias"], rows)


def node_lengths(deltas: Sequence[Tensor], embedding: Tensor, histograms: Tensor) -> Tensor:
    """[n]: an upper bound of the length of each node's gradient, exact if it has a feature (Goodfellow, 2015).

    The gradient of a layer's weights is the product of its input and the loss's derivative by its output; the input is
    the features (of length 1), the embedding, and h; biases have the input 1.
    """
    before, feature, fusion = (delta.square().sum(dim=1) for delta in deltas)
    inputs = embedding.detach().square().sum(dim=1) + 1
    squares = 2 * before + inputs * (feature + fusion) + histograms.square().sum(dim=1) * fusion
    return squares.sqrt().clamp(min=1e-12)


def fuse(encoder: Params, embedding: Tensor, histograms: Tensor, rows: NodeRows) -> Tensor:
    """The logits of p."""
    said = ops.linear(histograms, rows.ptr, encoder["proxies"])
    return head(encoder, "fusion_head", embedding, rows) + said


def head(encoder: Params, name: str, inputs: Tensor, rows: NodeRows) -> Tensor:
    """The logits of one of the two heads."""
    return ops.linear(inputs, rows.ptr, encoder[f"{name}.weight"], encoder[f"{name}.bias"])


class Blend(nn.Module):
    """A GNN and the teacher as one plain module."""

    def __init__(self, gnn: nn.Module, encoder: Params, blend: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.gnn = gnn
        self.blend: Tensor
        self.offset: Tensor
        parts = ("embedding", "feature_head", "fusion_head")
        self.embedding, self.feature_head, self.fusion_head = (
            linear(encoder[f"{part}.weight"], encoder[f"{part}.bias"]) for part in parts
        )
        self.proxies = nn.Parameter(encoder["proxies"].detach().clone())
        self.register_buffer("blend", blend.detach().clone())
        self.register_buffer("offset", offset.detach().clone())

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """[N, F] → [N, C]."""
        embedding = self.embedding(unit(x)).relu()
        guesses = self.feature_head(embedding).softmax(dim=1)
        if labels is not None:
            known = torch.eye(guesses.shape[1], dtype=x.dtype, device=x.device)[labels.clamp(min=0)]
            guesses = torch.where(labels[:, None] >= 0, known, guesses)
        counted = torch.cat([guesses, torch.ones_like(guesses[:, :1])], dim=1)
        once = neighbour_sum(counted, edge_index, edge_weight)
        twice = neighbour_sum(once, edge_index, edge_weight) - once[:, -1:] * counted
        means = [torch.where(s[:, -1:] > 0, s[:, :-1] / s[:, -1:].clamp(min=1e-30), 0) for s in (once, twice)]
        taught = self.fusion_head(embedding) + torch.cat(means, dim=1) @ self.proxies
        own = self.gnn(x, edge_index, edge_weight)
        mixed: Tensor = (1 - self.blend) * own.log_softmax(dim=1) + self.blend * taught.log_softmax(dim=1)
        return mixed - self.offset
