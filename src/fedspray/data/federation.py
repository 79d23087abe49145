"""`Federation`: the clients' graphs, their common task and their train/validation/test splits.

On disk a federation is a folder. Each client has a sub-folder that holds everything about
that client, so one organisation's data can be handed over alone; the manifest at the top lists the
content hash of every file, and loading refuses a folder that does not match it::

    DIR/manifest.json
    DIR/schema.toml                    how tables became these graphs, if they came from tables
    DIR/clients/<name>/client.json     name, task, provenance, hashes of the two files below
    DIR/clients/<name>/graph.npz
    DIR/clients/<name>/split.npz
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedspray import files, stored
from fedspray.data.edges import as_integers
from fedspray.data.graph import Graph, as_graph, differing_place, repeated
from fedspray.data.minority import NONE, majority_class
from fedspray.data.npz import read_arrays
from fedspray.data.splits import SCOPES, SPLIT, SplitRule
from fedspray.data.splits import Split as Split  # part of a client
from fedspray.display import count, cut, line, table
from fedspray.errors import InputError, expect, unknown

if TYPE_CHECKING:
    from torch_geometric.data import Data

T = TypeVar("T")

FORMAT = 1
"""Version of the folder layout; raised when old readers would misread it."""


@dataclass(frozen=True)
class Task:
    """What all clients agree on."""

    num_features: int
    num_classes: int
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    schema: str | None = field(default=None, compare=False)
    """How tables become features and classes, if they came from tables."""

    def __repr__(self) -> str:
        return line(self, count(self.num_features, "feature"), count(self.num_classes, "class", "classes"))

    def difference(self, graph: Graph) -> tuple[str, str, str] | None:
        """The first class or feature that a graph names differently: which one, the graph's name, the task's name.

        None if there is none. Missing names are not compared.
        """
        for what in ("class", "feature"):
            given, known = (getattr(side, f"{what}_names") for side in (graph, self))
            place = None if given is None or known is None else differing_place(given, known)
            if place is not None:
                theirs, ours = (repr(names[place]) if place < len(names) else "missing" for names in (given, known))
                return f"{what} {place}", theirs, ours
        return None


@dataclass(frozen=True, eq=False)
class Client:
    """One data owner."""

    name: str
    graph: Graph
    split: Split
    node_ids: NDArray[np.int64]
    """[N]: each node's index in the graph that the client was cut from (0 … N-1 for own data)."""
    edges_lost: int = 0
    """Edges of the whole graph between this client's nodes and nodes outside it."""

    def __post_init__(self) -> None:
        expect(str, "a text", **{"a client's name": self.name})
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise InputError(
                f"{self.name!r} is not a client name: use letters, digits, '.', '_' and '-', "
                "and start with a letter or digit"
            )
        masks = (self.split.train, self.split.val, self.split.test)
        other = next((mask.dtype for mask in masks if mask.dtype != np.bool_), None)
        if other is not None:
            raise InputError(f"the split of client {self.name} has masks of type {other}, but they must be boolean")
        if any(mask.shape != (self.graph.num_nodes,) for mask in masks):
            raise InputError(f"the split of client {self.name} must have {self.graph.num_nodes} entries")
        if (np.sum(masks, axis=0) > 1).any():
            raise InputError(f"the split of client {self.name} has a node in two parts, but parts must be disjoint")
        if not self.graph.labelled[masks[0] | masks[1] | masks[2]].all():
            raise InputError(f"the split of client {self.name} contains an unlabelled node")

    def __repr__(self) -> str:
        return line(self, cut(self.name), self.graph, self.split)

    @property
    def train_class_counts(self) -> NDArray[np.int64]:
        """[C]: training nodes of each class."""
        return np.bincount(self.graph.labels[self.split.train], minlength=self.graph.num_classes)

    @property
    def majority_class(self) -> int | None:
        """The most frequent class among the training nodes (ties: the lowest), or None without any."""
        found = int(majority_class(self.train_class_counts))
        return None if found == NONE else found

    def fingerprint(self) -> str:
        """sha256 of the name, the graph and the split: the same nodes in the same order and parts, the same digest."""
        return _digest(chain(_graph_bytes(self), _split_bytes(self)))

    def save(self, folder: str | Path) -> dict[str, str]:
        """Writes this client alone into ``folder`` and returns the sha256 of each file."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.graph.to_npz(target / "graph.npz")
        split = self.split
        np.savez(target / "split.npz", node_ids=self.node_ids, train=split.train, val=split.val, test=split.test)
        data_files = {name: files.sha256(target / name) for name in ("graph.npz", "split.npz")}
        card = {
            "format": FORMAT,
            "name": self.name,
            "num_features": self.graph.num_features,
            "num_classes": self.graph.num_classes,
            "edges_lost": self.edges_lost,
            "files": data_files,
        }
        files.write_sealed(target / "client.json", card)
        return {**data_files, "client.json": files.sha256(target / "client.json")}

    @classmethod
    def load(cls, folder: str | Path) -> Client:
        """Reads one client's folder, alone or inside a federation, after checking its hashes."""
        source = Path(folder)
        card = _read_card(source / "client.json", stored.Card)
        _check_hashes(source, card["files"])
        arrays = read_arrays(source / "split.npz")
        try:
            split, node_ids = Split(**{part: arrays[part] for part in ("train", "val", "test")}), arrays["node_ids"]
        except KeyError as error:
            raise InputError(f"{source / 'split.npz'} is damaged: it has no array {error}") from None
        graph = Graph.from_npz(source / "graph.npz")
        return cls(card["name"], graph, split, node_ids, edges_lost=card["edges_lost"])


