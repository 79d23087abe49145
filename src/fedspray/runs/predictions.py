"""The predictions that a run is judged by: every test node, under the personal model of its client.

A federation that spans machines only ever adds up counts. A run in one process has all clients at hand, so it
keeps its test nodes one by one: two runs can then be compared node by node, which counts alone do not allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedspray.data.federation import Federation
from fedspray.data.statistics import node_homophily
from fedspray.runs import store
from fedspray.runs.models import PersonalModel

FILE = "predictions.safetensors"


@dataclass(frozen=True, eq=False)
class TestPredictions:
    """One row for each test node of each client that has a model; `majority` has one for each client."""

    __test__ = False  # the name is no invitation to pytest

    client: NDArray[np.int64]
    """[n]: the client's id."""
    node: NDArray[np.int64]
    """[n]: the node's index in its client's graph."""
    label: NDArray[np.int64]
    prediction: NDArray[np.int64]
    homophily: NDArray[np.float64]
    """[n]: share of the labelled neighbours with the node's own label; NaN without any."""
    majority: NDArray[np.int64]
    """[K]: the majority class of each client's training labels; -1 without any."""

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[n]: whether the model is right."""
        return np.asarray(self.prediction == self.label)

    @property
    def minority(self) -> NDArray[np.bool_]:
        """[n]: whether the node is outside its client's majority class."""
        majority = self.majority[self.client]
        return np.asarray((majority >= 0) & (self.label != majority))

    @classmethod
    def of_models(cls, federation: Federation, models: Mapping[str, PersonalModel]) -> TestPredictions:
        """Lets every client's model predict the client's own test nodes."""
        parts: list[dict[str, NDArray[Any]]] = []
        for k, client in enumerate(federation.clients):
            if client.name not in models:
                continue
            test = np.flatnonzero(client.split.test)
            parts.append(
                {
                    "client": np.full(len(test), k, dtype=np.int64),
                    "node": test,
                    "label": client.graph.labels[test].astype(np.int64),
                    "prediction": models[client.name].predict(client.graph)[test].argmax(axis=1),
                    "homophily": node_homophily(client.graph)[test],
                }
            )
        majority = [-1 if client.majority_class is None else client.majority_class for client in federation.clients]
        stacked = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return cls(**stacked, majority=np.array(majority, dtype=np.int64))

    def save(self, path: Path) -> None:
        """Writes one safetensors file."""
        small = {"homophily": torch.float64, "label": torch.int16, "prediction": torch.int16, "majority": torch.int16}
        tensors = {
            f.name: torch.from_numpy(getattr(self, f.name)).to(small.get(f.name, torch.int32)) for f in fields(self)
        }
        store.write_tensors(path, tensors, {})

    @classmethod
    def load(cls, path: Path) -> TestPredictions:
        """Reads what `save` wrote."""
        tensors, _ = store.read_tensors(path)
        return cls(**{f.name: _wide(tensors[f.name]) for f in fields(cls)})


def _wide(tensor: torch.Tensor) -> NDArray[Any]:
    return np.asarray(tensor.numpy() if tensor.is_floating_point() else tensor.to(torch.int64).numpy())
