"""The floor of a round: its sparse and dense products and optimizer passes, with nothing around them.

The same matrices, shapes and counts as in a real round, but no losses, activations, biases, autograd, messages,
evaluation or copies; every product writes into a buffer that is already there. What a real round takes beyond
this is overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from fedspray import Algorithm, Backbone, FedSpray, GraphBatch, InputError, Layer, LayeredBackbone, Task
from fedspray.data.rows import NodeRows, SparseMatrix
from fedspray.nn.layers import Linear

Step = Callable[[], object]
Network = tuple[list[Step], list[Step], list[tuple[int, ...]]]
"""Forward steps, backward steps, shapes of the weights."""


def floor_of(algorithm: Algorithm, batch: GraphBatch) -> Step:  # type: ignore[type-arg]
    """A function that does the bare work of one round of FedSpray, FedAvg or Local once.

    Args:
        algorithm: with a backbone whose layers only multiply and pass messages.
        batch: all clients.
    """
    forward, backward, shapes = _network(algorithm.backbone, batch)
    adam = [_adam_pass(shape) for shape in shapes]
    epoch = [*forward, *backward, *adam]
    steps = [*epoch * algorithm.local_epochs, *forward]  # the last one: predictions of the trained model
    if isinstance(algorithm, FedSpray):
        steps += _encoder_steps(batch, algorithm.proxy_dim, algorithm.local_epochs)

    def run() -> None:
        for step in steps:
            step()

    return run


def _network(backbone: Backbone, batch: GraphBatch) -> Network:
    """For every layer its product with the weights and its hop, from the features to the output and back."""
    forward: list[Step] = []
    backward: list[Step] = []
    shapes: list[tuple[int, ...]] = []
    for layer, fan_in, fan_out in _layers(backbone, batch):
        if layer.has_weights:
            columns = layer.shapes(fan_in, fan_out)["weight"][1]
            first = not shapes
            product = (
                _Features(batch.rows, columns) if first else _Grouped(batch.rows, batch.num_clients, fan_in, columns)
            )
            forward.append(product.forward)
            backward.insert(0, product.weight_grad)
            if isinstance(product, _Grouped):
                backward.insert(0, product.input_grad)
            shapes.append(product.shape)
        adjacency = layer.adjacency(batch)
        if adjacency is not None:
            hop = _Product(adjacency, torch.rand(adjacency.matrix.shape[0], fan_out))
            forward.append(hop.forward)
            backward.insert(0, hop.backward)
    return forward, backward, shapes


def _layers(backbone: Backbone, batch: GraphBatch) -> list[tuple[Layer, int, int]]:
    """The layers with their widths; SGC is a linear map and hops."""
    task, inner = Task(batch.num_features, batch.num_classes), backbone.inner_layer()
    if inner is None or (inner.adjacency(batch) is None and not isinstance(inner, Linear)):
        name = type(backbone).__name__.lower()
        raise InputError(f"backbone is {name}, but a floor exists only for layers that are matrix products")
    if isinstance(backbone, LayeredBackbone):
        return list(backbone.table(task).values())
    width = task.num_classes
    return [(Linear(), task.num_features, width), *[(inner, width, width)] * backbone.layers]


def _encoder_steps(batch: GraphBatch, width: int, epochs: int) -> list[Step]:
    """Soft targets for all nodes once, then Phase 2 on the training nodes."""
    everyone = _Features(batch.rows, width)
    head = _Grouped(batch.rows, batch.num_clients, width, batch.num_classes)
    spread = _Grouped(batch.rows, batch.num_clients, batch.num_classes, width)
    embedding = _Features(batch.train_rows, width)
    heads = [_Grouped(batch.train_rows, batch.num_clients, width, batch.num_classes) for _ in range(2)]
    targets = [everyone.forward, head.forward, spread.forward, head.forward]
    epoch: list[Step] = [embedding.forward]
    for one in heads:
        epoch += [one.forward, one.input_grad, one.weight_grad]
    epoch += [embedding.weight_grad, _adam_pass(embedding.shape), _adam_pass((len(batch.train), width))]
    return [*targets, *epoch * epochs]


class _Features:
    """X W, and the gradient of W."""

    def __init__(self, rows: NodeRows, width: int) -> None:
        if isinstance(rows.features, SparseMatrix):
            self.shape: tuple[int, ...] = (rows.features.matrix.shape[1], width)
            product = _Product(rows.features, torch.rand(self.shape))
            self.forward, self.weight_grad = product.forward, product.backward
        else:
            dense = _Grouped(rows, len(rows.sizes), rows.features.shape[1], width, rows.features)
            self.shape = dense.shape
            self.forward, self.weight_grad = dense.forward, dense.weight_grad


class _Product:
    """S H with a constant sparse S, and the gradient of H."""

    def __init__(self, sparse: SparseMatrix, inputs: Tensor) -> None:
        self._sparse, self._inputs = sparse, inputs
        self._result = torch.rand(sparse.matrix.shape[0], inputs.shape[1])
        self._grad = torch.empty(inputs.shape)

    def forward(self) -> None:
        torch.addmm(self._result, self._sparse.matrix, self._inputs, beta=0, out=self._result)

    def backward(self) -> None:
        torch.addmm(self._grad, self._sparse.transpose, self._result, beta=0, out=self._grad)


class _Grouped:
    """H W with each client's own W, and both gradients."""

    def __init__(
        self, rows: NodeRows, num_clients: int, width_in: int, width_out: int, inputs: Tensor | None = None
    ) -> None:
        self.shape = (num_clients, width_in, width_out)
        nodes = rows.ptr[-1]
        inputs = torch.rand(nodes, width_in) if inputs is None else inputs
        weight, result = torch.rand(self.shape), torch.rand(nodes, width_out)
        self._input_grad, self._weight_grad = torch.empty(nodes, width_in), torch.empty(self.shape)
        self._parts = [
            (inputs[a:b], weight[k], result[a:b], self._input_grad[a:b], self._weight_grad[k])
            for k, (a, b) in enumerate(pairwise(rows.ptr))
        ]

    def forward(self) -> None:
        for inputs, weight, result, _, _ in self._parts:
            torch.mm(inputs, weight, out=result)

    def input_grad(self) -> None:
        for _, weight, result, grad, _ in self._parts:
            torch.mm(result, weight.T, out=grad)

    def weight_grad(self) -> None:
        for inputs, _, result, _, grad in self._parts:
            torch.mm(inputs.T, result, out=grad)


def _adam_pass(shape: tuple[int, ...]) -> Step:
    weight = torch.zeros(shape, requires_grad=True)
    weight.grad = torch.rand(shape)
    return torch.optim.Adam([weight], lr=0.003, fused=True).step