@dataclass(frozen=True)
class Roster:
    """A federation without its data: all that its server knows."""

    name: str
    clients: tuple[str, ...]
    """Names; a client's position is its id."""
    task: Task
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return line(self, self.name, count(self.num_clients, "client"), self.task)

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.clients)


@dataclass(frozen=True, eq=False)
class Federation:
    """Several clients with one task."""

    name: str
    clients: tuple[Client, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it was made: data set, partitioner, seeds … (JSON values)."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("the federation has no clients, but needs at least one")
        twice = repeated(client.name for client in self.clients)
        if twice is not None:
            raise InputError(f"two clients are named {twice!r}, but names must differ")
        for what in ("num_features", "num_classes"):
            values = {client.name: getattr(client.graph, what) for client in self.clients}
            if len(set(values.values())) > 1:
                raise InputError(f"clients disagree on {what}: {values}, but must agree")
        for what in ("class", "feature"):
            _check_names_agree(what, self.clients)

    def __repr__(self) -> str:
        nodes = sum(client.graph.num_nodes for client in self.clients)
        task = self.task
        return line(
            self,
            *(self.name, count(self.num_clients, "client"), count(nodes, "node")),
            *(count(task.num_features, "feature"), count(task.num_classes, "class", "classes")),
        )

    def _repr_html_(self) -> str:
        rows = [
            [client.name, f"{client.graph.num_nodes:,}", f"{client.graph.num_edges:,}", *client.split.sizes]
            for client in self.clients
        ]
        return table(repr(self), ["client", "nodes", "edges", "train", "val", "test"], rows)

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[str]:
        return (client.name for client in self.clients)

    def __getitem__(self, client: str) -> Graph:
        """The graph of the client of this name."""
        graphs = {each.name: each.graph for each in self.clients}
        if client not in graphs:
            raise unknown("client", str(client), graphs)
        return graphs[client]

    @property
    def task(self) -> Task:
        """Features and classes, the same for all clients, with names if any client has them."""
        graphs = [client.graph for client in self.clients]
        class_names = next((graph.class_names for graph in graphs if graph.class_names is not None), None)
        feature_names = next((graph.feature_names for graph in graphs if graph.feature_names is not None), None)
        schema = next((graph.schema for graph in graphs if graph.schema is not None), None)
        return Task(graphs[0].num_features, graphs[0].num_classes, class_names, feature_names, schema)

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.clients)

    @property
    def roster(self) -> Roster:
        """This federation without its data."""
        return Roster(self.name, tuple(client.name for client in self.clients), self.task, self.settings)

    @classmethod
    def from_graph(
        cls,
        graph: Graph | Data,
        parts: Sequence[NDArray[np.int64]] | Mapping[str, NDArray[np.int64]],
        *,
        name: str = "federation",
        seed: int = 0,
        split: str = SPLIT,
        split_scope: str = SCOPES[0],
        settings: Mapping[str, Any] | None = None,
    ) -> Federation:
        """Cuts one graph into clients.

        Args:
            graph: the whole graph, also as a PyTorch Geometric ``Data``.
            parts: node indices of each client; a mapping names them, a sequence gets ``client_00`` …
            name: what to call the federation.
            seed: draws the splits.
            split: percent of the labelled nodes for training, validation and test.
            split_scope: ``client``: every client draws its own; ``graph``: one split of the whole graph, so
                clients' shares may differ.
            settings: provenance to store.
        """
        graph = as_graph(graph, "graph")
        expect((Mapping, Sequence, np.ndarray), "the node indices of each client", parts=parts)
        named = {key: as_integers(f"the nodes of client {key}", nodes) for key, nodes in name_clients(parts).items()}
        owner = np.full(graph.num_nodes, -1, dtype=np.int64)
        for index, (client_name, nodes) in enumerate(named.items()):
            _check_part(client_name, nodes, owner)
            owner[nodes] = index
        leaving = owner[graph.edges][:, owner[graph.edges[0]] != owner[graph.edges[1]]]
        edges_lost = np.bincount(leaving[leaving >= 0], minlength=len(named))
        graphs = {client_name: graph.subgraph(nodes) for client_name, nodes in named.items()}
        rule = SplitRule(split, split_scope)
        clients = _make_clients(graphs, list(named.values()), edges_lost.tolist(), rule, seed)
        return cls(name, clients, {**(settings or {}), **rule.settings(), "split_seed": seed})

    @classmethod
    def from_graphs(
        cls,
        graphs: Mapping[str, Graph | Data] | Iterable[Graph | Data],
        *,
        name: str = "federation",
        seed: int = 0,
        split: str = SPLIT,
        settings: Mapping[str, Any] | None = None,
    ) -> Federation:
        """Makes a federation from separate graphs, also as PyTorch Geometric ``Data``, one client each."""
        expect(Iterable, "a graph for each client", graphs=graphs)
        given = name_clients(graphs)
        named = {client: as_graph(graph, f"the graph of client {client}") for client, graph in given.items()}
        rule, node_ids = SplitRule(split), [np.arange(graph.num_nodes) for graph in named.values()]
        clients = _make_clients(named, node_ids, [0] * len(named), rule, seed)
        return cls(name, clients, {**(settings or {}), **rule.settings(), "split_seed": seed})

    def check_labels(self, keep_split: bool = False) -> None:
        """Refuses a federation without anything to learn from, on its own or new splits; it can still be inspected."""
        if not any(client.graph.labelled.any() for client in self.clients):
            raise InputError(f"no client of {self.name} has a labelled node, but training needs at least one")
        if not keep_split:
            self._check_drawable(None)
        elif not any(client.split.train.any() for client in self.clients):
            raise InputError(f"no client of {self.name} has a training node, but training needs at least one")

    def fingerprint(self) -> str:
        """sha256 of the clients' names and graphs (not of their splits): the same arrays, the same digest."""
        return _digest(part for client in self.clients for part in _graph_bytes(client))

    def split_fingerprint(self) -> str:
        """sha256 of the clients' names and splits: what `fingerprint` leaves out."""
        return _digest(part for client in self.clients for part in _split_bytes(client))

    def without_test(self) -> Federation:
        """The same clients and splits without test nodes, for choosing settings on validation data."""
        clients = (replace(c, split=replace(c.split, test=np.zeros_like(c.split.test))) for c in self.clients)
        return replace(self, clients=tuple(clients))

    def with_split(self, seed: int, split: str | None = None, split_scope: str | None = None) -> Federation:
        """The same clients with new splits drawn from ``seed``, by the given rule or the federation's own."""
        self._check_drawable(split)
        own = SplitRule.of(self.settings)
        known = SplitRule(split or own.split, split_scope or own.split_scope)
        graphs = {client.name: client.graph for client in self.clients}
        drawn = known.draw(graphs, [client.node_ids for client in self.clients], seed)
        clients = tuple(replace(client, split=new) for client, new in zip(self.clients, drawn, strict=True))
        others = {name: value for name, value in self.settings.items() if name not in {*vars(known), "own_split"}}
        return replace(self, clients=clients, settings={**others, **known.settings(), "split_seed": seed})

    def _check_drawable(self, split: str | None) -> None:
        fixed = self.settings.get("own_split")
        if fixed is not None and split is None:
            raise InputError(
                f"{self.name} has its own split ({fixed}): keep it with --keep-split, or draw one with --split {SPLIT} "
                "(in Python keep_split=True, or Federation.with_split)"
            )

    def save(self, folder: str | Path) -> None:
        """Writes the federation as a new folder; the folder appears once it is complete."""
        target = Path(folder)
        files.check_new(target)
        with files.staged(target) as staging:
            hashes: dict[str, str] = {}
            for client in self.clients:
                written = client.save(staging / "clients" / client.name)
                hashes |= {f"clients/{client.name}/{file}": digest for file, digest in written.items()}
            manifest = {
                "format": FORMAT,
                "name": self.name,
                "clients": [client.name for client in self.clients],
                "num_features": self.task.num_features,
                "num_classes": self.task.num_classes,
                "class_names": self.task.class_names,
                "settings": dict(self.settings),
                "files": hashes,
            }
            if self.task.schema is not None:  # for people: every graph.npz has it too
                (staging / "schema.toml").write_text(self.task.schema, encoding="utf-8")
            files.write_sealed(staging / "manifest.json", manifest)

    @classmethod
    def load(cls, folder: str | Path) -> Federation:
        """Reads a federation's folder and refuses it if any file differs from the manifest."""
        source = Path(folder)
        manifest = _read_card(source / "manifest.json", stored.Manifest)
        _check_hashes(source, manifest["files"])
        clients = tuple(Client.load(source / "clients" / name) for name in manifest["clients"])
        return cls(manifest["name"], clients, manifest["settings"])


