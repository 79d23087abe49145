"""What a layer of a GNN is: [N, in] → [N, out] over any set of edges, with weights [K, …] that are passed in.

Backbones stack layers of one kind; networks with several channels run them over some of the edges. Each kind is
written once, in the file of the backbone that is named after it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.errors import InputError
from fedspray.nn import init, ops
from fedspray.nn.plain import Affine
from fedspray.nn.tree import Params, prefixed

Shapes = dict[str, tuple[int, ...]]
"""Name and shape of every weight ([in, out] or [out]), in the order in which they are drawn."""


class NoPlainModule(InputError):
    """There is no plain torch module of a model."""


class Edges(Protocol):
    """What a layer needs to know of the edges it runs over: a `GraphBatch`, or a `Channel` of one."""

    @property
    def edge_weights(self) -> NDArray[np.float64] | Tensor | None:
        """A positive number for each edge; None: all count alike."""

    @property
    def gcn_adjacency(self) -> SparseMatrix:
        """[N, N]: normalised symmetrically."""

    @property
    def mean_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1 A."""

    @property
    def edge_index_with_loops(self) -> Tensor:
        """[2, E']: sources and targets that attention runs over."""


@dataclass(frozen=True)
class Layer(ABC):
    """One kind of layer. Its fields are hyper-parameters only."""

    has_weights: ClassVar[bool] = True
    """If False it only passes messages, and neither an activation nor dropout follows it."""

    @abstractmethod
    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        """The layer without an activation: inputs [N, in], or None for the features of ``rows``, → [N, out]."""

    def shapes(self, fan_in: int, fan_out: int) -> Shapes:
        """Shapes of the layer's weights; ``weight`` is the one applied to the inputs."""
        return {"weight": (fan_in, fan_out), "bias": (fan_out,)}

    def draw(
        self, fan_in: int, fan_out: int, generator: torch.Generator, kind: str = "glorot", *, output: bool = False
    ) -> Params:
        """Initial weights of one client, of a kind that `nn.init` knows; ``output`` marks the last layer."""
        return {
            name: init.draw_bias(kind, shape[0], generator, output=output)
            if len(shape) == 1
            else self.draw_weight(kind, shape[0], shape[1], generator, output=output)
            for name, shape in self.shapes(fan_in, fan_out).items()
        }

    def draw_weight(self, kind: str, rows: int, columns: int, generator: torch.Generator, *, output: bool) -> Tensor:
        """One weight matrix."""
        return init.draw_weight(kind, rows, columns, generator, output=output)

    def adjacency(self, edges: Edges) -> SparseMatrix | None:
        """The matrix it passes messages with; None if it passes none."""
        return None

    def to_torch(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The layer with one client's weights as a plain module: (x, edge_index, edge_weight) → [N, out]."""
        raise NoPlainModule(f"{type(self).__name__} has no plain module: it does not implement to_torch")

    def activate(self, hidden: Tensor) -> Tensor:
        """The activation between two layers of this kind; may modify ``hidden``."""
        return hidden.relu_()

    @property
    def width_step(self) -> int:
        """Widths must be multiples of this."""
        return 1


@dataclass(frozen=True)
class Linear(Layer):
    """H W + b: no messages."""

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        """H W + b."""
        return ops.transform(rows, inputs, weights["weight"], weights["bias"])

    def to_torch(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A linear map."""
        return Affine(weights["weight"], weights["bias"])


Table = Mapping[str, tuple[Layer, int, int]]
"""The layers of a network by name, each with the widths of its inputs and outputs."""


def shapes_of(table: Table) -> Shapes:
    """``<layer>.<weight>`` for all layers."""
    return {
        f"{name}.{part}": shape for name, (layer, *ends) in table.items() for part, shape in layer.shapes(*ends).items()
    }


def draw_all(table: Table, generator: torch.Generator, kind: str = "glorot") -> Params:
    """Initial weights of all layers, one after the other; the last one is the output layer."""
    drawn: Params = {}
    for name, (layer, fan_in, fan_out) in table.items():
        drawn |= prefixed(name, layer.draw(fan_in, fan_out, generator, kind, output=name == list(table)[-1]))
    return drawn


def num_weights(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers in a model with these shapes."""
    return sum(math.prod(shape) for shape in shapes.values())


def closest_width(size: Callable[[int], int], target: int, step: int = 1) -> int:
    """The multiple of ``step`` whose network comes closest to ``target`` parameters; ``size`` grows with the width."""
    width = step
    while size(width) < target:
        width += step
    narrower = max(step, width - step)
    return width if size(width) - target < abs(target - size(narrower)) else narrower
