"""Personal models: what a client keeps after a run, usable without it.

::

    CLIENT/model.safetensors       the whole model: weights, settings, schema, figures; all that a program reads
    CLIENT/trained-on.safetensors  which nodes it has seen; may be left out
    CLIENT/model.json              the same settings and figures, for people and other programs
    CLIENT/schema.toml             how tables become its features, if it was trained on tables
    CLIENT/README.md               the model card
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedspray import files
from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Task
from fedspray.data.graph import Graph
from fedspray.display import count, line
from fedspray.engine import clients
from fedspray.engine.worker import Snapshot
from fedspray.errors import InputError
from fedspray.evaluation.calibration import expected_error, fit_temperature, loss_at, scaled
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.nn import tree
from fedspray.runs import store
from fedspray.runs.model_card import card
from fedspray.runs.predictions import Asked, Predictions, agreeing_neighbours, ask
from fedspray.runs.settings import resolve, values_of
from fedspray.runs.trained_on import FILE as TRAINED_ON
from fedspray.runs.trained_on import NEW, TRAIN, TrainedOn

if TYPE_CHECKING:
    from fedspray.runs.predictions import Nodes, Table

ENDING = ".safetensors"
WEIGHTS = f"model{ENDING}"


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """One client's model of the reported round."""

    client: str
    client_id: int
    algorithm: Algorithm[Any, Any]
    task: Task
    snapshot: Snapshot
    settings: RunSettings
    facts: Json = field(default_factory=dict)
    """What is known of its training: see `described`. Empty for models of older versions."""
    trained_on: TrainedOn | None = None
    """The nodes that it has seen; None where that was not kept."""

    def __repr__(self) -> str:
        names = self.settings.algorithm, self.settings.backbone
        return line(self, f"client {self.client}", *names, f"round {self.snapshot.round_index}", self.task)

    def predict(
        self,
        data: Nodes,
        train: NDArray[np.bool_] | None = None,
        *,
        edges: Table | Sequence[Table] | None = None,
        known: Table | Sequence[Table] | None = None,
    ) -> NDArray[np.float64]:
        """Class probabilities [n, C].

        A row of a table that cannot be used has no probabilities, and a warning says so: `predictions` knows which
        rows the others are.

        Args:
            data: a graph, a client, a PyTorch Geometric ``Data``, or the path of a client's folder or of a graph in
                npz format: all its nodes are predicted. Or a table of nodes, read through the model's schema: a data
                frame or the path of a file, or several.
            train: [N], whose labels the model may look at, which matters to algorithms that look at labels of
                neighbours (`fedspray2`). None: those of nodes that it was trained on, and of labelled ``known`` nodes
                that it has never seen.
            edges: tables of edges, with a table of nodes.
            known: tables of further nodes, there for their edges and not predicted.
        """
        return self.predictions(self._ask(data, edges, known), train).probabilities

    def predictions(
        self,
        data: Nodes | Asked,
        train: NDArray[np.bool_] | None = None,
        *,
        edges: Table | Sequence[Table] | None = None,
        known: Table | Sequence[Table] | None = None,
        only_new: bool = False,
    ) -> Predictions:
        """Predictions with confidences, reasons, and each node's role in training; arguments are those of `predict`.

        ``only_new`` skips nodes of the graph it was trained on.
        """
        asked = data if isinstance(data, Asked) else self._ask(data, edges, known)
        graph, wanted = asked.graph, asked.wanted
        parts = None if self.trained_on is None else self.trained_on.parts_of(graph)
        if only_new:
            if parts is None:
                raise InputError(
                    "it is unknown which nodes are new: the model has no list of the nodes it was trained on, or "
                    "nodes have no names"
                )
            wanted = wanted & (parts == NEW)
            if not wanted.any():
                raise InputError("no node is new: the model was trained on a graph that holds all of them")
        if train is None:
            fresh = np.zeros_like(wanted) if parts is None else parts == TRAIN
            unseen = ~wanted if parts is None else ~wanted & (parts == NEW)
            train = (fresh | unseen) & graph.labelled
        logits, loss_logits, votes = self._outputs(graph, train)
        classes, nodes = logits.argmax(axis=1), np.flatnonzero(wanted)
        agreeing = agreeing_neighbours(graph, np.where(train, graph.labels, classes))
        names = self.task.class_names or tuple(map(str, range(self.task.num_classes)))
        return Predictions(
            graph=graph,
            nodes=nodes,
            probabilities=scaled(logits, 1.0)[nodes],
            confidence=_confidence(self.facts, logits, loss_logits)[nodes],
            agreeing=agreeing[nodes],
            votes={name: said.argmax(axis=1)[nodes] for name, said in votes.items()},
            parts=None if parts is None else parts[nodes],
            majority=self.facts.get("majority"),
            class_names=names,
            rows=None if asked.rows is None else asked.rows[nodes],
            skipped={} if asked.problems is None else dict(asked.problems.counts),
        )

    def _ask(self, data: Nodes, edges: Table | Sequence[Table] | None, known: Table | Sequence[Table] | None) -> Asked:
        """Reads the nodes, and warns whoever called `predict` or `predictions` of rows that were left out."""
        asked = ask(self.task.schema, data, edges, known)
        if asked.problems is not None and asked.problems.total:
            told = [*asked.problems.skipped(), "predictions(…).rows says which rows the others are"]
            warnings.warn("; ".join(told), stacklevel=3)
        return asked

    def predict_alone(self, data: Graph, train: NDArray[np.bool_] | None = None) -> NDArray[np.float64] | None:
        """Class probabilities of the model the client would have had alone, if the algorithm trains that anyway."""
        with torch.no_grad():
            algorithm, client, batch = clients.bound(self.algorithm, self.snapshot.client, self._batch(data, train))
            logits = algorithm.alone_logits(client, batch)
        return None if logits is None else scaled(_array(logits), 1.0)

    def to_torch(self) -> torch.nn.Module:
        """The model as a plain torch module, which needs nothing of this package's loops: logits [N, C] for
        ``module(x, edge_index, edge_weight=None)``, called as PyTorch Geometric's are, edges in both directions.

        With `fedspray2` it also takes ``labels`` [N]: those of nodes whose label it may see, -1 for all others.
        """
        dtype: torch.dtype = getattr(torch, self.settings.dtype)
        single = _single_node(self.task, dtype)
        return clients.to_torch(self.algorithm, self.snapshot.client, self.snapshot.message, self.task, single).eval()

    def described(self, client: Client, dataset: str) -> PersonalModel:
        """The same model with figures and a temperature, measured on its client's data."""
        labels, split = client.graph.labels, client.split
        logits, loss_logits, _ = self._outputs(client.graph, split.train)
        classes, shape = logits.argmax(axis=1), (self.task.num_classes,) * 2
        parts = {"train": split.train, "val": split.val, "test": split.test}
        facts: Json = {
            "dataset": dataset,
            "nodes": client.graph.num_nodes,
            "edges": client.graph.num_edges,
            "majority": client.majority_class,
            "confusion": {
                name: np.bincount(labels[m] * shape[0] + classes[m], minlength=shape[0] ** 2).reshape(shape).tolist()
                for name, m in parts.items()
            },
            "calibration": None,
        }
        if split.val.any():
            facts["calibration"] = _calibration(logits, loss_logits, labels, split.val)
            right, sure = classes == labels, _confidence(facts, logits, loss_logits)
            for name, values in (("before", scaled(logits, 1.0).max(axis=1)), ("after", sure)):
                errors = {part: expected_error(values[parts[part]], right[parts[part]]) for part in ("val", "test")}
                facts["calibration"][name] = errors
        return replace(self, facts=facts, trained_on=TrainedOn.of(client))

    def _outputs(
        self, graph: Graph, train: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, dict[str, NDArray[np.float64]]]:
        """Logits [N, C] of predictions, of probabilities if those are others, and of the model's parts."""
        with torch.no_grad():
            algorithm, client, batch = clients.bound(self.algorithm, self.snapshot.client, self._batch(graph, train))
            given = client, self.snapshot.message, batch
            logits, loss_logits = algorithm.predict(*given), algorithm.loss_logits(*given)
            told = {name: _array(value) for name, value in algorithm.votes(*given).items()}
        return _array(logits), None if loss_logits is None else _array(loss_logits), told

    def _batch(self, graph: Graph, train: NDArray[np.bool_] | None) -> GraphBatch:
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

    @property
    def meta(self) -> Json:
        """Everything about the model except its weights."""
        return {
            "client": self.client,
            "client_id": self.client_id,
            "round": self.snapshot.round_index,
            **meta_of(self.algorithm, self.settings, self.task),
            **({"facts": self.facts} if self.facts else {}),
        }

    def save(self, path: str | Path) -> None:
        """Writes the model as a folder with a model card or, if the path ends in .safetensors, as one file."""
        target = Path(path)
        if target.suffix == ENDING:
            store.write_tensors(target, self._tensors(), self.meta)
            return
        target.mkdir(parents=True, exist_ok=True)
        described = {**{k: v for k, v in self.meta.items() if k != "schema"}, "sha256": self.digest()}
        files.write_json(target / "model.json", described)
        files.write_text(target / "README.md", card(described))
        if self.task.schema is not None:
            files.write_text(target / "schema.toml", self.task.schema)
        if self.trained_on is not None:
            self.trained_on.save(target / TRAINED_ON)
        store.write_tensors(target / WEIGHTS, self._tensors(), self.meta)

    @classmethod
    def load(cls, path: str | Path) -> PersonalModel:
        """Reads what `save` wrote."""
        file = _weights_of(Path(path))
        tensors, meta = store.read_tensors(file)
        if "algorithm" not in meta or "client" not in meta:
            raise InputError(f"{path} is not a personal model, but one is needed: RUN/seed-…/models/CLIENT")
        settings, task = settings_and_task(meta)
        run = resolve(settings)
        template = clients.init_state(run.algorithm, task, _single_node(task, run.dtype), seed=0)
        server = tree.cast(run.algorithm.init_server(task, seed=0), run.dtype)
        expected = {
            **tree.flatten(tree.for_prediction(template), "client"),
            **tree.prefixed("message", run.algorithm.broadcast(server, (0,))),
        }
        check_tensors(str(path), tensors, expected)
        client = tree.restore(template, tree.part_of(tensors, "client"))
        snapshot = Snapshot(meta["round"], client, tree.part_of(tensors, "message"))
        seen = TrainedOn.load(file.with_name(TRAINED_ON)) if file.name == WEIGHTS else None
        return cls(
            meta["client"], meta["client_id"], run.algorithm, task, snapshot, settings, meta.get("facts", {}), seen
        )

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**tree.flatten(self.snapshot.client, "client"), **tree.prefixed("message", self.snapshot.message)}


