"""Initial weights: explicit, drawn from a named stream, the same on every machine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INITIALISATIONS = ("glorot", "positive", "uniform01", "uniform-out")
"""`glorot`: U(±√(6/(in+out))), biases 0. `positive`: U(0, √(6/(in+out))), biases 0.
`uniform01`: U(0, 1), biases too (the released FedSpray's GNN).
`uniform-out`: U(±1/√out), biases too (the released FedSpray's encoder)."""


def draw_weight(kind: str, fan_in: int, fan_out: int, generator: torch.Generator) -> Tensor:
    """A weight [in, out], float32."""
    return _uniform(_bound(kind, fan_in, fan_out), (fan_in, fan_out), generator)


def draw_bias(kind: str, fan_out: int, generator: torch.Generator) -> Tensor:
    """A bias [out], float32; zero for `glorot`."""
    if kind in ("glorot", "positive"):
        return torch.zeros(fan_out)
    return _uniform(_bound(kind, fan_out, fan_out), (fan_out,), generator)


def _bound(kind: str, fan_in: int, fan_out: int) -> tuple[float, float]:
    if kind == "uniform01":
        return 0.0, 1.0
    bound = 1 / math.sqrt(fan_out) if kind == "uniform-out" else math.sqrt(6 / (fan_in + fan_out))
    return (0.0 if kind == "positive" else -bound), bound


def _uniform(bounds: tuple[float, float], shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high = bounds
    return torch.rand(shape, generator=generator) * (high - low) + low
