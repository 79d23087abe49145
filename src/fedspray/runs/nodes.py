"""Every labelled node of a federation under a run's personal models: was it tested, and was it predicted correctly.

A federation that spans machines only ever adds up counts. A run in one process has all clients, so it
stores single nodes: methods can then be compared on the same nodes, and a node that is a test node under
several seeds is known to be one node. The nodes of a client are ordered by class, then by local homophily, then
by index, so their classes and homophily follow from counts and a node costs about 1.3 bits.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspray import files, stored
from fedspray.data.federation import Client, Federation
from fedspray.data.minority import NONE, is_minority
from fedspray.data.statistics import node_homophily
from fedspray.errors import InputError
from fedspray.evaluation.counting import BUCKET_NAMES, bucket_of
from fedspray.files import Json
from fedspray.runs.models import PersonalModel

FILE = "nodes.json"


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Every labelled node of a federation, and which of its test nodes a run got right.

    All arrays are [N], in the order of (client, class, homophily, index).
    """

    clients: tuple[str, ...]
    counts: NDArray[np.int64]
    """[K, C, B]: labelled nodes by client, class and step of local homophily (the last: no neighbours)."""
    majority: NDArray[np.int64]
    """[K]: each client's majority class among training nodes, -1 without any."""
    test: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    """Correctly predicted; false for all but test nodes."""

    @classmethod
    def from_models(cls, federation: Federation, models: Mapping[str, PersonalModel]) -> NodeTable:
        """Predicts every client's test nodes with its personal model; a client without a model has no test nodes."""
        parts = [_client_nodes(client, models.get(client.name)) for client in federation.clients]
        return cls(
            clients=tuple(client.name for client in federation.clients),
            counts=np.stack([counts for counts, _, _ in parts]),
            majority=np.array([NONE if c.majority_class is None else c.majority_class for c in federation.clients]),
            test=np.concatenate([test for _, test, _ in parts]),
            correct=np.concatenate([correct for _, _, correct in parts]),
        )

    @cached_property
    def client(self) -> NDArray[np.int64]:
        """[N]: the client's index."""
        return self._axis(0)

    @cached_property
    def label(self) -> NDArray[np.int64]:
        """[N]: the class."""
        return self._axis(1)

    @cached_property
    def bucket(self) -> NDArray[np.int64]:
        """[N]: the step of local homophily, an index into `BUCKET_NAMES`."""
        return self._axis(2)

    @property
    def minority(self) -> NDArray[np.bool_]:
        """[N]: outside its client's majority class."""
        return is_minority(self.label, self.majority[self.client])

    def to_json(self) -> Json:
        """Counts as lists, bits as base64."""
        return {
            "clients": list(self.clients),
            "homophily": list(BUCKET_NAMES),
            "counts": self.counts.tolist(),
            "majority": self.majority.tolist(),
            "test": _pack(self.test),
            "correct": _pack(self.correct[self.test]),
        }

    @classmethod
    def from_json(cls, content: Json) -> NodeTable:
        """Reads what `to_json` wrote."""
        clients, majority = tuple(content["clients"]), np.array(content["majority"], dtype=np.int64)
        counts = np.array(content["counts"], dtype=np.int64)
        if counts.shape != (len(clients), counts.shape[1], len(BUCKET_NAMES)) or (counts < 0).any():
            raise ValueError(f"counts have shape {counts.shape}, or are negative")
        if majority.shape != (len(clients),) or not ((majority >= NONE) & (majority < counts.shape[1])).all():
            raise ValueError("majority must name a class for each client")
        test = _unpack(content["test"], int(counts.sum()))
        correct = np.zeros(len(test), dtype=np.bool_)
        correct[test] = _unpack(content["correct"], int(test.sum()))
        return cls(clients, counts, majority, test, correct)

    def _axis(self, axis: int) -> NDArray[np.int64]:
        return np.repeat(np.indices(self.counts.shape)[axis].ravel(), self.counts.ravel())

    def save(self, path: Path) -> None:
        """Writes one JSON file."""
        files.write_sealed(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> NodeTable:
        """Reads what `save` wrote."""
        try:
            return cls.from_json(stored.read(path, stored.Nodes))
        except InputError:
            raise
        except (ValueError, IndexError, OverflowError) as error:
            raise InputError(f"{path} is damaged: {error}") from None


def _client_nodes(
    client: Client, model: PersonalModel | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Counts [C, B] of the labelled nodes, and for each in order: if it is a test node, and if predicted correctly."""
    graph = client.graph
    buckets = bucket_of(node_homophily(graph))
    labelled = np.flatnonzero(graph.labelled)
    order = labelled[np.lexsort((labelled, buckets[labelled], graph.labels[labelled]))]
    counts = np.zeros((graph.num_classes, len(BUCKET_NAMES)), dtype=np.int64)
    np.add.at(counts, (graph.labels[order], buckets[order]), 1)
    if model is None:
        nobody = np.zeros(len(order), dtype=np.bool_)
        return counts, nobody, nobody
    right = model.predict(graph, client.split.train).argmax(axis=1) == graph.labels
    test = client.split.test
    return counts, test[order], (right & test)[order]


def _pack(bits: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def _unpack(text: str, count: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    if len(packed) != (count + 7) // 8:
        raise ValueError(f"{len(packed)} bytes are not {count} bits")
    return np.unpackbits(packed, count=count).astype(np.bool_)
