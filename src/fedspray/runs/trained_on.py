"""The nodes a model has seen, so that a prediction can tell new nodes from old ones.

Named nodes are recognised by a hash of their name; without names, only the same graph
is. Anyone who has the file and guesses a name can tell whether that node was in it, so it is a separate
file in a model's folder, to remove before the model is passed on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedspray.data.federation import Client
from fedspray.data.graph import Graph
from fedspray.display import count, line
from fedspray.errors import InputError
from fedspray.runs import store

FILE = "trained-on.safetensors"
PARTS = ("new", "train", "val", "test", "unlabelled")
"""What a node was to the model; ``unlabelled`` ones were there for their edges."""
NEW, TRAIN, VAL, TEST, UNLABELLED = range(len(PARTS))


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """The nodes of a client's graph in a run."""

    parts: NDArray[np.uint8]
    """[N]: indices into `PARTS`."""
    graph: str
    """sha256 of features and edges."""
    names: NDArray[np.int64] | None
    """[N]: hashes; None where nodes have no names."""

    def __repr__(self) -> str:
        return line(self, count(len(self.parts), "node"))

    @classmethod
    def of(cls, client: Client) -> TrainedOn:
        """What a client's split says."""
        split = client.split
        parts = np.select([split.train, split.val, split.test], [TRAIN, VAL, TEST], UNLABELLED).astype(np.uint8)
        return cls(parts, _content(client.graph), _hashes(client.graph))

    def parts_of(self, graph: Graph) -> NDArray[np.uint8] | None:
        """[N]: what each node of a graph was to the model; None if that cannot be told."""
        if len(self.parts) == graph.num_nodes and self.graph == _content(graph):
            return self.parts
        given = _hashes(graph)
        if given is None or self.names is None:
            return None
        order = np.argsort(self.names)
        place = np.minimum(np.searchsorted(self.names[order], given), len(order) - 1)
        found = order[place]
        return np.where(self.names[found] == given, self.parts[found], np.uint8(NEW))

    def save(self, path: Path) -> None:
        """Writes one file."""
        tensors = {"parts": torch.from_numpy(self.parts)}
        if self.names is not None:
            tensors["names"] = torch.from_numpy(self.names)
        store.write_tensors(path, tensors, {"graph": self.graph})

    @classmethod
    def load(cls, path: Path) -> TrainedOn | None:
        """Reads what `save` wrote; None without the file."""
        if not path.exists():
            return None
        tensors, meta = store.read_tensors(path)
        if "parts" not in tensors or "graph" not in meta:
            raise InputError(f"{path} is damaged: it does not say which nodes a model was trained on")
        names = tensors.get("names")
        return cls(tensors["parts"].numpy(), str(meta["graph"]), None if names is None else names.numpy())


def _hashes(graph: Graph) -> NDArray[np.int64] | None:
    if graph.node_names is None:
        return None
    digests = b"".join(hashlib.sha256(name.encode()).digest()[:8] for name in graph.node_names)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def _content(graph: Graph) -> str:
    """sha256 of features and edges: removing the labels leaves the graph the same."""
    features: Any = graph.features
    arrays = (features.data, features.indices, features.indptr) if graph.is_sparse else (features,)
    digest = hashlib.sha256(repr((features.shape, graph.is_sparse)).encode())
    for array in (*arrays, graph.edges, *([] if graph.edge_weights is None else [graph.edge_weights])):
        whole = array.astype(np.int64) if array.dtype.kind == "i" else array
        digest.update(np.ascontiguousarray(whole).data)
    return digest.hexdigest()
