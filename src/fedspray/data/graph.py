"""`Graph`: one owner's data, validated once, at the edge.

A graph is frozen and canonical: features are float32 (dense, or CSR if they were given sparse), every
undirected edge is stored once as (u < v) in sorted order, labels are 0 … C-1 or `UNLABELLED`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from fedspray.data.edges import (
    Cleaning,
    as_integers,
    canonical_edges,
    check_weights,
    distinct,
    edge_keys,
    pairs_of,
    weigh_edges,
)
from fedspray.data.npz import read_arrays
from fedspray.display import count, line
from fedspray.errors import InputError, MissingDataError, described, expect
from fedspray.memory import check_memory

if TYPE_CHECKING:
    import networkx as nx
    from torch_geometric.data import Data

T = TypeVar("T")

MOST_CLASSES = 10_000_000
"""A model for more of them does not fit into any memory."""
UNLABELLED = -1
"""The label of a node whose class is not known."""

MAX_EMPTY = 100
"""Classes without a node that a graph may have if nobody said how many classes there are."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One undirected graph with node features and, for some nodes, labels.

    Build it with `Graph.from_arrays` (or `from_pyg`, `from_networkx`, `from_npz`), which tidy the
    edges; the constructor itself takes canonical parts and refuses anything else.
    """

    features: NDArray[np.float32] | sp.csr_array
    """[N, F], float32, dense or CSR."""
    edges: NDArray[np.int64]
    """[2, E]: each undirected edge once, u < v, sorted by (u, v)."""
    labels: NDArray[np.int64]
    """[N]: 0 … C-1, or `UNLABELLED`."""
    num_classes: int
    node_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    cleaning: Cleaning = Cleaning()
    edge_weights: NDArray[np.float64] | None = None
    """[E]: a positive number for each edge; None: all count alike."""
    schema: str | None = None
    """How tables become these features and classes (`fedspray.tables`), as TOML; None if they came otherwise."""

    def __post_init__(self) -> None:
        if self.features.ndim != 2:
            raise InputError(f"features have {self.features.ndim} dimensions, but must be a matrix [N, F]")
        num_nodes = self.num_nodes
        if num_nodes == 0:
            raise InputError("the graph has no nodes, but at least one is needed")
        _check_finite(self.features)
        _check_labels(self.labels, num_nodes, self.num_classes)
        _check_names("node", self.node_names, num_nodes)
        _check_names("class", self.class_names, self.num_classes)
        _check_names("feature", self.feature_names, self.num_features)
        if self.edges.ndim != 2 or len(self.edges) != 2:
            raise InputError(f"edges have shape {list(self.edges.shape)}, but must be [2, E]")
        u, v = self.edges
        ascending = (u[:-1] < u[1:]) | ((u[:-1] == u[1:]) & (v[:-1] < v[1:]))
        if len(u) and (u.min() < 0 or v.max() >= num_nodes or not (u < v).all() or not ascending.all()):
            raise InputError("edges are not canonical (each once, u < v, sorted): use Graph.from_arrays")
        check_weights(self.edge_weights, self.num_edges)

    @classmethod
    def from_arrays(
        cls,
        features: ArrayLike | sp.sparray | sp.spmatrix,
        edges: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        num_classes: int | None = None,
        node_names: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        feature_names: Sequence[str] | None = None,
        edge_weights: ArrayLike | None = None,
    ) -> Graph:
        """Builds a graph from plain arrays and tidies its edges.

        Args:
            features: [N, F], dense or any SciPy sparse matrix; must be finite. Copied, as are edges and labels.
            edges: [2, E] node indices in either or both directions; self-loops are dropped,
                duplicates merged, and both are counted in `cleaning`.
            labels: [N] class of each node, `UNLABELLED` (-1) where it is not known.
            num_classes: C; by default the largest label plus one, or the number of class names.
            node_names: optional, one for each node.
            class_names: optional, one for each class.
            feature_names: optional, one for each feature.
            edge_weights: [E] a positive number for each column of ``edges``. Those of repeated edges add up, and those
                of both directions, unless all edges are given both ways with equal weights.
        """
        matrix = _as_features(features)
        if matrix.ndim != 2:
            raise InputError(f"features have {matrix.ndim} dimensions, but must be a matrix [N, F]")
        num_nodes = matrix.shape[0]
        label_array = (
            np.full(num_nodes, UNLABELLED, dtype=np.int64)
            if labels is None
            else as_integers("labels", labels, f"whole numbers, {UNLABELLED} for unlabelled: class_names takes names")
        )
        if num_classes is None:
            num_classes = len(class_names) if class_names is not None else _count_classes(label_array)
        edge_array, cleaning = canonical_edges(edges, num_nodes)
        weights = None
        if edge_weights is not None:
            weights = np.asarray(edge_weights, dtype=np.float64)
            pairs = as_integers("edges", edges).reshape(2, -1)
            check_weights(weights, pairs.shape[1])
            weights = weigh_edges(pairs, weights, edge_array, num_nodes)
        return cls(
            features=matrix,
            edges=edge_array,
            labels=label_array,
            num_classes=num_classes,
            node_names=None if node_names is None else tuple(map(str, node_names)),
            class_names=None if class_names is None else tuple(map(str, class_names)),
            feature_names=None if feature_names is None else tuple(map(str, feature_names)),
            cleaning=cleaning,
            edge_weights=weights,
        )

    def __repr__(self) -> str:
        named = ("node", self.node_names), ("class", self.class_names), ("feature", self.feature_names)
        return line(
            self,
            *(count(self.num_nodes, "node"), count(self.num_edges, "edge"), count(self.num_features, "feature")),
            *(count(self.num_classes, "class", "classes"), f"{int(self.labelled.sum()):,} labelled"),
            *(f"with {what} names" for what, names in named if names is not None),
        )

    # ---- shape ----------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.features.shape[0])

    @property
    def num_features(self) -> int:
        """F."""
        return int(self.features.shape[1])

    @property
    def num_edges(self) -> int:
        """Number of undirected edges."""
        return int(self.edges.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether the features are stored as CSR."""
        return bool(sp.issparse(self.features))

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        """[N]: which nodes have a label."""
        return np.asarray(self.labels != UNLABELLED)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """[N]: number of neighbours."""
        return np.bincount(self.edges.ravel(), minlength=self.num_nodes)

    def label_counts(self) -> NDArray[np.int64]:
        """[C]: labelled nodes of each class."""
        return np.bincount(self.labels[self.labelled], minlength=self.num_classes)

    def dense_features(self) -> NDArray[np.float32]:
        """[N, F]: the features as a dense array, whatever they are stored as."""
        features: Any = self.features
        return np.asarray(features.toarray() if self.is_sparse else features)

    def both_directions(self) -> NDArray[np.int64]:
        """[2, 2E]: every edge in both directions, as message passing wants it."""
        return np.concatenate([self.edges, self.edges[::-1]], axis=1)

    def tidied(self) -> str:
        """How the edges were tidied when they were read; empty if they weren't."""
        one_way = self.cleaning.one_way
        directed = 0 < one_way < self.num_edges  # an undirected graph lists all edges once, or all twice
        done = (
            (self.cleaning.self_loops, "from a node to itself left out"),
            (self.cleaning.duplicates, "given again merged"),
            (one_way if directed else 0, "given one way only taken both ways"),
        )
        return ", ".join(f"{count:,} {'edge' if count == 1 else 'edges'} {what}" for count, what in done if count)

    def subgraph(self, nodes: NDArray[np.int64]) -> Graph:
        """The graph induced by ``nodes``, in the order given."""
        position = np.full(self.num_nodes, -1, dtype=np.int64)
        position[nodes] = np.arange(len(nodes))
        u, v = position[self.edges]
        inside = (u >= 0) & (v >= 0)
        keys = edge_keys(u[inside], v[inside], len(nodes))
        weights = self.edge_weights
        return replace(
            self,
            features=self.features[nodes],
            edges=pairs_of(np.sort(keys), len(nodes)),
            edge_weights=None if weights is None else weights[inside][np.argsort(keys)],
            labels=self.labels[nodes],
            node_names=None if self.node_names is None else tuple(self.node_names[i] for i in nodes),
            cleaning=Cleaning(),
        )

    def with_num_classes(self, num_classes: int) -> Graph:
        """The same graph under a task with ``num_classes`` classes; labels outside it are refused."""
        return replace(self, num_classes=num_classes, class_names=None)

    def equals(self, other: Graph) -> bool:
        """Whether both hold the same features, edges, labels and names."""
        mine, theirs = self._arrays(), other._arrays()
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[key], theirs[key]) for key in mine)

    # ---- other formats --------------------------------------------------------------------------

    @classmethod
    def from_pyg(cls, data: Data, *, num_classes: int | None = None) -> Graph:
        """From a PyTorch Geometric ``Data`` with ``x`` (dense, or sparse), ``edge_index`` and, optionally, ``y``.

        Everything else is ignored: masks, since clients draw their own splits, and edge attributes other than
        ``edge_weight``.
        """
        if not is_pyg(data):
            raise InputError(f"data is {described(data)}, but must be a PyTorch Geometric Data")
        import torch

        if getattr(data, "x", None) is None or data.edge_index is None:
            raise InputError("the PyG Data has no x or no edge_index, but both are needed")
        labels = None if data.y is None else data.y.detach().cpu().reshape(-1).numpy()
        x = data.x.detach().cpu().float()
        features = x.numpy() if x.layout is torch.strided else _sparse_matrix(x)
        weights = data.edge_weight.detach().cpu().numpy() if data.get("edge_weight") is not None else None
        edges = data.edge_index.cpu().numpy()
        return cls.from_arrays(features, edges, labels, num_classes=num_classes, edge_weights=weights)

    def to_pyg(self) -> Data:
        """As a PyTorch Geometric ``Data``: dense ``x``, both directions in ``edge_index``."""
        import torch
        from torch_geometric.data import Data

        return Data(
            x=torch.from_numpy(np.array(self.dense_features())),  # copies: a graph is frozen, a Data is not
            edge_index=torch.from_numpy(self.both_directions()),
            y=torch.from_numpy(self.labels.copy()),
            **({} if self.edge_weights is None else {"edge_weight": torch.from_numpy(np.tile(self.edge_weights, 2))}),
        )

    @classmethod
    def from_networkx(
        cls, graph: nx.Graph, *, features: str = "x", label: str = "y", num_classes: int | None = None
    ) -> Graph:
        """From a networkx graph whose nodes carry a feature vector and, optionally, a label.

        Args:
            graph: any networkx graph; directed ones are made undirected.
            features: the node attribute that holds the feature vector.
            label: the node attribute that holds the class; nodes without it are unlabelled.
            num_classes: C; by default the largest label plus one.
        """
        import networkx as nx

        expect(nx.Graph, "a networkx graph", graph=graph)
        nodes = list(graph.nodes)
        position = {node: i for i, node in enumerate(nodes)}
        missing = next((i for i, node in enumerate(nodes) if features not in graph.nodes[node]), None)
        if missing is not None:
            raise InputError(
                f"node {missing} (counted from 0) has no attribute {features!r}, but every node needs its features"
            )
        if not nodes:
            raise InputError("the graph has no nodes, but at least one is needed")
        rows = [np.ravel(graph.nodes[node][features]) for node in nodes]
        widths = {len(row) for row in rows}
        if len(widths) > 1:
            raise InputError(f"feature vectors have different lengths {sorted(widths)}, but all must be equal")
        pairs = [(position[u], position[v]) for u, v in graph.edges()]
        known = [graph.nodes[node].get(label) for node in nodes]
        return cls.from_arrays(
            np.stack(rows),
            np.array(pairs, dtype=np.int64).reshape(-1, 2).T,
            [UNLABELLED if value is None else value for value in known],
            num_classes=num_classes,
            node_names=[str(node) for node in nodes],
        )

    def to_networkx(self) -> nx.Graph:
        """As a networkx graph with node attributes ``x`` and, where known, ``y``."""
        import networkx as nx

        result = nx.Graph()
        names: Sequence[Any] = self.node_names or range(self.num_nodes)
        dense = self.dense_features()
        for i, name in enumerate(names):
            known = {"y": int(self.labels[i])} if self.labelled[i] else {}
            result.add_node(name, x=dense[i], **known)
        result.add_edges_from((names[u], names[v]) for u, v in self.edges.T)
        return result

    @classmethod
    def from_npz(cls, path: str | Path) -> Graph:
        """Reads what `to_npz` writes, or an npz with ``edge_index`` and perhaps ``x`` (CSR: ``x_*``) and ``y``."""
        file = Path(path)
        if not file.is_file():
            raise MissingDataError(f"{file} is not a file, but a graph in npz format is needed")
        arrays = read_arrays(file)
        try:
            return cls._from_npz_arrays(arrays)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError) as error:
            raise InputError(f"{file} does not hold a graph: {error}") from None

    @classmethod
    def _from_npz_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Graph:
        if "edge_index" not in arrays:
            raise InputError(f"it has no array 'edge_index', only {', '.join(sorted(arrays)) or 'nothing'}")
        edges = as_integers("edges", arrays["edge_index"])
        labels = arrays.get("labels", arrays.get("y"))
        sparse = next((name for name in ("features", "x") if f"{name}_indptr" in arrays), None)
        if sparse is not None:
            features: Any = read_csr(arrays, sparse)
        elif "features" in arrays or "x" in arrays:
            features = arrays.get("features", arrays.get("x"))
        else:
            num_nodes = labels.size if labels is not None else int(edges.max(initial=-1)) + 1
            check_memory(f"a graph of {num_nodes:,} nodes", 100 * num_nodes)
            features = np.zeros((num_nodes, 0), dtype=np.float32)
        names = {key: arrays[key].tolist() for key in _NAME_FIELDS if key in arrays}
        num_classes = int(as_integers("num_classes", arrays["num_classes"])) if "num_classes" in arrays else None
        weights = arrays.get("edge_weights", arrays.get("edge_weight"))
        graph = cls.from_arrays(features, edges, labels, num_classes=num_classes, edge_weights=weights, **names)
        return replace(graph, schema=str(arrays["schema"])) if "schema" in arrays else graph

    def to_npz(self, path: str | Path) -> None:
        """Writes the graph as one npz of plain arrays, never pickles; equal graphs give equal bytes."""
        arrays = self._arrays()
        if self.schema is not None:
            arrays["schema"] = np.array(self.schema)
        np.savez(path, **arrays)

    def _arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {
            "edge_index": self.edges,
            "labels": self.labels,
            "num_classes": np.int64(self.num_classes),
        }
        if self.is_sparse:
            arrays |= {f"features_{part}": getattr(self.features, part) for part in ("data", "indices", "indptr")}
            arrays["features_shape"] = np.array(self.features.shape, dtype=np.int64)
        else:
            arrays["features"] = self.features
        kept = (*_NAME_FIELDS, "edge_weights")
        return arrays | {key: np.array(getattr(self, key)) for key in kept if getattr(self, key) is not None}


