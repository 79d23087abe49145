"""The clients' side of an algorithm, with their backbone's buffers.

A user's module may have buffers: running statistics, for example. They are part of a client's state, so they
survive a restart and are saved with its model, but algorithms do not see them and they never travel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import Backbone
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.engine.sampling import update_on_sample
from fedspray.nn.layers import NoPlainModule
from fedspray.nn.plain import UnitRows
from fedspray.nn.tree import Message, Params

AnyAlgorithm = Algorithm[Any, Any]


@dataclass(frozen=True)
class WithBuffers:
    """The state of clients whose backbone has buffers. Without buffers it is the algorithm's own."""

    client: Any
    buffers: Params


def init_state(algorithm: AnyAlgorithm, task: Task, batch: GraphBatch, seed: int) -> Any:
    """The clients' states before the first round."""
    _, _, batch = bound(algorithm, None, batch)
    client, buffers = algorithm.init_clients(task, batch, seed), algorithm.backbone.init_buffers(task, batch, seed)
    return WithBuffers(client, buffers) if buffers else client


def bound(algorithm: AnyAlgorithm, state: Any, batch: GraphBatch) -> tuple[AnyAlgorithm, Any, GraphBatch]:
    """What an algorithm's methods are called with: itself, with the buffers in its backbone; its own part of the state;
    and the batch as it wants to see it, with rows of length 1 perhaps."""
    if isinstance(state, WithBuffers):
        backbone = algorithm.backbone.with_buffers(state.buffers)
        algorithm, state = replace(algorithm, backbone=backbone), state.client
    return algorithm, state, batch.unit_rows if algorithm.unit_rows else batch


def train(algorithm: AnyAlgorithm, state: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
    """One round of local training, on all nodes or on a sample."""
    update = update_on_sample if algorithm.sample_nodes else type(algorithm).client_update
    kept = dict(state.buffers) if isinstance(state, WithBuffers) else None  # training replaces its entries
    algorithm, own, batch = bound(algorithm, state if kept is None else WithBuffers(state.client, kept), batch)
    client, uplink = update(algorithm, own, message, batch, seed)
    return client if kept is None else WithBuffers(client, kept), uplink


def to_torch(algorithm: AnyAlgorithm, state: Any, message: Message, task: Task, batch: GraphBatch) -> nn.Module:
    """One client's model as a plain module; refused where a method's predictions are more than one network's.

    ``batch`` is any of one client: predicting on it shows whose logits a prediction is.
    """
    algorithm, state, _ = bound(algorithm, state, batch)
    module = algorithm.to_torch(state, message, task)
    if module is None:
        asked: Any = _Asked(algorithm.backbone)
        with torch.no_grad():
            found = replace(algorithm, backbone=asked).predict(state, message, batch)
        if asked.answer is not found:
            raise NoPlainModule(
                f"{type(algorithm).__name__} predicts with more than its backbone, so it "
                "can't be exported as a plain module: use predict"
            )
        module = algorithm.backbone.to_torch({name: value[0] for name, value in asked.params.items()}, task)
    return UnitRows(module) if algorithm.unit_rows else module


class _Asked:
    """A backbone that remembers with which weights it was last asked for logits."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone, self.params, self.answer = backbone, Params(), torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)

    def logits(self, params: Params, batch: GraphBatch) -> Tensor:
        """The backbone's own."""
        self.params, self.answer = params, self._backbone.logits(params, batch)
        return self.answer
