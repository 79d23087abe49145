"""Constant matrices for torch: feature rows of several clients, sparse matrices with their transposes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, repr=False)
class SparseMatrix:
    """A constant sparse matrix and its transpose, both CSR with int32 indices."""

    matrix: Tensor
    transpose: Tensor

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, dtype: torch.dtype) -> SparseMatrix:
        """Converts a SciPy matrix; a symmetric one shares its storage with its transpose."""
        forward = _to_torch(matrix, dtype)
        transposed = sp.csr_array(matrix.T)
        return cls(forward, forward if _equal(matrix, transposed) else _to_torch(transposed, dtype))

    def to(self, device: torch.device) -> SparseMatrix:
        """The same on a device; shared storage stays shared."""
        forward = self.matrix.to(device)
        return SparseMatrix(forward, forward if self.transpose is self.matrix else self.transpose.to(device))


@dataclass(frozen=True, repr=False)
class NodeRows:
    """The feature rows of some nodes, ordered by client."""

    ptr: tuple[int, ...]
    """[K+1]: where each client's rows begin."""
    features: SparseMatrix | Tensor
    """Sparse: block-diagonal [n, U], so that one product serves all clients. Dense: [n, F]."""
    columns: Tensor | None = None
    """[U], ascending: which columns of the block-diagonal matrix [n, K·F] a sparse `features` holds. The others are 0
    in all rows of their client, so the weights that they meet get no gradient. None: the features are dense."""
    columns_by_client: tuple[int, ...] = ()
    """[K]: how many of `columns` are each client's; empty without `columns`."""

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self.features.device if isinstance(self.features, Tensor) else self.features.matrix.device

    def to(self, device: torch.device) -> NodeRows:
        """The same on a device."""
        columns = None if self.columns is None else self.columns.to(device)
        return NodeRows(self.ptr, self.features.to(device), columns, self.columns_by_client)

    def take(self, nodes: NDArray[np.int64]) -> NodeRows:
        """These rows (ascending), with the same columns."""
        ptr = tuple(int(i) for i in np.searchsorted(nodes, self.ptr))
        if isinstance(self.features, Tensor):
            return NodeRows(ptr, self.features[torch.from_numpy(nodes).to(self.device)])
        matrix = self.features.matrix.cpu()
        held = sp.csr_array(_to_scipy(matrix, matrix.values())[nodes])
        features = SparseMatrix.from_scipy(held, matrix.dtype).to(self.device)
        return NodeRows(ptr, features, self.columns, self.columns_by_client)

    @cached_property
    def client_of_column(self) -> Tensor:
        """[U]: the position of each column's client."""
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.columns_by_client)).to(self.device)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """[K]: rows of each client."""
        return tuple(b - a for a, b in zip(self.ptr[:-1], self.ptr[1:], strict=True))

    @cached_property
    def client_of(self) -> Tensor:
        """[n]: position in the batch of the client that owns each row."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes)).to(self.device)

    @cached_property
    def counts(self) -> Tensor:
        """[K]: rows of each client, at least one, as a divisor."""
        dtype = self.features.dtype if isinstance(self.features, Tensor) else self.features.matrix.dtype
        return torch.tensor(self.sizes, dtype=dtype).clamp(min=1).to(self.device)

    def dense(self, num_features: int) -> Tensor:
        """[n, F], written out where features are sparse."""
        if isinstance(self.features, Tensor) or self.columns is None:
            assert isinstance(self.features, Tensor)  # sparse features always have columns
            return self.features
        matrix = self.features.matrix
        written = torch.zeros(self.ptr[-1], num_features, dtype=matrix.dtype, device=self.device)
        written[_row_of_entries(matrix), self.columns[matrix.col_indices().long()] % num_features] = matrix.values()
        return written

    @cached_property
    def unit(self) -> NodeRows:
        """The rows scaled to length 1; rows of zeros stay."""
        scale = self.to_unit_length
        if isinstance(self.features, Tensor):
            return replace(self, features=self.features * scale[:, None])
        matrix = self.features.matrix.cpu()
        scaled = _to_scipy(matrix, matrix.values() * scale.cpu()[_row_of_entries(matrix)])
        return replace(self, features=SparseMatrix.from_scipy(scaled, matrix.dtype).to(self.device))

    @cached_property
    def to_unit_length(self) -> Tensor:
        """[n]: what scales each row to length 1; 0 for a row of zeros."""
        if isinstance(self.features, Tensor):
            lengths = self.features.double().norm(dim=1)
        else:
            matrix = self.features.matrix
            values = matrix.values().double().square()
            lengths = values.new_zeros(self.ptr[-1]).index_add(0, _row_of_entries(matrix), values).sqrt()
        return torch.where(lengths > 0, 1 / lengths, 0).to(self.counts.dtype)


def stack_rows(
    features: Sequence[NDArray[np.float32] | sp.csr_array], used: Sequence[NDArray[np.int64]], dtype: torch.dtype
) -> NodeRows:
    """The rows of several clients as one matrix: [n, F] if dense, else block-diagonal with the ``used`` columns."""
    ptr = tuple(int(i) for i in np.cumsum([0, *(block.shape[0] for block in features)]))
    if not sp.issparse(features[0]):
        return NodeRows(ptr, torch.from_numpy(np.concatenate(features)).to(dtype))
    width = features[0].shape[1]
    blocks = [block[:, columns] for block, columns in zip(features, used, strict=True)]
    stacked = sp.csr_array(sp.block_diag(blocks, format="csr"))
    columns = np.concatenate([k * width + columns for k, columns in enumerate(used)])
    counts = tuple(len(columns) for columns in used)
    return NodeRows(ptr, SparseMatrix.from_scipy(stacked, dtype), torch.from_numpy(columns), counts)


def _to_scipy(matrix: Tensor, values: Tensor) -> sp.csr_array:
    """A sparse matrix on the CPU, with these values."""
    held = (values.numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy())
    return sp.csr_array(held, shape=tuple(matrix.shape))


def _row_of_entries(matrix: Tensor) -> Tensor:
    """The row of every entry that a sparse matrix holds."""
    numbers = torch.arange(matrix.shape[0], device=matrix.device)
    return numbers.repeat_interleave(matrix.crow_indices().diff())


def _equal(a: sp.csr_array, b: sp.csr_array) -> bool:
    if a.shape != b.shape or a.nnz != b.nnz:
        return False
    return all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("indptr", "indices", "data"))


def _to_torch(matrix: sp.csr_array, dtype: torch.dtype) -> Tensor:
    matrix.sort_indices()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(np.ascontiguousarray(matrix.data)).to(dtype),
            size=matrix.shape,
            check_invariants=False,  # SciPy's matrices are valid by construction
        )