def as_graph(given: object, name: str, allowed: str = "a Graph or a PyTorch Geometric Data") -> Graph:
    """The graph, or that of a PyTorch Geometric ``Data``; ``name`` is what a message calls it."""
    if is_pyg(given):
        return Graph.from_pyg(given)
    expect(Graph, f"{allowed}: import_tables reads tables, Graph.from_arrays takes arrays", **{name: given})
    return cast(Graph, given)


def is_pyg(given: object) -> TypeGuard[Data]:
    """Whether it is a class of PyTorch Geometric, which is not imported for this."""
    return any(base.__module__.startswith("torch_geometric.") for base in type(given).__mro__)


_NAME_FIELDS = ("node_names", "class_names", "feature_names")


def read_csr(arrays: Mapping[str, Any], prefix: str) -> sp.csr_array:
    """A sparse matrix from the arrays ``PREFIX_data``, ``PREFIX_indices``, ``PREFIX_indptr`` and ``PREFIX_shape``."""
    parts = tuple(arrays[f"{prefix}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_array(parts, shape=tuple(arrays[f"{prefix}_shape"]), dtype=np.float32)


def _sparse_matrix(tensor: Any) -> sp.coo_array:
    """A sparse torch tensor for SciPy."""
    entries = tensor.to_sparse_coo().coalesce()
    return sp.coo_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(entries.shape))


def _as_features(features: Any) -> NDArray[np.float32] | sp.csr_array:
    try:
        if sp.issparse(features):
            matrix = sp.csr_array(features, dtype=np.float32, copy=True)
            matrix.check_format(full_check=True)
            matrix.sum_duplicates()
            return matrix
        with np.errstate(over="ignore"):  # too large for float32 is inf, and refused as such
            return np.array(features, dtype=np.float32, order="C")
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise InputError(f"features are not a matrix of numbers ({error})") from None


def _count_classes(labels: NDArray[np.int64]) -> int:
    """C, from the labels alone; codes that are no numbers of classes are refused: everything is sized by C."""
    largest = int(labels.max(initial=UNLABELLED))
    found = len(distinct(labels[labels >= 0]))
    if largest + 1 - found > MAX_EMPTY:
        raise InputError(
            f"labels go up to {largest}, but have {found} different values: number the classes 0 to {found - 1}, "
            "or say how many there are (num_classes)"
        )
    return largest + 1


def _check_finite(features: Any) -> None:
    values = features.data if sp.issparse(features) else features
    if np.isfinite(values).all():
        return
    where = np.argwhere(~np.isfinite(values))[0]
    row = np.searchsorted(features.indptr, where[0], side="right") - 1 if sp.issparse(features) else where[0]
    raise InputError(f"features of node {row} contain {values[tuple(where)]}, but must be finite numbers")


def _check_labels(labels: NDArray[np.int64], num_nodes: int, num_classes: int) -> None:
    if labels.ndim != 1:
        raise InputError(f"labels have shape {list(labels.shape)}, but must be [N]: one class for each node")
    if labels.shape != (num_nodes,):
        raise InputError(f"there are {labels.size} labels for {num_nodes} nodes, but there must be one for each")
    if not 0 <= num_classes <= MOST_CLASSES:
        raise InputError(f"num_classes is {num_classes}, but must be at most {MOST_CLASSES:,}")
    wrong = (labels < UNLABELLED) | (labels >= num_classes)
    if wrong.any():
        classes = f"0 to {num_classes - 1}, or " if num_classes else ""
        raise InputError(
            f"node {int(np.argmax(wrong))} has label {labels[wrong][0]}, "
            f"but labels are {classes}{UNLABELLED} for unlabelled"
        )


def _check_names(what: str, names: tuple[str, ...] | None, expected: int) -> None:
    if names is None:
        return
    if len(names) != expected:
        raise InputError(f"there are {len(names)} {what} names, but there must be {expected}")
    twice = None if what == "feature" else repeated(names)
    if twice is None:
        return
    if what == "class":
        raise InputError(f"two classes are called {twice!r}, but class names must differ")
    first = names.index(twice)  # by number: a node's name may be a customer's
    second = names.index(twice, first + 1)
    raise InputError(f"nodes {first} and {second} have the same name, but node names must differ")


def repeated(names: Iterable[T]) -> T | None:
    """The first that is there more than once, if any."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def differing_place(first: Sequence[str], second: Sequence[str]) -> int | None:
    """Where two lists of names differ for the first time; None if they do not."""
    pairs = enumerate(zip_longest(first, second))
    return next((place for place, (a, b) in pairs if a != b), None)
