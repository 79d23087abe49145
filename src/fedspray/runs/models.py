"""Personal models: what a client keeps after a run, as one file, usable without the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Task
from fedspray.data.graph import Graph
from fedspray.data.reading import read_graph
from fedspray.display import count, line
from fedspray.engine import clients
from fedspray.engine.worker import Snapshot
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.nn import tree
from fedspray.runs import store
from fedspray.runs.settings import resolve, values_of

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """One client's model of the reported round."""

    client: str
    client_id: int
    algorithm: Algorithm[Any, Any]
    task: Task
    snapshot: Snapshot
    settings: RunSettings

    def __repr__(self) -> str:
        names = self.settings.algorithm, self.settings.backbone
        return line(self, f"client {self.client}", *names, f"round {self.snapshot.round_index}", self.task)

    def predict(
        self, data: Graph | Client | Data | str | Path, train: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """Class probabilities [N, C] for the nodes of a graph with the same features.

        Args:
            data: a graph, a client, a PyTorch Geometric ``Data``, or the path of a client's folder or of a graph in
                npz format.
            train: [N], which of them the model may take as labelled; None: none of them. It matters to algorithms
                that look at labels of neighbours (`fedspray2`).
        """
        batch = self._batch(data, train)
        with torch.no_grad():
            logits, _ = clients.predict(self.algorithm, self.snapshot.client, self.snapshot.message, batch)
        return _probabilities(logits)

    def predict_alone(self, data: Graph, train: NDArray[np.bool_] | None = None) -> NDArray[np.float64] | None:
        """The same of the model that the client would have had alone, where the algorithm trains that anyway."""
        with torch.no_grad():
            logits = clients.predict_alone(self.algorithm, self.snapshot.client, self._batch(data, train))
        return None if logits is None else _probabilities(logits)

    def _batch(self, data: Graph | Client | Data | str | Path, train: NDArray[np.bool_] | None) -> GraphBatch:
        graph = _as_graph(data)
        if graph.num_features != self.task.num_features:
            raise InputError(
                f"the graph has {graph.num_features} features per node, "
                f"but this model was trained on {self.task.num_features}"
            )
        different = self.task.difference(graph)
        if different is not None:
            which, given, known = different
            raise InputError(f"{which} of the graph is {given}, but this model was trained on {known} there")
        dtype: torch.dtype = getattr(torch, self.settings.dtype)
        return GraphBatch.from_graph(
            graph.with_num_classes(self.task.num_classes), client_id=self.client_id, dtype=dtype, train=train
        )

    def digest(self) -> str:
        """sha256 of the model's weights."""
        return store.digest(self._tensors())

    def save(self, path: str | Path) -> None:
        """Writes the model as one safetensors file."""
        meta = {
            "client": self.client,
            "client_id": self.client_id,
            "round": self.snapshot.round_index,
            "num_features": self.task.num_features,
            "num_classes": self.task.num_classes,
            "class_names": self.task.class_names,
            "feature_names": self.task.feature_names,
            **({} if self.task.schema is None else {"schema": self.task.schema}),
            "algorithm": self.settings.algorithm,
            "backbone": self.settings.backbone,
            "values": values_of(self.algorithm),
            "dtype": self.settings.dtype,
        }
        store.write_tensors(Path(path), self._tensors(), meta)

    @classmethod
    def load(cls, path: str | Path) -> PersonalModel:
        """Reads what `save` wrote."""
        tensors, meta = store.read_tensors(Path(path))
        if "algorithm" not in meta or "client" not in meta:
            raise InputError(f"{path} is not a personal model, but one is needed: RUN/seed-…/models/CLIENT.safetensors")
        settings = RunSettings(**{name: meta[name] for name in ("algorithm", "backbone", "values", "dtype")})
        run = resolve(settings)
        names = (meta["class_names"], meta.get("feature_names"))  # older files have no names of features
        classes, features = (None if known is None else tuple(known) for known in names)
        task = Task(meta["num_features"], meta["num_classes"], classes, features, meta.get("schema"))
        template = clients.init_state(run.algorithm, task, _single_node(task, run.dtype), seed=0)
        server = tree.cast(run.algorithm.init_server(task, seed=0), run.dtype)
        expected = {
            **tree.flatten(tree.for_prediction(template), "client"),
            **tree.prefixed("message", run.algorithm.broadcast(server, (0,))),
        }
        _check_tensors(str(path), tensors, expected)
        client = tree.restore(template, tree.part_of(tensors, "client"))
        snapshot = Snapshot(meta["round"], client, tree.part_of(tensors, "message"))
        return cls(meta["client"], meta["client_id"], run.algorithm, task, snapshot, settings)

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**tree.flatten(self.snapshot.client, "client"), **tree.prefixed("message", self.snapshot.message)}


class ModelFiles(Mapping[str, PersonalModel]):
    """The personal models of some clients in a folder; each is read when it is asked for."""

    def __init__(self, folder: Path, clients: Iterable[str]) -> None:
        files = {client: folder / f"{client}.safetensors" for client in clients}
        self._files = {client: file for client, file in files.items() if file.exists()}

    def __repr__(self) -> str:
        return line(self, count(len(self), "model"))

    def __getitem__(self, client: str) -> PersonalModel:
        return PersonalModel.load(self._files[client])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _check_tensors(path: str, given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Refuses weights that this model does not have, or that are not numbers."""
    for name in sorted({*given, *expected}):
        if name not in given or name not in expected:
            raise InputError(
                f"{path} is damaged: {name} {'is missing' if name in expected else 'is no part of its model'}"
            )
        shapes = [list(tensors[name].shape) for tensors in (given, expected)]
        if shapes[0] != shapes[1]:
            raise InputError(f"{path} is damaged: {name} has shape {shapes[0]}, but must have {shapes[1]}")
        if not given[name].isfinite().all():
            raise InputError(f"{path} is damaged: {name} holds numbers that are not finite")


def _probabilities(logits: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(logits.double().softmax(dim=1).numpy())


def _as_graph(data: object) -> Graph:
    if isinstance(data, Graph):
        return data
    if isinstance(data, Client):
        return data.graph
    if isinstance(data, str | Path):
        return read_graph(data)
    if type(data).__module__.startswith("torch_geometric."):
        pyg: Any = data
        return Graph.from_pyg(pyg)
    raise InputError(
        f"the graph is a {type(data).__name__}, but must be a Graph, a Client, a PyTorch Geometric Data or a path: "
        "Graph.from_arrays makes one of arrays"
    )


def _single_node(task: Task, dtype: torch.dtype) -> GraphBatch:
    """The smallest batch: states built on it have the right names, which is all that loading needs."""
    graph = Graph.from_arrays(
        np.zeros((1, task.num_features), dtype=np.float32), np.zeros((2, 0)), num_classes=task.num_classes
    )
    return GraphBatch.from_graph(graph, dtype=dtype)
