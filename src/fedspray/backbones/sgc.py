"""SGC (Wu et al., "Simplifying graph convolutional networks", ICML 2019): one linear map after K hops.

logits = Â^K X W + b, computed as Â(…(Â (X W))): the hops run over C columns instead of F.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedspray.backbones.base import Backbone, Drop, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.nn import ops
from fedspray.nn.init import INITIALISATIONS
from fedspray.nn.layers import Edges, Layer, Shapes
from fedspray.nn.plain import gcn_pass, linear
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class Hop(Layer):
    """Â H, without weights."""

    has_weights: ClassVar[bool] = False

    def shapes(self, fan_in: int, fan_out: int) -> Shapes:
        """None."""
        return {}

    def adjacency(self, edges: Edges) -> SparseMatrix:
        """GCN's Â."""
        return edges.gcn_adjacency

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        """Â H, and the bias of the linear map if it is given."""
        assert inputs is not None  # features come as X W
        return ops.propagate(self.adjacency(edges), inputs, rows.ptr, weights.get("bias"))


@dataclass(frozen=True)
class SGC(Backbone):
    """Simplified graph convolution: no hidden layer, so no width and no dropout."""

    ignores: ClassVar[frozenset[str]] = frozenset({"hidden", "dropout"})

    init: str = setting("glorot", "initial weights; see fedspray.nn.init", choices=INITIALISATIONS)
    lr: float = setting(0.02, "Adam's step size (one linear map learns slowly at 0.003)", above=0)

    @property
    def feature_weights(self) -> tuple[str, ...]:
        """The only weight."""
        return ("linear.weight",)

    def inner_layer(self) -> Layer:
        """One hop."""
        return Hop()

    def shapes(self, task: Task) -> Shapes:
        """``linear.weight`` [F, C] and ``linear.bias`` [C]."""
        return {"linear.weight": (task.num_features, task.num_classes), "linear.bias": (task.num_classes,)}

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """None: there is no hidden layer."""
        return None

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        hop, scores = Hop(), ops.feature_linear(batch.rows, params["linear.weight"])
        for _ in range(self.layers - 1):
            scores = hop({}, scores, batch, batch.rows)
        return hop({"bias": params["linear.bias"]}, scores, batch, batch.rows)

    def to_torch(self, params: Params, task: Task) -> nn.Module:
        """Â(…(Â (X W))) + b."""
        return SGCModule(params["linear.weight"], params["linear.bias"], self.layers)


class SGCModule(nn.Module):
    """The same as a plain module."""

    def __init__(self, weight: Tensor, bias: Tensor, hops: int) -> None:
        super().__init__()
        self.linear, self.bias, self.hops = linear(weight), nn.Parameter(bias.detach().clone()), hops

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, F] → [N, C]."""
        scores: Tensor = self.linear(x)
        for _ in range(self.hops):
            scores = gcn_pass(scores, edge_index, edge_weight)
        return scores + self.bias
