"""One layer of a GNN over any set of a batch's edges: what networks of several channels are built from.

`Channel` is the part of the edges that one channel sees; a `GraphBatch` itself is the channel of all edges.
`Convolution` is the layer of a backbone's kind, with weights of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import GraphBatch, NodeRows, SparseMatrix
from fedspray.errors import InputError
from fedspray.nn import init, ops
from fedspray.nn.attention import attend
from fedspray.nn.tree import Params

KINDS = ("gcn", "sage", "sgc", "gat", "mlp")
"""The backbones whose layers are known here."""


class Edges(Protocol):
    """What a layer needs to know of the edges it runs over."""

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
class Convolution:
    """A layer [N, in] → [N, out] as a backbone of this kind has it.

    ``gcn``: Â H W + b. ``sage``: mean of neighbours and root, one weight [in, 2·out]. ``gat``: attention, with
    ``source`` and ``target`` vectors [1, out]. ``mlp``: H W + b, no messages. ``sgc``: Â H, without weights.
    """

    kind: str
    heads: int = 1
    negative_slope: float = 0.2

    def shapes(self, fan_in: int, fan_out: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of the layer's weights."""
        if self.kind == "sgc":
            return {}
        columns = 2 * fan_out if self.kind == "sage" else fan_out
        attention = {"source": (1, fan_out), "target": (1, fan_out)} if self.kind == "gat" else {}
        return {"weight": (fan_in, columns), **attention, "bias": (fan_out,)}

    def draw(self, fan_in: int, fan_out: int, generator: torch.Generator) -> Params:
        """Glorot's weights and zero biases; SAGE's two halves are drawn apart, for their scale."""
        halves = 2 if self.kind == "sage" else 1
        drawn: Params = {}
        for name, shape in self.shapes(fan_in, fan_out).items():
            if name == "bias":
                drawn[name] = init.draw_bias("glorot", fan_out, generator)
            else:
                parts = [init.draw_weight("glorot", shape[0], fan_out, generator) for _ in range(halves)]
                drawn[name] = torch.cat(parts, dim=1)
        return drawn

    def __call__(self, weights: Mapping[str, Tensor], hidden: Tensor, edges: Edges, rows: NodeRows) -> Tensor:
        """Applies the layer, without an activation; weights are [K, …]."""
        if self.kind == "sgc":
            return ops.propagate(edges.gcn_adjacency, hidden, rows.ptr)
        if self.kind == "mlp":
            return ops.linear(hidden, rows.ptr, weights["weight"], weights["bias"])
        moved = ops.linear(hidden, rows.ptr, weights["weight"])
        if self.kind == "gcn":
            return ops.propagate(edges.gcn_adjacency, moved, rows.ptr, weights["bias"])
        if self.kind == "sage":
            neighbours, root = moved.chunk(2, dim=1)
            return ops.propagate(edges.mean_adjacency, neighbours.contiguous(), rows.ptr, weights["bias"]) + root
        loops = edges.edge_index_with_loops
        return attend(moved, weights, loops, rows, heads=self.heads, slope=self.negative_slope)

    def activate(self, hidden: Tensor) -> Tensor:
        """What stands between two layers of this kind."""
        if self.kind == "sgc":
            return hidden
        return functional.elu(hidden) if self.kind == "gat" else hidden.relu()


def convolution_like(backbone: object, algorithm: str) -> Convolution:
    """The layer that ``backbone`` is built of, for an algorithm with a network of its own."""
    kind = type(backbone).__name__.lower()
    if kind not in KINDS:
        name = getattr(backbone, "target", kind)
        raise InputError(f"backbone is {name!r}, but {algorithm} has a network of its own for {', '.join(KINDS)} only")
    return Convolution(kind, getattr(backbone, "heads", 1), getattr(backbone, "negative_slope", 0.2))


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


@dataclass(frozen=True, eq=False)
class Channel:
    """Some of a batch's edges, both directions, with (or without) a self-loop at every node."""

    row: Tensor
    """[n]: target of each entry of A_c + I, in the order of a CSR matrix."""
    column: Tensor
    is_loop: Tensor
    num_nodes: int
    dtype: torch.dtype
    self_loops: bool = True

    @cached_property
    def degrees(self) -> Tensor:
        """[N]: neighbours of each node in this channel, the node itself not counted."""
        # Every node has exactly one loop among the entries.
        return (torch.bincount(self.row, minlength=self.num_nodes) - 1).to(self.dtype)

    @cached_property
    def touched(self) -> Tensor:
        """[N, 1]: 1 for nodes that have a neighbour in this channel."""
        return (self.degrees > 0).to(self.dtype)[:, None]

    @cached_property
    def gcn_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1/2 (A_c + I) D^-1/2, or without I; rows of isolated nodes are then 0."""
        row, column = self._entries(loops=self.self_loops)
        scale = (self.degrees + self.self_loops).clamp(min=1).rsqrt()
        matrix = self._csr(row, column, scale[row] * scale[column])
        return SparseMatrix(matrix, matrix)

    @cached_property
    def mean_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1 A_c, rows of isolated nodes 0."""
        row, column = self._entries(loops=False)
        share = 1 / self.degrees.clamp(min=1)
        return SparseMatrix(self._csr(row, column, share[row]), self._csr(row, column, share[column]))

    @cached_property
    def edge_index_with_loops(self) -> Tensor:
        """[2, E']: both directions, and the loops if this channel has them."""
        row, column = self._entries(loops=self.self_loops)
        return torch.stack([column, row])

    def _entries(self, *, loops: bool) -> tuple[Tensor, Tensor]:
        """Row and column of every entry, with or without the loops."""
        if loops:
            return self.row, self.column
        kept = (~self.is_loop).nonzero()[:, 0]
        return self.row[kept], self.column[kept]

    def _csr(self, row: Tensor, column: Tensor, values: Tensor) -> Tensor:
        counts = torch.bincount(row, minlength=self.num_nodes)
        start = functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            return torch.sparse_csr_tensor(
                start,
                column.to(torch.int32),
                values,
                size=(self.num_nodes, self.num_nodes),
                check_invariants=False,  # rows and columns are sorted by construction
            )


def split_edges(batch: GraphBatch, types: Tensor, num_types: int, *, self_loops: bool = True) -> list[Channel]:
    """One channel for each type; ``types`` [E] says which one an undirected edge belongs to."""
    row, column, edge = _entries(batch)
    type_of = torch.cat([types, types.new_full((1,), -1)])[edge]  # the last edge stands for all loops
    is_loop = edge == len(types)
    channels = []
    for chosen in range(num_types):
        kept = ((type_of == chosen) | is_loop).nonzero()[:, 0]
        parts = (row[kept], column[kept], is_loop[kept])
        channels.append(Channel(*parts, num_nodes=batch.num_nodes, dtype=batch.dtype, self_loops=self_loops))
    return channels


def _entries(batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and edge number (E for loops) of every entry of A + I, in CSR order; found once for each batch."""
    known: tuple[Tensor, Tensor, Tensor] | None = batch.__dict__.get("_entries")
    if known is None:
        (u, v), loops = batch.edges, np.arange(batch.num_nodes)
        row, column = np.concatenate([u, v, loops]), np.concatenate([v, u, loops])
        edge = np.concatenate([np.arange(len(u)), np.arange(len(u)), np.full(batch.num_nodes, len(u))])
        order = np.lexsort((column, row))
        known = (torch.from_numpy(row[order]), torch.from_numpy(column[order]), torch.from_numpy(edge[order]))
        batch.__dict__["_entries"] = known
    return known