def name_clients(given: Mapping[str, T] | Iterable[T]) -> Mapping[str, T]:
    """What each client has, by its name; those without a name are ``client_00`` …"""
    if isinstance(given, Mapping):
        return given
    listed = list(given)
    width = max(2, len(str(len(listed) - 1)))
    return {f"client_{index:0{width}d}": each for index, each in enumerate(listed)}


def _make_clients(
    graphs: Mapping[str, Graph],
    node_ids: Sequence[NDArray[np.int64]],
    edges_lost: Sequence[int],
    rule: SplitRule,
    seed: int,
) -> tuple[Client, ...]:
    splits = rule.draw(graphs, node_ids, seed)
    rows = zip(graphs.items(), splits, node_ids, edges_lost, strict=True)
    return tuple(
        Client(name, graph, split, np.asarray(ids, dtype=np.int64), n) for (name, graph), split, ids, n in rows
    )


def _check_names_agree(what: str, clients: Sequence[Client]) -> None:
    """Training uses numbers only, so class (or feature) i must have the same name everywhere."""
    named = [(client.name, getattr(client.graph, f"{what}_names")) for client in clients]
    named = [(name, names) for name, names in named if names is not None]
    for name, names in named[1:]:
        first, expected = named[0]
        place = differing_place(expected, names)
        if place is not None:
            raise InputError(
                f"{what} {place} of client {first} is {expected[place]!r}, but that of client {name} is "
                f"{names[place]!r}: all clients must use the same names in the same order"
            )


