"""GCN (Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017).

H' = relu(Â H W + b) with Â = D^-1/2 (A + I) D^-1/2, the last layer without relu.

The product order is Â (H W): with sparse features this is far cheaper than a precomputed Â X.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedspray.backbones.base import Backbone, Drop, layer_shapes
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.nn import ops
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class GCN(Backbone):
    """Graph convolutional network; weights as PyG's ``GCNConv`` (transposed: [in, out])."""

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``conv<l>.weight`` [in, out] and ``conv<l>.bias`` [out]."""
        return layer_shapes("conv", self.widths(task))

    def forward(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        ptr = batch.rows.ptr
        transformed = ops.feature_linear(batch.rows, params["conv1.weight"])
        hidden = ops.propagate(batch.gcn_adjacency, transformed, ptr, params["conv1.bias"])
        for layer in range(2, self.layers + 1):
            transformed = ops.linear(drop(hidden.relu()), ptr, params[f"conv{layer}.weight"])
            hidden = ops.propagate(batch.gcn_adjacency, transformed, ptr, params[f"conv{layer}.bias"])
        return hidden
