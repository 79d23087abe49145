"""Structure embeddings: a node's surroundings, without features.

    s_v = [ RWSE_v | DSE_v ]
    RWSE_v = ((M¹)_vv … (Mᵀ)_vv), M = A D⁻¹: the chance that a random walk is back at v after 1 … T steps
    DSE_v  = one-hot of the degree of v, in B buckets

Self-loops do not count. M has the diagonals of the symmetric S = D^-1/2 A D^-1/2, hence with columns Y_m = S^m[:, B]

    diag(S^2m)[B] = column sums of Y_m ∘ Y_m        diag(S^(2m+1))[B] = column sums of Y_m ∘ Y_(m+1)

so T powers take T/2 products with a few columns at a time, exactly, and no power is ever stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedspray.data.batch import GraphBatch

BLOCK_ENTRIES = 2_000_000
"""Entries of one block of columns: 16 MB each for Y_m and Y_(m+1)."""


@dataclass(frozen=True)
class StructureEmbedding:
    """Which embedding to compute; `of` computes it, once for each batch."""

    walk_steps: int = 16
    """T."""
    degree_buckets: int = 16
    """B."""
    log_degrees: bool = False
    """Bucket ⌊2 log₂(1 + degree)⌋ instead of the degree itself."""
    isolated_bucket: bool = False
    """A further bucket for nodes without neighbours, which otherwise share the first one."""

    @property
    def width(self) -> int:
        """Columns of the embedding."""
        return self.walk_steps + self.degree_buckets + self.isolated_bucket

    def of(self, batch: GraphBatch) -> Tensor:
        """s [N, width] of all nodes, each from its client's graph only."""
        return batch.answers.cached(self, {}, lambda: self._compute(batch))

    def _compute(self, batch: GraphBatch) -> Tensor:
        u, v = batch.edges
        degrees = np.bincount(batch.edges.ravel(), minlength=batch.num_nodes)
        adjacency = sp.csr_array(
            (np.ones(2 * len(u)), (np.concatenate([u, v]), np.concatenate([v, u]))), shape=(batch.num_nodes,) * 2
        )
        walks = [return_probabilities(adjacency[a:b, a:b], self.walk_steps) for a, b in pairwise(batch.rows.ptr)]
        joined = np.concatenate([np.concatenate(walks), self._buckets(degrees)], axis=1)
        return torch.from_numpy(joined).to(batch.device, batch.dtype)

    def _buckets(self, degrees: NDArray[np.int64]) -> NDArray[np.float64]:
        sizes = np.floor(2 * np.log2(1.0 + degrees)).astype(np.int64) if self.log_degrees else degrees
        one_hot = np.zeros((len(degrees), self.degree_buckets + self.isolated_bucket))
        if self.degree_buckets:
            one_hot[np.arange(len(degrees)), np.clip(sizes, 1, self.degree_buckets) - 1] = 1
        if self.isolated_bucket:
            one_hot[degrees == 0] = np.arange(self.degree_buckets + 1) == self.degree_buckets
        return one_hot


def return_probabilities(
    adjacency: sp.csr_array, steps: int, *, block_entries: int = BLOCK_ENTRIES
) -> NDArray[np.float64]:
    """[n, steps]: the diagonals of M, M² … M^steps; 0 for nodes without neighbours.

    ``adjacency`` [n, n] is symmetric, without self-loops; ``block_entries`` bounds the entries of a dense block, and so
    memory.
    """
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    walk = sp.csr_array(sp.diags_array(scale) @ adjacency @ sp.diags_array(scale))
    result = np.zeros((len(degrees), steps))
    nodes = np.flatnonzero(degrees)
    block = max(1, block_entries // max(1, len(degrees)))
    for start in range(0, len(nodes), block):
        columns = nodes[start : start + block]
        current = np.zeros((len(degrees), len(columns)))
        current[columns, np.arange(len(columns))] = 1
        for step in range(1, steps + 1):
            if step % 2:  # one product serves this power and the next
                following = walk @ current
                result[columns, step - 1] = np.einsum("ij,ij->j", current, following)
                current = following
            else:
                result[columns, step - 1] = np.einsum("ij,ij->j", current, current)
    return result
