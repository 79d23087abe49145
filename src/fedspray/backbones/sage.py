"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017).

H' = relu(mean_{j in N(i)} h_j W_n + h_i W_r + b), the last layer without relu; a node without
neighbours has mean 0.

Both weights are one matrix [in, 2·out], neighbours' half first: one product with the features serves
both, and the mean is taken of the narrower side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedspray.backbones.base import Backbone, Drop, layer_shapes
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.nn import init, ops
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class SAGE(Backbone):
    """GraphSAGE, mean aggregation; ``weight`` is PyG's ``[lin_l | lin_r]``, transposed."""

    feature_weights: ClassVar[tuple[str, ...]] = ("conv1.weight",)

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``conv<l>.weight`` [in, 2·out] (neighbours, root) and ``conv<l>.bias`` [out]."""
        return layer_shapes("conv", self.widths(task), columns=2)

    def draw_weight(self, fan_in: int, fan_out: int, generator: torch.Generator, *, output: bool) -> Tensor:
        """Each half is drawn as a weight of its own, so that its scale is that of [in, out]."""
        halves = [init.draw_weight(self.init, fan_in, fan_out // 2, generator, output=output) for _ in range(2)]
        return torch.cat(halves, dim=1)

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
        both = ops.transform(batch.rows, None if hidden is None else drop(hidden), params[f"conv{layer}.weight"])
        return ops.propagate_beside(batch.mean_adjacency, both, batch.rows.ptr, params[f"conv{layer}.bias"])
