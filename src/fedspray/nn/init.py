"""Initial weights: explicit, drawn from a named stream, the same on every machine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INITIALISATIONS = ("glorot", "linear", "uniform01", "uniform-out")
"""`glorot`: U(±√(6/(in+out))), biases 0.
`linear`: Glorot's weights, but hidden biases are 5 and the output layer's weights three times as large. relu then
lets nearly everything pass, so that training begins with a linear network whose hidden layer changes slowly.
`uniform01`: U(0, 1), biases too (the released FedSpray's GNN).
`uniform-out`: U(±1/√out), biases too (the released FedSpray's encoder)."""

LINEAR_BIAS, LINEAR_GAIN = 5.0, 3.0


def draw_weight(kind: str, fan_in: int, fan_out: int, generator: torch.Generator, *, output: bool = False) -> Tensor:
    """A weight [in, out], float32; ``output`` says that it is the last layer's."""
    weight = _uniform(_bounds(kind, fan_in, fan_out), (fan_in, fan_out), generator)
    return LINEAR_GAIN * weight if kind == "linear" and output else weight


def draw_bias(kind: str, fan_out: int, generator: torch.Generator, *, output: bool = False) -> Tensor:
    """A bias [out], float32; ``output`` says that it is the last layer's."""
    if kind in ("glorot", "linear"):
        return torch.full((fan_out,), 0.0 if output or kind == "glorot" else LINEAR_BIAS)
    return _uniform(_bounds(kind, fan_out, fan_out), (fan_out,), generator)


def _bounds(kind: str, fan_in: int, fan_out: int) -> tuple[float, float]:
    if kind == "uniform01":
        return 0.0, 1.0
    bound = 1 / math.sqrt(fan_out) if kind == "uniform-out" else math.sqrt(6 / (fan_in + fan_out))
    return -bound, bound


def _uniform(bounds: tuple[float, float], shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high = bounds
    return torch.rand(shape, generator=generator) * (high - low) + low