class ModelFiles(Mapping[str, PersonalModel]):
    """The personal models of some clients in a folder; each is read when it is asked for."""

    def __init__(self, folder: Path, clients: Iterable[str]) -> None:
        found = {client: _weights_of(folder / client) for client in clients}
        self._files = {client: file for client, file in found.items() if file.exists()}

    def __repr__(self) -> str:
        return line(self, count(len(self), "model"))

    def __getitem__(self, client: str) -> PersonalModel:
        return PersonalModel.load(self._files[client])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def meta_of(algorithm: Algorithm[Any, Any], settings: RunSettings, task: Task) -> Json:
    """What a file has to say so that its weights can be used."""
    return {
        "num_features": task.num_features,
        "num_classes": task.num_classes,
        "class_names": task.class_names,
        "feature_names": task.feature_names,
        **({} if task.schema is None else {"schema": task.schema}),
        "algorithm": settings.algorithm,
        "backbone": settings.backbone,
        "values": values_of(algorithm),
        "dtype": settings.dtype,
    }


def settings_and_task(meta: Json) -> tuple[RunSettings, Task]:
    """What `meta_of` wrote."""
    settings = RunSettings(**{name: meta[name] for name in ("algorithm", "backbone", "values", "dtype")})
    names = (meta["class_names"], meta.get("feature_names"))  # older files have no names of features
    classes, features = (None if known is None else tuple(known) for known in names)
    return settings, Task(meta["num_features"], meta["num_classes"], classes, features, meta.get("schema"))


