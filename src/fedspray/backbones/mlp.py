"""MLP: features only, no message passing. The paper's yardstick for what neighbours do to minority nodes."""

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
class MLP(Backbone):
    """Multi-layer perceptron with relu between the layers."""

    feature_weights: ClassVar[tuple[str, ...]] = ("linear1.weight",)

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``linear<l>.weight`` [in, out] and ``linear<l>.bias`` [out]."""
        return layer_shapes("linear", self.widths(task))

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """The last hidden layer [N, H]."""
        hidden = None
        for layer in range(1, self.layers):
            hidden = self._apply(params, layer, hidden, batch, drop).relu_()
        return hidden

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        return self._apply(params, self.layers, hidden, batch, drop)

    def _apply(self, params: Params, layer: int, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        weight, bias = params[f"linear{layer}.weight"], params[f"linear{layer}.bias"]
        return ops.transform(batch.rows, None if hidden is None else drop(hidden), weight, bias)