def _check_part(name: str, nodes: NDArray[np.int64], owner: NDArray[np.int64]) -> None:
    if nodes.ndim != 1:
        raise InputError(f"the nodes of client {name} have shape {list(nodes.shape)}, but must be a list of indices")
    if len(nodes) == 0:
        raise InputError(f"client {name} has no nodes, but needs at least one")
    if nodes.min() < 0 or nodes.max() >= len(owner):
        wrong = nodes[(nodes < 0) | (nodes >= len(owner))][0]
        raise InputError(f"client {name} contains node {wrong}, but nodes are 0 to {len(owner) - 1}")
    if len(np.unique(nodes)) < len(nodes):
        raise InputError(f"client {name} contains a node twice, but each may appear once")
    if (owner[nodes] >= 0).any():
        raise InputError(f"node {nodes[owner[nodes] >= 0][0]} is in two clients, but clients must be disjoint")


def _read_card(file: Path, kind: type) -> dict[str, Any]:
    card = files.read_json(file, "a saved federation or client")
    if card.get("format") != FORMAT:
        raise InputError(f"{file.parent} has format {card.get('format')!r}, but this version reads format {FORMAT}")
    return stored.check(card, kind, file)


def _check_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file():
            raise InputError(f"{file} is missing, but the manifest lists it: the folder is incomplete")
        if files.sha256(file) != expected:
            raise InputError(f"{file} does not match the manifest: the file was changed after it was written")


def _graph_bytes(client: Client) -> Iterator[bytes]:
    graph = client.graph
    matrix: Any = graph.features
    parts = [matrix.data, matrix.indices, matrix.indptr] if graph.is_sparse else [matrix]
    yield f"{client.name}:{graph.features.shape}:{graph.num_classes};".encode()
    weights = [] if graph.edge_weights is None else [graph.edge_weights]
    for array in (*parts, graph.edges, graph.labels, *weights):
        yield np.ascontiguousarray(array).tobytes()


def _split_bytes(client: Client) -> Iterator[bytes]:
    yield f"{client.name}:{client.graph.num_nodes};".encode()
    for mask in (client.split.train, client.split.val, client.split.test):
        yield np.packbits(mask).tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    result = hashlib.sha256()
    for part in parts:
        result.update(part)
    return result.hexdigest()
