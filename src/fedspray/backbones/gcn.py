"""GCN (Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017).

H' = relu(Â H W + b) with Â = D^-1/2 (A + I) D^-1/2, the last layer without relu.

The product order is Â (H W): with sparse features this is far cheaper than a precomputed Â X.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedspray.backbones.base import Backbone, Drop, layer_shapes
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.nn import ops
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class GCN(Backbone):
    """Graph convolutional network; weights as PyG's ``GCNConv`` (transposed: [in, out])."""

    feature_weights: ClassVar[tuple[str, ...]] = ("conv1.weight",)

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``conv<l>.weight`` [in, out] and ``conv<l>.bias`` [out]."""
        return layer_shapes("conv", self.widths(task))

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """The last hidden layer [N, H]."""
        hidden = None
        for layer in range(1, self.layers):
            hidden = self._convolve(params, layer, hidden, batch, drop).relu_()
        return hidden

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        return self._convolve(params, self.layers, hidden, batch, drop)

    def _convolve(self, params: Params, layer: int, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        weight, bias = params[f"conv{layer}.weight"], params[f"conv{layer}.bias"]
        transformed = ops.transform(batch.rows, None if hidden is None else drop(hidden), weight)
        return ops.propagate(batch.gcn_adjacency, transformed, batch.rows.ptr, bias)
