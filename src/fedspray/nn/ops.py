"""Operations on several clients at once: the only code that knows how they are stacked.

Weights have a leading client axis [K, in, out]; node tensors are ragged, ordered by client, without
padding. Each client's rows meet that client's weights only, so one backward pass gives every client
exactly its own gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import NodeRows, SparseMatrix


def feature_linear(rows: NodeRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W + b for the feature rows of every client.

    Shapes: weight [K, F, H], bias [K, H] → [n, H].
    """
    if isinstance(rows.features, SparseMatrix):
        return _SparseProduct.apply(rows.features, weight.flatten(0, 1), bias, rows.ptr)  # type: ignore[no-untyped-call, no-any-return]
    return linear(rows.features, rows.ptr, weight, bias)


def transform(rows: NodeRows, hidden: Tensor | None, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """H W + b for a hidden layer, or X W + b on the features where ``hidden`` is None."""
    if hidden is None:
        return feature_linear(rows, weight, bias)
    return linear(hidden, rows.ptr, weight, bias)


def linear(inputs: Tensor, ptr: Sequence[int], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """H W + b, each client's rows with its own weights.

    Shapes: inputs [n, I], weight [K, I, O], bias [K, O] → [n, O].
    """
    return _GroupedLinear.apply(inputs, tuple(ptr), weight, bias)  # type: ignore[no-untyped-call, no-any-return]


def propagate(adjacency: SparseMatrix, inputs: Tensor, ptr: Sequence[int], bias: Tensor | None = None) -> Tensor:
    """A H + b: one hop of message passing inside every client.

    Shapes: adjacency [N, N], inputs [N, H], bias [K, H] → [N, H].
    """
    return _SparseProduct.apply(adjacency, inputs, bias, tuple(ptr))  # type: ignore[no-untyped-call, no-any-return]


def per_row(values: Tensor, rows: NodeRows) -> Tensor:
    """Repeats each client's value for all its rows: [K, …] → [n, …]."""
    return values[rows.client_of]


def client_sum(values: Tensor, rows: NodeRows) -> Tensor:
    """Sums rows by client: [n, …] → [K, …]."""
    if len(rows.sizes) == 1:
        return values.sum(dim=0, keepdim=True)
    return values.new_zeros(len(rows.sizes), *values.shape[1:]).index_add(0, rows.client_of, values)


def client_mean(values: Tensor, rows: NodeRows) -> Tensor:
    """Averages rows by client: [n] → [K]; a client without rows gets 0."""
    return client_sum(values, rows) / rows.counts


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over the client axis: values [K, …], weights [K] → […]."""
    shares = (weights / weights.sum()).to(values.dtype)
    mean: Tensor = torch.tensordot(shares, values, dims=1)
    return mean


class _SparseProduct(torch.autograd.Function):
    """S H + b with a constant sparse S; the gradient of H is Sᵀ times the incoming one."""

    @staticmethod
    def forward(ctx: Any, sparse: SparseMatrix, dense: Tensor, bias: Tensor | None, ptr: tuple[int, ...]) -> Tensor:
        ctx.sparse, ctx.ptr, ctx.has_bias = sparse, ptr, bias is not None
        result = _product(sparse.matrix, dense)
        if bias is not None:
            for k, (start, stop) in enumerate(pairwise(ptr)):
                result[start:stop] += bias[k]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        dense = _product(ctx.sparse.transpose, grad) if ctx.needs_input_grad[1] else None
        return None, dense, _bias_grad(grad, ctx.ptr) if ctx.has_bias else None, None


class _GroupedLinear(torch.autograd.Function):
    """One matrix product for each client, without a Python-side graph node for each."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ptr: tuple[int, ...], weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.ptr, ctx.has_bias = ptr, bias is not None
        result = inputs.new_empty(inputs.shape[0], weight.shape[2])
        for k, (start, stop) in enumerate(pairwise(ptr)):
            if bias is None:
                torch.mm(inputs[start:stop], weight[k], out=result[start:stop])
            else:
                torch.addmm(bias[k], inputs[start:stop], weight[k], out=result[start:stop])
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        slices = list(enumerate(pairwise(ctx.ptr)))
        input_grad = weight_grad = None
        if ctx.needs_input_grad[0]:
            input_grad = torch.empty_like(inputs)
            for k, (start, stop) in slices:
                torch.mm(grad[start:stop], weight[k].T, out=input_grad[start:stop])
        if ctx.needs_input_grad[2]:
            weight_grad = torch.empty_like(weight)
            for k, (start, stop) in slices:
                torch.mm(inputs[start:stop].T, grad[start:stop], out=weight_grad[k])
        return input_grad, None, weight_grad, _bias_grad(grad, ctx.ptr) if ctx.has_bias else None


def _product(sparse: Tensor, dense: Tensor) -> Tensor:
    result = dense.new_empty(sparse.shape[0], dense.shape[1])
    torch.addmm(result, sparse, dense, beta=0, out=result)
    return result


def _bias_grad(grad: Tensor, ptr: tuple[int, ...]) -> Tensor:
    return torch.stack([grad[a:b].sum(dim=0) for a, b in pairwise(ptr)])


def squared_distance(params: Mapping[str, Tensor], centre: Mapping[str, Tensor]) -> Tensor:
    """‖a - b‖² over all weights of each client: [K, …] and [K, …] or […] → [K].

    Gaps below a millionth count as 0. They are rounding, and Adam would make steps of full size of them.
    """
    gaps = [functional.hardshrink(value - centre[name], 1e-6).flatten(1) for name, value in params.items()]
    return torch.stack([gap.square().sum(dim=1) for gap in gaps]).sum(dim=0)
