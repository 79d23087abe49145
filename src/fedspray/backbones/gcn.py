"""GCN (Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017).

H' = relu(Â H W + b) with Â = D^-1/2 (A + I) D^-1/2, the last layer without relu. A holds the edge weights, if there
are any.

The product order is Â (H W): with sparse features this is far cheaper than a precomputed Â X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedspray.backbones.base import LayeredBackbone
from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.nn import ops
from fedspray.nn.layers import Edges, Layer
from fedspray.nn.plain import gcn_pass, linear


@dataclass(frozen=True)
class GCNLayer(Layer):
    """Â H W + b."""

    def adjacency(self, edges: Edges) -> SparseMatrix:
        """Â."""
        return edges.gcn_adjacency

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        """Â (H W) + b."""
        moved = ops.transform(rows, inputs, weights["weight"])
        return ops.propagate(self.adjacency(edges), moved, rows.ptr, weights["bias"])

    def to_torch(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """Â (X W) + b."""
        return GCNModule(weights["weight"], weights["bias"])


class GCNModule(nn.Module):
    """The same as a plain module."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.linear, self.bias = linear(weight), nn.Parameter(bias.detach().clone())

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in] → [N, out]."""
        return gcn_pass(self.linear(x), edge_index, edge_weight) + self.bias


@dataclass(frozen=True)
class GCN(LayeredBackbone):
    """Graph convolutional network; weights as PyG's ``GCNConv`` (transposed: [in, out])."""

    def layer(self, *, last: bool = False) -> Layer:
        """Every layer is the same."""
        return GCNLayer()
