"""GAT (Veličković et al., "Graph attention networks", ICLR 2018).

For every edge j → i, self-loops included: α_ij = softmax_j(leaky_relu(a_s·W h_j + a_t·W h_i)), and
h'_i = Σ_j α_ij W h_j + b. Hidden layers have several heads side by side and elu between them; the last
layer has one head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspray.backbones.base import LayeredBackbone, setting
from fedspray.data.rows import NodeRows
from fedspray.errors import InputError
from fedspray.nn import ops
from fedspray.nn.init import INITIALISATIONS
from fedspray.nn.layers import Edges, Layer, Shapes
from fedspray.nn.plain import linear


@dataclass(frozen=True)
class GATLayer(Layer):
    """Attention, with heads side by side."""

    heads: int = 1
    negative_slope: float = 0.2

    @property
    def width_step(self) -> int:
        """Heads are equally wide."""
        return self.heads

    def shapes(self, fan_in: int, fan_out: int) -> Shapes:
        """``weight`` (W) [in, out], ``source`` and ``target`` (a_s and a_t of all heads) [1, out], ``bias`` [out]."""
        vectors = {"source": (1, fan_out), "target": (1, fan_out)}
        return {"weight": (fan_in, fan_out), **vectors, "bias": (fan_out,)}

    def activate(self, hidden: Tensor) -> Tensor:
        """elu."""
        return functional.elu(hidden)

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        """Σ_j α_ij v_j + b with v = H W, for each head apart."""
        if edges.edge_weights is not None:
            raise InputError("edges have weights, but gat learns its own: use gcn, sage or sgc, or remove the weights")
        moved = ops.transform(rows, inputs, weights["weight"])
        values = moved.view(len(moved), self.heads, -1)  # [N, heads, width]
        vectors = {name: ops.per_row(weights[name][:, 0], rows).view_as(values) for name in ("source", "target")}
        from_source, at_target = ((values * vectors[name]).sum(dim=2) for name in ("source", "target"))  # [N, heads]
        source, target = edges.edge_index_with_loops
        scores = functional.leaky_relu(from_source[source] + at_target[target], self.negative_slope)
        messages = values[source] * _softmax_by_target(scores, target, len(moved))[:, :, None]
        summed = torch.zeros_like(values).index_add(0, target, messages)
        return summed.flatten(1) + ops.per_row(weights["bias"], rows)

    def to_torch(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """Attention over neighbours and the node itself."""
        return GATModule(weights, self)


class GATModule(nn.Module):
    """The same as a plain module."""

    def __init__(self, weights: Mapping[str, Tensor], layer: GATLayer) -> None:
        super().__init__()
        self.linear, self.bias = linear(weights["weight"]), nn.Parameter(weights["bias"].detach().clone())
        shape = (layer.heads, -1)
        self.source, self.target = (nn.Parameter(weights[n].detach().clone().view(shape)) for n in ("source", "target"))
        self.negative_slope = layer.negative_slope

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in] → [N, out]."""
        values = self.linear(x).view(-1, *self.source.shape)
        itself = torch.arange(x.shape[0], device=x.device)
        source, target = torch.cat([edge_index, torch.stack([itself, itself])], dim=1)
        scores = (values * self.source).sum(dim=2)[source] + (values * self.target).sum(dim=2)[target]
        shares = _softmax_by_target(functional.leaky_relu(scores, self.negative_slope), target, x.shape[0])
        summed = torch.zeros_like(values).index_add(0, target, values[source] * shares[:, :, None])
        return summed.flatten(1) + self.bias


@dataclass(frozen=True)
class GAT(LayeredBackbone):
    """Graph attention network; weights as PyG's ``GATConv`` (``lin`` transposed, attention vectors flattened)."""

    init: str = setting("glorot", "initial weights; see fedspray.nn.init", choices=INITIALISATIONS)
    heads: int = setting(8, "attention heads of the hidden layers; their widths add up to `hidden`")
    negative_slope: float = setting(0.2, "slope of leaky_relu below 0", least=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads < 1 or self.hidden % self.heads:
            raise InputError(f"heads is {self.heads}, but must divide hidden, which is {self.hidden}")

    def layer(self, *, last: bool = False) -> Layer:
        """The last one has one head."""
        return GATLayer(1 if last else self.heads, self.negative_slope)


def _softmax_by_target(scores: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Softmax of [E, heads] over the edges that end at the same node."""
    highest = scores.new_full((num_nodes, scores.shape[1]), -torch.inf)
    highest = highest.scatter_reduce(0, target[:, None].expand_as(scores), scores.detach(), reduce="amax")
    exponentials = (scores - highest[target]).exp()
    totals = torch.zeros_like(highest).index_add(0, target, exponentials)
    return exponentials / totals[target]