def check_tensors(path: str, given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
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


def _array(logits: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(logits.double().numpy())


def _calibration(
    logits: NDArray[np.float64],
    loss_logits: NDArray[np.float64] | None,
    labels: NDArray[np.int64],
    val: NDArray[np.bool_],
) -> Json:
    """The temperature for validation nodes, of whatever has the smaller loss then: predictions may be shifted away
    from probabilities, and a client may have gone back to a model that these are not of."""
    sources = {"predictions": logits, **({} if loss_logits is None else {"probabilities": loss_logits})}
    fitted = {name: fit_temperature(source[val], labels[val]) for name, source in sources.items()}
    best = min(fitted, key=lambda name: loss_at(fitted[name], sources[name][val], labels[val]))
    return {"temperature": fitted[best], "of": best, "nodes": int(val.sum())}


def _confidence(
    facts: Json, logits: NDArray[np.float64], loss_logits: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """[N]: of the predicted classes; calibrated, if validation nodes said how."""
    known = facts.get("calibration")
    if known is None:
        return np.asarray(scaled(logits, 1.0).max(axis=1))
    source = logits if loss_logits is None or known["of"] == "predictions" else loss_logits
    return np.asarray(scaled(source, known["temperature"])[np.arange(len(logits)), logits.argmax(axis=1)])


def _weights_of(path: Path) -> Path:
    """The file with the weights: in a model's folder, also if its name got an ending here, or the path itself."""
    plain = path.with_suffix("") if path.suffix == ENDING and not path.exists() else path
    if (plain / WEIGHTS).is_file():
        return plain / WEIGHTS
    single = path.with_name(f"{path.name}{ENDING}")
    if path.is_dir():
        raise InputError(f"{path} is not a personal model: it has no {WEIGHTS}")
    return single if single.is_file() and not path.exists() else path


def _single_node(task: Task, dtype: torch.dtype) -> GraphBatch:
    """The smallest batch: states built on it have the right names, which is all that loading needs."""
    graph = Graph.from_arrays(
        np.zeros((1, task.num_features), dtype=np.float32), np.zeros((2, 0)), num_classes=task.num_classes
    )
    return GraphBatch.from_graph(graph, dtype=dtype)
