"""SGC (Wu et al., "Simplifying graph convolutional networks", ICML 2019): one linear map after K hops.

logits = Â^K X W + b, computed as Â(…(Â (X W))): the hops run over C columns instead of F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedspray.backbones.base import Backbone, Drop, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.nn import ops
from fedspray.nn.init import INITIALISATIONS
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class SGC(Backbone):
    """Simplified graph convolution; ``hidden`` and ``dropout`` have no meaning here."""

    feature_weights: ClassVar[tuple[str, ...]] = ("linear.weight",)

    init: str = setting("glorot", "initial weights; see fedspray.nn.init", choices=INITIALISATIONS)
    lr: float = setting(0.02, "Adam's step size (one linear map learns slowly at 0.003)")

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``linear.weight`` [F, C] and ``linear.bias`` [C]."""
        return {"linear.weight": (task.num_features, task.num_classes), "linear.bias": (task.num_classes,)}

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """None: there is no hidden layer."""
        return None

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        scores = ops.feature_linear(batch.rows, params["linear.weight"])
        for hop in range(self.layers):
            bias = params["linear.bias"] if hop == self.layers - 1 else None
            scores = ops.propagate(batch.gcn_adjacency, scores, batch.rows.ptr, bias)
        return scores
