"""MLP: features only, no message passing. The paper's yardstick for what neighbours do to minority nodes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedspray.backbones.base import Backbone, Drop, layer_shapes
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.nn import ops
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class MLP(Backbone):
    """Multi-layer perceptron with relu between the layers."""

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``linear<l>.weight`` [in, out] and ``linear<l>.bias`` [out]."""
        return layer_shapes("linear", self.widths(task))

    def forward(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        hidden = ops.feature_linear(batch.rows, params["linear1.weight"], params["linear1.bias"])
        for layer in range(2, self.layers + 1):
            weight, bias = params[f"linear{layer}.weight"], params[f"linear{layer}.bias"]
            hidden = ops.linear(drop(hidden.relu()), batch.rows.ptr, weight, bias)
        return hidden
