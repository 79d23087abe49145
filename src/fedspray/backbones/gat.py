"""GAT (Veličković et al., "Graph attention networks", ICLR 2018).

For every edge j → i, self-loops included: α_ij = softmax_j(leaky_relu(a_s·W h_j + a_t·W h_i)), and
h'_i = Σ_j α_ij W h_j + b. Hidden layers have several heads side by side and elu between them; the last
layer has one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from fedspray.backbones.base import Backbone, Drop, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.nn import ops
from fedspray.nn.attention import attend
from fedspray.nn.init import INITIALISATIONS
from fedspray.nn.tree import Params, part_of


@dataclass(frozen=True)
class GAT(Backbone):
    """Graph attention network; weights as PyG's ``GATConv`` (``lin`` transposed, attention vectors flattened)."""

    feature_weights: ClassVar[tuple[str, ...]] = ("conv1.weight",)

    init: str = setting("glorot", "initial weights; see fedspray.nn.init", choices=INITIALISATIONS)
    heads: int = setting(8, "attention heads of the hidden layers; their widths add up to `hidden`")
    negative_slope: float = setting(0.2, "slope of leaky_relu below 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.negative_slope <= 1:
            raise InputError(f"negative_slope is {self.negative_slope}, but must be from 0 to 1")
        if self.heads < 1 or self.hidden % self.heads:
            raise InputError(f"heads is {self.heads}, but must divide hidden, which is {self.hidden}")

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """``conv<l>.weight`` [in, out], ``conv<l>.source`` and ``.target`` [1, out], ``conv<l>.bias`` [out]."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.widths(task)), start=1):
            shapes |= {
                f"conv{layer}.weight": (fan_in, fan_out),
                f"conv{layer}.source": (1, fan_out),
                f"conv{layer}.target": (1, fan_out),
                f"conv{layer}.bias": (fan_out,),
            }
        return shapes

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """The last hidden layer [N, H]."""
        hidden = None
        for layer in range(1, self.layers):
            hidden = functional.elu(self._convolve(params, layer, hidden, batch, drop))
        return hidden

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        return self._convolve(params, self.layers, hidden, batch, drop)

    def _convolve(self, params: Params, layer: int, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        weights = part_of(params, f"conv{layer}")
        moved = ops.transform(batch.rows, None if hidden is None else drop(hidden), weights["weight"])
        heads = self.heads if layer < self.layers else 1
        return attend(moved, weights, batch.edge_index_with_loops, batch.rows, heads=heads, slope=self.negative_slope)
