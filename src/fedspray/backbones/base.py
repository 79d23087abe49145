"""The contract of a backbone: explicit weights in, class scores out, for K clients at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.rows import NodeRows
from fedspray.display import settings_line
from fedspray.knob import check
from fedspray.nn import init
from fedspray.nn.layers import Layer, NoPlainModule, Shapes, Table, draw_all, shapes_of
from fedspray.nn.plain import Stack
from fedspray.nn.tree import Params, expand, part_of
from fedspray.seeds import stream_key, torch_generator


def setting(default: Any, description: str, **about: Any) -> Any:
    """A hyper-parameter with a description for the command line and the report.

    Args:
        default: its default.
        description: one line.
        about: what is allowed: ``choices``; or ``least``, ``above``, ``most``, ``below``, and words beside numbers,
            ``also``; and ``neutral`` for a setting added later: its value in earlier results, whatever the default
            becomes later. With this value it is not part of a result's identity, so older results stay valid.
    """
    return field(default=default, metadata={"description": description, **about})


@dataclass(frozen=True)
class Backbone(ABC):
    """A node classifier. Its fields are hyper-parameters only; weights are passed in and out."""

    ignores: ClassVar[frozenset[str]] = frozenset()
    """Common settings that this backbone ignores."""

    hidden: int = setting(64, "width of the hidden layers", least=1)
    layers: int = setting(2, "number of layers (SGC: hops)", least=1)
    dropout: float = setting(0.0, "share of hidden units dropped while training", least=0, below=1)
    init: str = setting("linear", "initial weights; see fedspray.nn.init", choices=init.INITIALISATIONS)
    lr: float = setting(0.003, "Adam's step size for the GNN", above=0)
    adam_eps: float = setting(1e-8, "Adam's ε: gradients far below it take small steps, as in SGD", above=0)
    weight_decay: float = setting(0.0, "L2 penalty on the GNN's weights", least=0)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = settings_line  # type: ignore[method-assign]  # before `dataclass` gives it a longer one

    def __post_init__(self) -> None:
        check(self)

    @property
    def feature_weights(self) -> tuple[str, ...]:
        """Weights applied to the features, only through `ops.feature_linear`."""
        return ()

    def inner_layer(self) -> Layer | None:
        """The layer for algorithms that build their own network; None if there is none."""
        return None

    def init_buffers(self, task: Task, batch: GraphBatch, seed: int) -> Params:
        """State per client without gradients, [K, …], such as running statistics."""
        return {}

    def with_buffers(self, buffers: Params) -> Backbone:
        """The same backbone for one call, with these buffers, which training updates."""
        return self

    def learns_statistics(self, task: Task) -> bool:
        """Whether training changes its buffers. Refuses an unusable module."""
        return False

    def widths(self, task: Task) -> list[int]:
        """Width of the input, of every hidden layer and of the output."""
        return [task.num_features, *[self.hidden] * (self.layers - 1), task.num_classes]

    @abstractmethod
    def shapes(self, task: Task) -> Shapes:
        """Name and shape of every weight ([in, out] or [out]), in the order in which they are drawn."""

    @abstractmethod
    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """The output layer's input, [N, H], with weights [K, …]; None without hidden layers."""

    @abstractmethod
    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """The output layer: class scores (logits) [N, C] from the result of `embed`."""

    def to_torch(self, params: Params, task: Task) -> nn.Module:
        """The network with one client's weights as a plain module: (x, edge_index, edge_weight) → logits [N, C]."""
        raise NoPlainModule(f"{type(self).__name__} has no plain module: it does not implement to_torch")

    def layer_names(self, task: Task) -> list[list[str]]:
        """The weights of each layer, from the input to the output: grouped by the name before the last dot."""
        return [list(layer) for _, layer in groupby(self.shapes(task), key=lambda name: name.rsplit(".", 1)[0])]

    def output_names(self, task: Task) -> tuple[str, ...]:
        """The weights of the output layer."""
        shapes = list(self.shapes(task))
        layer = shapes[-1].rsplit(".", 1)[0]
        return tuple(name for name in shapes if name.startswith(f"{layer}."))

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """Initial weights of one client."""
        last = self.output_names(task)
        return {
            name: init.draw_weight(self.init, *shape, generator, output=name in last)
            if len(shape) == 2
            else init.draw_bias(self.init, shape[0], generator, output=name in last)
            for name, shape in self.shapes(task).items()
        }

    def init_params(self, task: Task, batch: GraphBatch, seed: int, *, common: bool = True) -> Params:
        """Initial weights [K, …]: the same for every client, or (``common=False``) drawn per client."""
        if common:
            drawn = self.draw(task, torch_generator(seed, "backbone"))
            stacked = {name: value.contiguous() for name, value in expand(drawn, batch.num_clients).items()}
        else:
            draws = [self.draw(task, torch_generator(seed, "backbone", k)) for k in batch.client_ids]
            stacked = {name: torch.stack([drawn[name] for drawn in draws]) for name in draws[0]}
        return {name: value.to(batch.dtype) for name, value in stacked.items()}

    def train_outputs(self, params: Params, batch: GraphBatch, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Representation [N, H] (the logits without a hidden layer) and logits [N, C] of a training step."""
        drop = Dropout(self.dropout, batch, seed, epoch)
        hidden = self.embed(params, batch, drop)
        logits = self.classify(params, hidden, batch, drop)
        return logits if hidden is None else hidden, logits

    def logits(self, params: Params, batch: GraphBatch) -> Tensor:
        """Logits for evaluation. Cached for unchanged weights."""

        def answer() -> Tensor:
            return self.classify(params, self.embed(params, batch, _no_dropout), batch, _no_dropout)

        return batch.answers.cached(self, params, answer)

    def representation(self, params: Params, batch: GraphBatch) -> Tensor:
        """The representation, as in `train_outputs` but without dropout and gradients: [N, H]."""
        with torch.no_grad():
            hidden = self.embed(params, batch, _no_dropout)
            return self.logits(params, batch) if hidden is None else hidden


@dataclass(frozen=True)
class LayeredBackbone(Backbone):
    """Layers of one kind, one after the other, with an activation and dropout between them."""

    layer_name: ClassVar[str] = "conv"
    """Layers are named this plus their number."""

    @abstractmethod
    def layer(self, *, last: bool = False) -> Layer:
        """A hidden layer, or the last one."""

    def inner_layer(self) -> Layer | None:
        """A hidden layer."""
        return self.layer()

    @property
    def feature_weights(self) -> tuple[str, ...]:
        """That of the first layer."""
        return (f"{self.layer_name}1.weight",)

    def table(self, task: Task) -> Table:
        """All layers and their widths."""
        return {
            f"{self.layer_name}{number}": (self.layer(last=number == self.layers), *ends)
            for number, ends in enumerate(pairwise(self.widths(task)), start=1)
        }

    def shapes(self, task: Task) -> Shapes:
        """``<layer><l>.<weight>`` for every layer."""
        return shapes_of(self.table(task))

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        """Each layer draws its own."""
        return draw_all(self.table(task), generator, self.init)

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """The last hidden layer [N, H]."""
        layer, hidden = self.layer(), None
        for number in range(1, self.layers):
            hidden = layer.activate(self._apply(layer, number, params, hidden, batch, drop))
        return hidden

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """Logits [N, C]."""
        return self._apply(self.layer(last=True), self.layers, params, hidden, batch, drop)

    def to_torch(self, params: Params, task: Task) -> nn.Module:
        """The layers, each as it says."""
        names = [f"{self.layer_name}{number}" for number in range(1, self.layers + 1)]
        layers = [self.layer(last=name == names[-1]).to_torch(part_of(params, name)) for name in names]
        return Stack(layers, self.layer().activate)

    def _apply(
        self, layer: Layer, number: int, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop
    ) -> Tensor:
        weights = part_of(params, f"{self.layer_name}{number}")
        return layer(weights, None if hidden is None else drop(hidden), batch, batch.rows)


class Dropout:
    """Inverted dropout from named streams: each client's draw is its own, alone or stacked."""

    def __init__(self, rate: float, batch: GraphBatch, seed: int, epoch: int, rows: NodeRows | None = None) -> None:
        self._rate, self._client_ids, self._calls = rate, batch.client_ids, 0
        self._sizes = (rows or batch.rows).sizes
        self._seed, self._epoch = seed, epoch

    def __call__(self, hidden: Tensor) -> Tensor:
        """Drops entries of ``hidden`` [N, H]: of all nodes of the batch, or of the ``rows`` that were given."""
        if self._rate == 0:
            return hidden
        self._calls += 1
        masks = [
            torch.rand(
                size,
                hidden.shape[1],
                generator=torch_generator(self._seed, "dropout", k, self._epoch, self._calls),
            )
            for k, size in zip(self._client_ids, self._sizes, strict=True)
        ]
        keep = (torch.cat(masks) >= self._rate).to(hidden.device)  # drawn on the CPU, whatever the device
        return hidden * keep / (1 - self._rate)

    def module_seed(self, client_id: int) -> int:
        """The seed for a user module's own draws in this step."""
        return stream_key(self._seed, "module", client_id, self._epoch) % 2**63


def _no_dropout(hidden: Tensor) -> Tensor:
    return hidden


Drop = Callable[[Tensor], Tensor]
