"""Any ``torch.nn.Module`` with ``forward(x, edge_index) -> logits`` as a backbone.

The class is named as ``package.module:Class`` and built as ``Class(in_channels, hidden_channels,
out_channels)``, by position. It draws its own initial weights, from a named stream, and runs one
client after another on dense features: correct for any module, but slow.

Buffers (BatchNorm's running statistics, GIN's ε) belong to each client: they are kept with its state and its personal
model, and never travel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from inspect import signature
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
from fedspray.nn.plain import WithoutWeights
from fedspray.nn.tree import Params, expand
from fedspray.seeds import torch_generator

BUILT = "built as Class(in, hidden, out) by position: write a subclass that passes on any other arguments"
"""What is asked of a module."""


@dataclass(frozen=True)
class ModuleBackbone(Backbone):
    """A user's module. It ignores ``layers``, ``init`` and ``dropout``."""

    ignores: ClassVar[frozenset[str]] = frozenset({"layers", "init", "dropout"})

    target: str = setting("", "package.module:Class of the torch.nn.Module")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._class()  # fail early

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """Those of the module's own parameters."""
        with _global_stream():
            return {name: tuple(p.shape) for name, p in self._build(task).named_parameters()}

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """The module's own initial weights; torch's global stream is used under a seed and put back."""
        return {name: p.detach().clone() for name, p in self._drawn(task, generator).named_parameters()}

    def init_buffers(self, task: Task, batch: GraphBatch, seed: int) -> Params:
        """The module's own."""
        return _stacked(self._drawn(task, torch_generator(seed, "backbone")), batch)

    def with_buffers(self, buffers: Params) -> Backbone:
        """The module with these buffers."""
        return _BoundModule(**{f.name: getattr(self, f.name) for f in fields(self)}, buffers=buffers)

    def learns_statistics(self, task: Task) -> bool:
        """Tries the module on a small graph."""
        return _try(self._class(), self, task)  # type: ignore[arg-type]  # a class is hashable

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """None: the module's layers are unknown."""
        return None

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C], one client after another; in a training step torch's global stream is under a seed."""
        return self._forward(params, None, batch, drop)[0]

    def _forward(self, params: Params, buffers: Params | None, batch: GraphBatch, drop: Drop) -> tuple[Tensor, Params]:
        """Logits, and the buffers after the pass; None: as the module has them when it is built."""
        features = batch.dense_features
        source, target = batch.edge_index
        results, after = [], []
        with _global_stream():
            module = self._build(Task(batch.num_features, batch.num_classes))
            module.train(isinstance(drop, Dropout))
            before = _stacked(module, batch) if buffers is None else buffers
            for k, (start, stop) in enumerate(pairwise(batch.rows.ptr)):
                inside = (source >= start) & (source < stop)
                edge_index = torch.stack([source[inside], target[inside]]) - start
                own = {name: value[k] for name, value in params.items()}
                own |= {name: value[k].clone() for name, value in before.items()}  # which the module may change
                if isinstance(drop, Dropout):
                    torch.manual_seed(drop.module_seed(batch.client_ids[k]))
                results.append(torch.func.functional_call(module, own, (features[start:stop], edge_index)))
                after.append({name: own[name].detach() for name in before})
        logits: Tensor = torch.cat(results)
        if logits.shape != (batch.num_nodes, batch.num_classes):
            first = ", ".join([*signature(self._class()).parameters][:3])
            raise InputError(
                f"backbone {self.target!r} gives shape {list(logits.shape)}, but must give "
                f"[{batch.num_nodes}, {batch.num_classes}]: its first arguments are {first}, and it is {BUILT}"
            )
        return logits, {name: torch.stack([each[name] for each in after]) for name in before}

    def to_torch(self, params: Params, task: Task) -> nn.Module:
        """The user's own module; it takes no weights of edges."""
        return self._with(params, {}, task)

    def _with(self, params: Params, buffers: Params, task: Task) -> nn.Module:
        with _global_stream():
            module = self._build(task)
        dtype = next((value.dtype for value in params.values()), torch.float32)
        module.to(dtype).load_state_dict(
            {**params, **{name: value[0] for name, value in buffers.items()}}, strict=False
        )
        return WithoutWeights(module.eval())

    def _class(self) -> type[nn.Module]:
        found: type[nn.Module] = plugins.load_outside("backbone", self.target, nn.Module)
        return found

    def _drawn(self, task: Task, generator: torch.Generator) -> nn.Module:
        seed = int(torch.randint(2**62, (), generator=generator))
        with _global_stream():
            torch.manual_seed(seed)
            return self._build(task)

    def _build(self, task: Task) -> nn.Module:
        try:
            return self._class()(task.num_features, self.hidden, task.num_classes)
        except TypeError as error:
            raise InputError(f"backbone {self.target!r} fails ({error}), but must be {BUILT}") from None


@dataclass(frozen=True)
class _BoundModule(ModuleBackbone):
    """A module with the buffers of some clients; a training step replaces them."""

    buffers: Params = field(default_factory=dict, compare=False)

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        logits, after = self._forward(params, self.buffers, batch, drop)
        if isinstance(drop, Dropout):
            self.buffers.update(after)
        return logits

    def to_torch(self, params: Params, task: Task) -> nn.Module:
        """With the client's statistics."""
        return self._with(params, self.buffers, task)

    def logits(self, params: Params, batch: GraphBatch) -> Tensor:
        """Logits for evaluation, which follow from the buffers too."""

        def answer() -> Tensor:
            return self._forward(params, self.buffers, batch, lambda hidden: hidden)[0]

        return batch.answers.cached(
            self, {**params, **{f"buffer {name}": b for name, b in self.buffers.items()}}, answer
        )


def _stacked(module: nn.Module, batch: GraphBatch) -> Params:
    """The buffers of a module for every client, [K, …], in the batch's precision."""
    buffers = {
        name: value.to(batch.dtype) if value.is_floating_point() else value for name, value in module.named_buffers()
    }
    return {name: value.contiguous() for name, value in expand(buffers, batch.num_clients).items()}


@lru_cache(maxsize=64)
def _try(module: Hashable, backbone: ModuleBackbone, task: Task) -> bool:
    """One pass of training on a ring of eight nodes: whether it changes the buffers. ``module`` is a cache key."""
    from fedspray.data.graph import Graph

    nodes = torch.arange(8)
    features = torch.rand(8, task.num_features, generator=torch_generator(0, "trial"))
    edges = torch.stack([nodes, nodes.roll(1)]).numpy()
    batch = GraphBatch.from_graph(Graph.from_arrays(features.numpy(), edges, num_classes=task.num_classes))
    params, before = backbone.init_params(task, batch, 0), backbone.init_buffers(task, batch, 0)
    try:
        _, after = backbone._forward(params, before, batch, Dropout(0.0, batch, 0, 0))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"backbone {backbone.target!r} fails on a graph of 8 nodes with {task.num_features} features: "
            f"forward(x, edge_index) raises {type(error).__name__} ({error})"
        ) from None
    return any(not torch.equal(before[name], after[name]) for name in before)


@contextmanager
def _global_stream() -> Iterator[None]:
    """Seeds torch's global stream for one thread at a time and restores it afterwards."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        yield


_LOCK = Lock()
