"""What is kept of a finished cell: one small JSON file, enough for every table, curve and test.

Beside the metrics of the run it says, for every labelled node, whether it was a test node and whether it was
predicted rightly. Methods are compared on the same nodes, and a node that is a test node under several seeds
is one node; counts could tell neither. The nodes of a client are ordered by class, then by local homophily,
then by index, so their classes and homophily follow from counts and a node costs about 1.3 bits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray.data.federation import Client, Federation
from fedspray.data.statistics import node_homophily
from fedspray.errors import InputError
from fedspray.evaluation.counting import BUCKET_NAMES, bucket_of
from fedspray.runs import store
from fedspray.runs.models import PersonalModel
from fedspray.runs.result import SeedResult

Json = dict[str, Any]

CURVES = ("loss", "overall", "minority")
_WITHOUT_TEST = ("best_round", "rounds", "val", "train", "bytes_up", "bytes_down", "failures", "seconds", "cpu_seconds")


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Every labelled node of a federation, and which of them a cell got right.

    All arrays are [N], in the order of (client, class, homophily, index).
    """

    clients: tuple[str, ...]
    counts: NDArray[np.int64]
    """[K, C, B]: labelled nodes by client, class and step of local homophily (the last: no neighbours)."""
    majority: NDArray[np.int64]
    """[K]: each client's majority class among training nodes, -1 without any."""
    test: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    """Rightly predicted; false for all that are not test nodes."""

    @classmethod
    def from_models(cls, federation: Federation, models: Mapping[str, PersonalModel]) -> NodeTable:
        """Predicts every client's test nodes with its personal model; a client without a model has no test nodes."""
        parts = [_client_nodes(client, models.get(client.name)) for client in federation.clients]
        return cls(
            clients=tuple(client.name for client in federation.clients),
            counts=np.stack([counts for counts, _, _ in parts]),
            majority=np.array([-1 if c.majority_class is None else c.majority_class for c in federation.clients]),
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
        majority = self.majority[self.client]
        return np.asarray((majority >= 0) & (self.label != majority))

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
        counts = np.array(content["counts"], dtype=np.int64)
        test = _unpack(content["test"], int(counts.sum()))
        correct = np.zeros(len(test), dtype=np.bool_)
        correct[test] = _unpack(content["correct"], int(test.sum()))
        return cls(tuple(content["clients"]), counts, np.array(content["majority"]), test, correct)

    def _axis(self, axis: int) -> NDArray[np.int64]:
        return np.repeat(np.indices(self.counts.shape)[axis].ravel(), self.counts.ravel())


@dataclass(frozen=True, eq=False)
class CellResult:
    """One finished cell, as its file says it."""

    content: Json

    @classmethod
    def from_run(cls, header: Json, federation: Federation, result: SeedResult, *, validation_only: bool) -> CellResult:
        """Keeps what a study needs of a run.

        Args:
            header: what was run, and on what; it comes first in the file.
            federation: with the splits of the run.
            result: the run's.
            validation_only: keep nothing about test nodes (there were none).
        """
        parts = ("train", "val") if validation_only else ("train", "val", "test")
        metrics = {k: v for k, v in result.metrics.items() if k in _WITHOUT_TEST or not validation_only}
        content = {
            **header,
            "validation_only": validation_only,
            "metrics": metrics,
            "curves": {
                part: {name: [_short(record[part][name]) for record in result.records] for name in CURVES}
                for part in parts
            },
        }
        if not validation_only:
            content["nodes"] = NodeTable.from_models(federation, result.models).to_json()
        return cls(content)

    @property
    def metrics(self) -> Json:
        """The entry of the run's seed: test metrics at the top, `val` and `train` below, bytes and seconds."""
        metrics: Json = self.content["metrics"]
        return metrics

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return int(self.content["seed"])

    @cached_property
    def nodes(self) -> NodeTable:
        """Which test nodes were predicted rightly."""
        return NodeTable.from_json(self.content["nodes"])

    def save(self, path: Path) -> None:
        """Writes the file in one step, one line for each top-level key."""
        lines = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in self.content.items())
        store.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: Path, key: str) -> CellResult:
        """Reads a cell's file and makes sure that it is this cell's."""
        content = store.read_json(path)
        if content.get("key") != key:
            raise InputError(f"{path} holds the key {content.get('key')!r}, but {key!r} is needed: remove the file")
        return cls(content)


def _client_nodes(
    client: Client, model: PersonalModel | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Counts [C, B] of the labelled nodes, and for each in order: whether it is a test node, and predicted rightly."""
    graph = client.graph
    buckets = bucket_of(node_homophily(graph))
    labelled = np.flatnonzero(graph.labelled)
    order = labelled[np.lexsort((labelled, buckets[labelled], graph.labels[labelled]))]
    counts = np.zeros((graph.num_classes, len(BUCKET_NAMES)), dtype=np.int64)
    np.add.at(counts, (graph.labels[order], buckets[order]), 1)
    if model is None:
        nobody = np.zeros(len(order), dtype=np.bool_)
        return counts, nobody, nobody
    right = model.predict(graph).argmax(axis=1) == graph.labels
    test = client.split.test
    return counts, test[order], (right & test)[order]


def _pack(bits: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def _unpack(text: str, count: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(packed, count=count).astype(np.bool_)


def _short(value: float | None) -> float | None:
    """Curves are for pictures: five digits."""
    return None if value is None else float(f"{value:.5g}")
