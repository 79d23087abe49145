"""The clients' side of an algorithm, with their backbone's buffers.

A user's module may have buffers: running statistics, for example. They are part of a client's state, so they
survive a restart and are saved with its model, but algorithms do not see them and they never travel.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    batch = _seen(algorithm, batch)
    client, buffers = algorithm.init_clients(task, batch, seed), algorithm.backbone.init_buffers(task, batch, seed)
    return WithBuffers(client, buffers) if buffers else client


def train(algorithm: AnyAlgorithm, state: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
    """One round of local training, on all nodes or on a sample."""
    batch = _seen(algorithm, batch)
    update = update_on_sample if algorithm.sample_nodes else type(algorithm).client_update
    if not isinstance(state, WithBuffers):
        return update(algorithm, state, message, batch, seed)
    buffers = dict(state.buffers)
    client, uplink = update(_bound(algorithm, buffers), state.client, message, batch, seed)
    return WithBuffers(client, buffers), uplink


def predict(algorithm: AnyAlgorithm, state: Any, message: Message, batch: GraphBatch) -> tuple[Tensor, Tensor | None]:
    """A model's predictions, [N, C], and the logits for its loss, if different."""
    batch = _seen(algorithm, batch)
    if isinstance(state, WithBuffers):
        algorithm, state = _bound(algorithm, dict(state.buffers)), state.client
    return algorithm.predict(state, message, batch), algorithm.loss_logits(state, message, batch)


def predict_alone(algorithm: AnyAlgorithm, state: Any, batch: GraphBatch) -> Tensor | None:
    """Predictions of the models that clients would have had alone, if the algorithm trains them anyway."""
    if isinstance(state, WithBuffers):
        algorithm, state = _bound(algorithm, dict(state.buffers)), state.client
    return algorithm.alone_logits(state, _seen(algorithm, batch))


def votes(algorithm: AnyAlgorithm, state: Any, message: Message, batch: GraphBatch) -> Mapping[str, Tensor]:
    """Predictions of a model's parts, if it has several."""
    if isinstance(state, WithBuffers):
        algorithm, state = _bound(algorithm, dict(state.buffers)), state.client
    return algorithm.votes(state, message, _seen(algorithm, batch))


def to_torch(algorithm: AnyAlgorithm, state: Any, message: Message, task: Task, batch: GraphBatch) -> nn.Module:
    """One client's model as a plain module; refused where a method's predictions are more than one network's.

    ``batch`` is any of one client: predicting on it shows whose logits a prediction is.
    """
    if isinstance(state, WithBuffers):
        algorithm, state = _bound(algorithm, dict(state.buffers)), state.client
    module = algorithm.to_torch(state, message, task)
    if module is None:
        asked: Any = _Asked(algorithm.backbone)
        with torch.no_grad():
            found = replace(algorithm, backbone=asked).predict(state, message, batch)
        if asked.answer is not found:
            raise NoPlainModule(
                f"predictions of {type(algorithm).__name__} are not those of one network, so there is no plain module "
                "of them: use predict"
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


def _seen(algorithm: AnyAlgorithm, batch: GraphBatch) -> GraphBatch:
    """The batch as an algorithm sees it, with rows of length 1 if it wants them."""
    return batch.unit_rows if algorithm.unit_rows else batch


def _bound(algorithm: AnyAlgorithm, buffers: Params) -> AnyAlgorithm:
    return replace(algorithm, backbone=algorithm.backbone.with_buffers(buffers))
