"""GCN (Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017).

H' = relu(Â H W + b) with Â = D^-1/2 (A + I) D^-1/2, the last layer without relu. A holds the edge weights, if there
are any.

The product order is Â (H W): with sparse features this is far cheaper than a precomputed Â X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedspray.backbones.base import LayeredBackbone
from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.nn import ops
from fedspray.nn.layers import Edges, Layer


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


@dataclass(frozen=True)
class GCN(LayeredBackbone):
    """Graph convolutional network; weights as PyG's ``GCNConv`` (transposed: [in, out])."""

    def layer(self, *, last: bool = False) -> Layer:
        """Every layer is the same."""
        return GCNLayer()
