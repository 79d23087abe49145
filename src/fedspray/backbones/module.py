"""Any ``torch.nn.Module`` with ``forward(x, edge_index) -> logits`` as a backbone.

The class is named as ``package.module:Class`` and built as ``Class(in_channels, hidden_channels,
out_channels)``, by position. Its own initialisation is used, from a named stream, and it is run one
client after another on dense features: right for any module, fast for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedspray import plugins
from fedspray.backbones.base import Backbone, Drop, Dropout, setting
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.nn.tree import Params


@dataclass(frozen=True)
class ModuleBackbone(Backbone):
    """A user's module. ``layers``, ``init`` and ``dropout`` are the module's own affair."""

    ignores: ClassVar[frozenset[str]] = frozenset({"layers", "init", "dropout"})

    target: str = setting("", "package.module:Class of the torch.nn.Module")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._class()  # refuse what cannot be found before anything begins

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """Those of the module's own parameters."""
        with _global_stream():
            return {name: tuple(p.shape) for name, p in self._build(task).named_parameters()}

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """The module's own initial weights; torch's global stream is used under a seed and put back."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with _global_stream():
            torch.manual_seed(seed)
            module = self._build(task)
        if list(module.buffers()):
            raise InputError(f"backbone {self.target!r} has buffers (running statistics), which are not supported")
        return {name: p.detach().clone() for name, p in module.named_parameters()}

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """None: what is inside the module is not known."""
        return None

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C], one client after another; in a training step torch's global stream is under a seed."""
        features = _dense_features(batch)
        source, target = batch.edge_index
        results = []
        with _global_stream():
            module = self._build(Task(batch.num_features, batch.num_classes))
            module.train(isinstance(drop, Dropout))
            for k, (start, stop) in enumerate(pairwise(batch.rows.ptr)):
                inside = (source >= start) & (source < stop)
                edge_index = torch.stack([source[inside], target[inside]]) - start
                weights = {name: value[k] for name, value in params.items()}
                if isinstance(drop, Dropout):
                    torch.manual_seed(drop.module_seed(batch.client_ids[k]))
                results.append(torch.func.functional_call(module, weights, (features[start:stop], edge_index)))
        logits: Tensor = torch.cat(results)
        if logits.shape != (batch.num_nodes, batch.num_classes):
            raise InputError(
                f"backbone {self.target!r} gives shape {list(logits.shape)}, "
                f"but must give [{batch.num_nodes}, {batch.num_classes}]"
            )
        return logits

    def _class(self) -> type[nn.Module]:
        found: type[nn.Module] = plugins.load_outside("backbone", self.target, nn.Module)
        return found

    def _build(self, task: Task) -> nn.Module:
        try:
            return self._class()(task.num_features, self.hidden, task.num_classes)
        except TypeError as error:
            raise InputError(
                f"backbone {self.target!r} cannot be built as Class(in, hidden, out) by position ({error})"
            ) from None


@contextmanager
def _global_stream() -> Iterator[None]:
    """Torch's global stream for one thread alone, since all share it; afterwards it is as before."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        yield


_LOCK = Lock()


def _dense_features(batch: GraphBatch) -> Tensor:
    """[N, F], made once for each batch."""
    features, columns = batch.rows.features, batch.rows.columns
    if isinstance(features, Tensor) or columns is None:
        assert isinstance(features, Tensor)  # sparse features always have columns
        return features
    known: Tensor | None = batch.__dict__.get("_dense_features")
    if known is None:
        matrix = features.matrix
        rows = torch.repeat_interleave(torch.arange(batch.num_nodes), matrix.crow_indices().diff())
        known = torch.zeros(batch.num_nodes, batch.num_features, dtype=batch.dtype)
        known[rows, columns[matrix.col_indices().long()] % batch.num_features] = matrix.values()
        batch.__dict__["_dense_features"] = known
    return known
