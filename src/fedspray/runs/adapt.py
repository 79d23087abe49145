"""A newcomer's personal model, from the shared part of a finished run.

What the server sent last, in the reported round, is the shared part. The newcomer trains on its own data as a client
of the run would. What it would send to the server under a name that it also receives takes the place of what it
received: a federation of one. So FedAvg's model goes on being trained here, while FedSpray 2's teacher, which clients
send gradients for, stays as it is and the newcomer's own GNN is trained beside it. Of all rounds, the one with the
smallest loss on the newcomer's validation nodes is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedspray import files
from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Task
from fedspray.display import count, line
from fedspray.engine import clients
from fedspray.engine.worker import Snapshot
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs import store
from fedspray.runs.models import PersonalModel, check_tensors, meta_of, settings_and_task
from fedspray.runs.settings import resolve
from fedspray.seeds import stream_key
from fedspray.tables.diff import compare
from fedspray.tables.schema import Schema

FILE = "shared.safetensors"
ROUNDS = 20


@dataclass(frozen=True, eq=False)
class SharedPart:
    """What the server of a run sent to all clients in the reported round."""

    algorithm: Algorithm[Any, Any]
    settings: RunSettings
    task: Task
    message: Message
    """Every tensor is [1, …]."""
    round_index: int
    dataset: str

    def __repr__(self) -> str:
        return line(self, self.settings.algorithm, self.settings.backbone, f"round {self.round_index}", self.task)

    @classmethod
    def of(cls, models: Mapping[str, PersonalModel]) -> SharedPart | None:
        """What the models of all clients have in common; None if that is nothing, or the server told them apart."""
        first = next(iter(models.values()), None)
        if first is None or not first.snapshot.message:
            return None
        message, received = first.snapshot.message, [model.snapshot.message for model in models.values()]
        if any(not torch.equal(value, theirs[name]) for theirs in received for name, value in message.items()):
            return None
        settings = replace(first.settings, backbone_of={})
        dataset = str(first.facts.get("dataset", ""))
        return cls(first.algorithm, settings, first.task, message, first.snapshot.round_index, dataset)

    def save(self, path: str | Path) -> None:
        """Writes one safetensors file."""
        meta = meta_of(self.algorithm, self.settings, self.task)
        tensors = tree.prefixed("message", self.message)
        store.write_tensors(Path(path), tensors, {**meta, "round": self.round_index, "dataset": self.dataset})

    @classmethod
    def load(cls, path: str | Path, task: Task | None = None) -> SharedPart:
        """Reads what `save` wrote (or its folder), or what the server of a deployed run kept beside its settings.

        The file of a deployed run does not say the newcomer's ``task``.
        """
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise InputError(f"{file} is missing: give RUN/seed-…/{FILE} of a run whose server sends the same to all")
        tensors, meta = store.read_tensors(file)
        if "algorithm" in meta:
            settings, known = settings_and_task(meta)
        elif task is None or "round" not in meta:
            raise InputError(f"{file} is not what a run's clients share: give RUN/seed-…/{FILE}")
        else:
            settings, known = RunSettings(**files.read_json(file.parent.parent / "settings.json")["run"]), task
        run, shared = resolve(settings), tree.part_of(tensors, "message")
        blank = tree.cast(run.algorithm.init_server(known, seed=0), run.dtype)
        if "algorithm" not in meta:  # a deployed run's server keeps its own state
            server = tree.part_of(tensors, "server")
            check_tensors(str(file), server, tree.flatten(blank))
            shared = dict(run.algorithm.broadcast(tree.restore(blank, server), (0,)))
        check_tensors(str(file), shared, run.algorithm.broadcast(blank, (0,)))
        return cls(run.algorithm, run.settings, known, shared, int(meta["round"]), str(meta.get("dataset", "")))


def adapt(shared: SharedPart, client: Client, *, rounds: int = ROUNDS, seed: int = 0) -> PersonalModel:
    """A personal model for a client that took no part.

    Args:
        shared: of a finished run.
        client: the newcomer, with its split: training nodes are learnt from, validation nodes choose the round.
        rounds: of local training; each has the run's `local_epochs`.
        seed: of everything that is drawn.
    """
    algorithm, task = shared.algorithm, shared.task
    _check(shared, client, rounds)
    graph = client.graph.with_num_classes(task.num_classes)
    batch = GraphBatch.from_clients([replace(client, graph=graph)], [0], dtype=getattr(torch, shared.settings.dtype))
    state: Any = clients.init_state(algorithm, task, batch, seed)
    message, best, least = dict(shared.message), None, torch.inf
    for round_index in range(1, rounds + 1):
        state, sent = clients.train(algorithm, state, message, batch, stream_key(seed, "adapt", round_index))
        message |= {name: value for name, value in sent.items() if name in message}
        snapshot = Snapshot(round_index, tree.for_prediction(state), dict(message))
        loss = _loss(algorithm, snapshot, batch)
        if best is None or loss < least or not len(batch.val):
            best, least = snapshot, loss
    assert best is not None
    known = replace(task, schema=client.graph.schema or task.schema)
    model = PersonalModel(client.name, 0, algorithm, known, best, shared.settings)
    return model.described(client, shared.dataset)


def _check(shared: SharedPart, client: Client, rounds: int) -> None:
    task, graph = shared.task, client.graph
    if rounds < 1:
        raise InputError(f"rounds is {rounds}, but must be at least 1")
    if graph.num_features != task.num_features or graph.num_classes > task.num_classes:
        raise InputError(
            f"the data have {graph.num_features} features and {graph.num_classes} classes, but the run had "
            f"{task.num_features} and {task.num_classes}"
        )
    different = task.difference(graph)
    if different is not None:
        which, given, known = different
        raise InputError(f"{which} of the data is {given}, but the run had {known} there")
    if graph.schema is not None and task.schema is not None:
        _check_schema(task.schema, graph.schema)
    if not client.split.train.any():
        raise InputError(f"client {client.name} has no training node, but at least one is needed")


def _check_schema(run: str, data: str) -> None:
    """The same row must be the same features: tables that are scaled by their own mean and sd are not the run's."""
    found = compare(Schema.from_toml(run), Schema.from_toml(data))
    if found:
        more = f" (and {count(len(found) - 1, 'more difference')})" if len(found) > 1 else ""
        raise InputError(
            "the run's schema (the first) and that of the data (the second) differ: "
            f"{found[0].sentence}{more}; import the data with the schema.toml of one of the run's models"
        )


def _loss(algorithm: Algorithm[Any, Any], snapshot: Snapshot, batch: GraphBatch) -> float:
    """On the validation nodes; infinite where it is not a number."""
    if not len(batch.val):
        return torch.inf
    with torch.no_grad():
        algorithm, state, seen = clients.bound(algorithm, snapshot.client, batch)
        logits = algorithm.loss_logits(state, snapshot.message, seen)
        if logits is None:
            logits = algorithm.predict(state, snapshot.message, seen)
    loss = float(torch.nn.functional.cross_entropy(logits[batch.val], batch.labels[batch.val]))
    return loss if loss == loss else torch.inf


def task_of(client: Client) -> Task:
    """What a newcomer's data say themselves."""
    graph = client.graph
    return Task(graph.num_features, graph.num_classes, graph.class_names, graph.feature_names, graph.schema)
