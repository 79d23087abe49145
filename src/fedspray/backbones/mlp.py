"""MLP: features only, no message passing. The paper's yardstick for what neighbours do to minority nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspray.backbones.base import LayeredBackbone
from fedspray.nn.layers import Layer, Linear


@dataclass(frozen=True)
class MLP(LayeredBackbone):
    """Multi-layer perceptron with relu between the layers."""

    layer_name: ClassVar[str] = "linear"

    def layer(self, *, last: bool = False) -> Layer:
        """Every layer is the same."""
        return Linear()
