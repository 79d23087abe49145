"""`GraphBatch`: several clients as one ragged, block-diagonal graph, ready for torch.

Nodes are ordered by client; nothing is padded. Sparse matrices are CSR with int32 indices (twice as
fast as int64 on a CPU) and carry their transposes, which the gradients need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedspray.data.federation import Client, Split
from fedspray.data.graph import Graph
from fedspray.data.memory import LastAnswers
from fedspray.data.rows import NodeRows, SparseMatrix, stack_rows
from fedspray.display import count, line


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """K clients as one graph. Build it with `GraphBatch.from_clients`."""

    client_ids: tuple[int, ...]
    """Each client's index in its federation, which keys random draws."""
    num_features: int
    num_classes: int
    dtype: torch.dtype
    rows: NodeRows
    """All nodes."""
    labels: Tensor
    """[N], int64; -1 where unknown."""
    train: Tensor
    """Indices of the training nodes, ascending; likewise `val` and `test`."""
    val: Tensor
    test: Tensor
    edges: NDArray[np.int64]
    """[2, E]: undirected, each once."""
    train_rows: NodeRows
    """The training nodes alone, in the order of `train`."""
    edge_weights: NDArray[np.float64] | None = None
    """[E]: a positive number for each edge; None: all count alike."""
    answers: LastAnswers = field(default_factory=LastAnswers, init=False)
    """Cached results for this batch and some weights; copies of the batch start empty."""

    def __repr__(self) -> str:
        sizes = count(self.num_clients, "client"), count(self.num_nodes, "node"), count(self.num_features, "feature")
        return line(self, *sizes, count(self.num_classes, "class", "classes"))

    @classmethod
    def from_clients(
        cls, clients: Sequence[Client], client_ids: Iterable[int], *, dtype: torch.dtype = torch.float32
    ) -> GraphBatch:
        """Stacks ``clients``, whose indices in the federation are ``client_ids``: all dense, or all sparse."""
        graphs = [client.graph for client in clients]
        ptr = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
        parts = ("train", "val", "test")
        masks = (np.concatenate([getattr(client.split, part) for client in clients]) for part in parts)
        train, val, test = (torch.from_numpy(np.flatnonzero(mask)) for mask in masks)
        used = [_used_columns(graph) for graph in graphs if graph.is_sparse]
        return cls(
            client_ids=tuple(client_ids),
            num_features=graphs[0].num_features,
            num_classes=graphs[0].num_classes,
            dtype=dtype,
            rows=stack_rows([graph.features for graph in graphs], used, dtype),
            labels=torch.from_numpy(np.concatenate([graph.labels for graph in graphs])),
            edges=np.concatenate([graph.edges + start for graph, start in zip(graphs, ptr, strict=False)], axis=1),
            train_rows=stack_rows([c.graph.features[c.split.train] for c in clients], used, dtype),
            train=train,
            val=val,
            test=test,
            edge_weights=_edge_weights(graphs),
        )

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        *,
        client_id: int = 0,
        dtype: torch.dtype = torch.float32,
        train: NDArray[np.bool_] | None = None,
    ) -> GraphBatch:
        """One graph for prediction: with its training nodes, or with none."""
        nobody = np.zeros(graph.num_nodes, dtype=np.bool_)
        split = Split(nobody if train is None else train, nobody, nobody)
        client = Client("graph", graph, split, np.arange(graph.num_nodes))
        return cls.from_clients([client], [client_id], dtype=dtype)

    def part(self, nodes: NDArray[np.int64], train: NDArray[np.int64]) -> GraphBatch:
        """The subgraph of some nodes, to train on some of them (both ascending), without validation and test nodes."""
        place = np.full(self.num_nodes, -1)
        place[nodes] = np.arange(len(nodes))
        edges = place[self.edges]
        inside = (edges >= 0).all(axis=0)
        nobody = self.train[:0]
        return replace(
            self,
            rows=self.rows.take(nodes),
            labels=self.labels[torch.from_numpy(nodes).to(self.device)],
            train=torch.from_numpy(place[train]).to(self.device),
            val=nobody,
            test=nobody,
            edges=edges[:, inside],
            edge_weights=None if self.edge_weights is None else self.edge_weights[inside],
            train_rows=self.rows.take(train),
        )

    @property
    def device(self) -> torch.device:
        """Where the tensors are. Draws and counts are always on the CPU."""
        return self.labels.device

    def to(self, device: torch.device) -> GraphBatch:
        """The same on a device; itself if it is there."""
        if device == self.device:
            return self
        nodes = {name: getattr(self, name).to(device) for name in ("labels", "train", "val", "test")}
        return replace(self, rows=self.rows.to(device), train_rows=self.train_rows.to(device), **nodes)

    @cached_property
    def unit_rows(self) -> GraphBatch:
        """The same clients, with every node's features scaled to length 1."""
        return replace(self, rows=self.rows.unit, train_rows=self.train_rows.unit)

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.client_ids)

    @property
    def num_nodes(self) -> int:
        """N, over all clients of the batch."""
        return self.rows.ptr[-1]

    @cached_property
    def dense_features(self) -> Tensor:
        """[N, F]: for code that can't use sparse ones."""
        return self.rows.dense(self.num_features)

    @cached_property
    def num_train(self) -> Tensor:
        """[K]: training nodes of each client, in the batch's own dtype."""
        return torch.tensor(self.train_rows.sizes, dtype=self.dtype).to(self.device)

    @cached_property
    def train_labels(self) -> Tensor:
        """Labels of the training nodes, in the order of `train`."""
        return self.labels[self.train]

    @cached_property
    def train_targets(self) -> Tensor:
        """[C, N]: the one-hot label of every training node, divided by its client's number of them; 0 elsewhere."""
        targets = torch.zeros(self.num_classes, self.num_nodes, dtype=self.dtype, device=self.device)
        targets[self.train_labels, self.train] = 1 / self.num_train[self.train_rows.client_of]
        return targets

    @cached_property
    def train_class_counts(self) -> Tensor:
        """[K, C]: training nodes of each class."""
        slots = self.train_rows.client_of * self.num_classes + self.train_labels
        counts = torch.bincount(slots, minlength=self.num_clients * self.num_classes)
        return counts.view(self.num_clients, self.num_classes).to(self.dtype)

    @cached_property
    def gcn_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1/2 (A + I) D^-1/2, symmetric; D sums the rows of A + I."""
        with_loops = self.neighbours + sp.eye_array(self.num_nodes, format="csr")
        scale = 1 / np.sqrt(with_loops.sum(axis=1))
        return SparseMatrix.from_scipy(_scaled(with_loops, scale, scale), self.dtype).to(self.device)

    @cached_property
    def adjacency(self) -> SparseMatrix:
        """[N, N]: A."""
        return SparseMatrix.from_scipy(self.neighbours, self.dtype).to(self.device)

    @cached_property
    def mean_adjacency(self) -> SparseMatrix:
        """[N, N]: D^-1 A, rows of isolated nodes 0."""
        degrees = self.neighbours.sum(axis=1)
        ones = np.ones(self.num_nodes)
        mean = _scaled(self.neighbours, 1 / np.where(degrees, degrees, 1), ones)
        return SparseMatrix.from_scipy(mean, self.dtype).to(self.device)

    @cached_property
    def edge_index(self) -> Tensor:
        """[2, 2E]: both directions, as in PyTorch Geometric."""
        return torch.from_numpy(np.concatenate([self.edges, self.edges[::-1]], axis=1)).to(self.device)

    @cached_property
    def edge_index_with_loops(self) -> Tensor:
        """[2, 2E+N]: both directions, then every node to itself."""
        loops = torch.arange(self.num_nodes, device=self.device)
        return torch.cat([self.edge_index, torch.stack([loops, loops])], dim=1)

    @cached_property
    def neighbours(self) -> sp.csr_array:
        """[N, N]: the adjacency matrix A, of ones or the edges' weights."""
        u, v = np.concatenate([self.edges, self.edges[::-1]], axis=1)
        values = np.ones(len(u)) if self.edge_weights is None else np.tile(self.edge_weights, 2)
        return sp.csr_array((values, (u, v)), shape=(self.num_nodes, self.num_nodes))

    @cached_property
    def entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row, column and number of the edge (E for loops) of every entry of A + I, in the order of a CSR matrix."""
        (u, v), loops = self.edges, np.arange(self.num_nodes)
        row, column = np.concatenate([u, v, loops]), np.concatenate([v, u, loops])
        edge = np.concatenate([np.arange(len(u)), np.arange(len(u)), np.full(self.num_nodes, len(u))])
        order = np.lexsort((column, row))
        rows, columns, edges = (torch.from_numpy(part[order]).to(self.device) for part in (row, column, edge))
        return rows, columns, edges


def _edge_weights(graphs: Sequence[Graph]) -> NDArray[np.float64] | None:
    """[E]: of all graphs, ones where a graph has none; None if no graph has any."""
    if all(graph.edge_weights is None for graph in graphs):
        return None
    return np.concatenate([np.ones(g.num_edges) if g.edge_weights is None else g.edge_weights for g in graphs])


def _used_columns(graph: Graph) -> NDArray[np.int64]:
    """The feature columns that are not 0 in every row."""
    return np.unique(sp.csr_array(graph.features).indices).astype(np.int64)


def _scaled(matrix: sp.csr_array, left: NDArray[np.float64], right: NDArray[np.float64]) -> sp.csr_array:
    """Row i times left[i], column j times right[j]."""
    data = np.repeat(left, np.diff(matrix.indptr)) * matrix.data * right[matrix.indices]
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=True)
