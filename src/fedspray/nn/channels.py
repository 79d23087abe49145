"""Some of a batch's edges, for layers that are to see no others; a `GraphBatch` itself is the channel of all edges."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import GraphBatch
from fedspray.data.rows import SparseMatrix


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
    edge_weights: Tensor | None = None
    """[n]: of each entry, 1 for the loops; None: all count alike."""

    @cached_property
    def degrees(self) -> Tensor:
        """[N]: neighbours of each node in this channel, or the sum of their weights; the node itself not counted."""
        # Every node has exactly one loop among the entries.
        return (torch.bincount(self.row, self.edge_weights, minlength=self.num_nodes) - 1).to(self.dtype)

    @cached_property
    def touched(self) -> Tensor:
        """[N, 1]: 1 for nodes that have a neighbour in this channel."""
        return (self.degrees > 0).to(self.dtype)[:, None]

    @cached_property
    def gcn_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1/2 (A_c + I) D^-1/2, or without I; rows of isolated nodes are then 0."""
        row, column, weights = self._entries(loops=self.self_loops)
        scale = _or_one(self.degrees + self.self_loops).rsqrt()
        matrix = self._csr(row, column, _weighted(scale[row] * scale[column], weights))
        return SparseMatrix(matrix, matrix)

    @cached_property
    def mean_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1 A_c, rows of isolated nodes 0."""
        row, column, weights = self._entries(loops=False)
        share = 1 / _or_one(self.degrees)
        forward, backward = (self._csr(row, column, _weighted(share[ends], weights)) for ends in (row, column))
        return SparseMatrix(forward, backward)

    @cached_property
    def edge_index_with_loops(self) -> Tensor:
        """[2, E']: both directions, and the loops if this channel has them."""
        row, column, _ = self._entries(loops=self.self_loops)
        return torch.stack([column, row])

    def _entries(self, *, loops: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Row, column and weight of every entry, with or without the loops."""
        weights = self.edge_weights
        if loops:
            return self.row, self.column, weights
        kept = (~self.is_loop).nonzero()[:, 0]
        return self.row[kept], self.column[kept], None if weights is None else weights[kept]

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


def _or_one(degrees: Tensor) -> Tensor:
    """As a divisor: 1 for nodes without neighbours."""
    return torch.where(degrees > 0, degrees, 1)


def _weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    return values if weights is None else values * weights


def split_edges(batch: GraphBatch, types: Tensor, num_types: int, *, self_loops: bool = True) -> list[Channel]:
    """One channel for each type; ``types`` [E] says which one an undirected edge belongs to."""
    row, column, edge = batch.entries
    type_of = torch.cat([types, types.new_full((1,), -1)])[edge]  # the last edge stands for all loops
    is_loop = edge == len(types)
    weights = None
    if batch.edge_weights is not None:
        weights = torch.from_numpy(np.append(batch.edge_weights, 1.0)).to(batch.device, batch.dtype)[edge]
    channels = []
    for chosen in range(num_types):
        kept = ((type_of == chosen) | is_loop).nonzero()[:, 0]
        parts = (row[kept], column[kept], is_loop[kept])
        own = None if weights is None else weights[kept]
        channels.append(Channel(*parts, batch.num_nodes, batch.dtype, self_loops=self_loops, edge_weights=own))
    return channels
