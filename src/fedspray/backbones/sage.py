"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017).

H' = relu(mean_{j in N(i)} h_j W_n + h_i W_r + b), the last layer without relu; a node without
neighbours has mean 0. Where edges have weights, the mean is weighted by them.

Both weights are one matrix [in, 2·out], neighbours' half first: one product with the features serves
both, and the mean is taken of the narrower side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspray.backbones.base import LayeredBackbone
from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.nn import init, ops
from fedspray.nn.layers import Edges, Layer, Shapes
from fedspray.nn.plain import linear, mean_pass


@dataclass(frozen=True)
class SAGELayer(Layer):
    """Mean of the neighbours beside the node itself."""

    root_last: bool = False
    """(A L + b) + R instead of A L + (R + b): the order of the networks with channels, which rounds differently."""

    def shapes(self, fan_in: int, fan_out: int) -> Shapes:
        """``weight`` [in, 2·out] (neighbours, root) and ``bias`` [out]."""
        return {"weight": (fan_in, 2 * fan_out), "bias": (fan_out,)}

    def draw_weight(self, kind: str, rows: int, columns: int, generator: torch.Generator, *, output: bool) -> Tensor:
        """Each half is drawn separately, so that its scale is that of [in, out]."""
        halves = [init.draw_weight(kind, rows, columns // 2, generator, output=output) for _ in range(2)]
        return torch.cat(halves, dim=1)

    def adjacency(self, edges: Edges) -> SparseMatrix:
        """D^-1 A."""
        return edges.mean_adjacency

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        """mean(H W_n) + H W_r + b."""
        both, mean = ops.transform(rows, inputs, weights["weight"]), self.adjacency(edges)
        if not self.root_last:
            return ops.propagate_beside(mean, both, rows.ptr, weights["bias"])
        neighbours, root = both.chunk(2, dim=1)
        return ops.propagate(mean, neighbours.contiguous(), rows.ptr, weights["bias"]) + root

    def to_torch(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """mean(X) W_n + X W_r + b."""
        neighbours, root = weights["weight"].chunk(2, dim=1)
        return SAGEModule(neighbours, root, weights["bias"])


class SAGEModule(nn.Module):
    """The same as a plain module."""

    def __init__(self, neighbours: Tensor, root: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.neighbours, self.root = linear(neighbours), linear(root, bias)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in] → [N, out]."""
        found: Tensor = mean_pass(self.neighbours(x), edge_index, edge_weight) + self.root(x)
        return found


@dataclass(frozen=True)
class SAGE(LayeredBackbone):
    """GraphSAGE, mean aggregation; ``weight`` is PyG's ``[lin_l | lin_r]``, transposed."""

    def layer(self, *, last: bool = False) -> Layer:
        """Every layer is the same."""
        return SAGELayer()

    def inner_layer(self) -> Layer:
        """With the order of sums that earlier results used."""
        return SAGELayer(root_last=True)
