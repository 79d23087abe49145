"""Operations on several clients at once: the only code that knows how they are stacked.

Weights have a leading client axis [K, in, out]; node tensors are ragged, ordered by client, without
padding. Each client's rows meet that client's weights only, so one backward pass gives every client
exactly its own gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import GraphBatch
from fedspray.data.rows import NodeRows, SparseMatrix

MANY = 32
"""From this many clients on, equal-sized ones are multiplied in one call."""


def feature_linear(rows: NodeRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W + b for the feature rows of every client.

    Shapes: weight [K, F, H] or, for sparse features, what `used_rows` gives; bias [K, H] → [n, H].
    """
    if isinstance(rows.features, Tensor):
        return linear(rows.features, rows.ptr, weight, bias)
    assert rows.columns is not None  # sparse features always have them
    flat = used_rows(weight, rows.columns) if weight.dim() == 3 else weight
    return _SparseProduct.apply(rows.features, flat, bias, rows.ptr)  # type: ignore[no-untyped-call, no-any-return]


def used_rows(weight: Tensor, columns: Tensor) -> Tensor:
    """The rows of feature weights that meet a feature column in use: [K, F, H] → [U, H]."""
    if weight.stride(0) == 0 and not weight.requires_grad:  # the same for all clients: do not write them out first
        return weight[0].index_select(0, columns % weight.shape[1])
    return weight.flatten(0, 1).index_select(0, columns)


def with_used_rows(weight: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """A copy of ``weight`` with other rows in use: the inverse of `used_rows`."""
    changed = weight.detach().clone(memory_format=torch.contiguous_format)
    changed.flatten(0, 1).index_copy_(0, columns, rows.detach())
    return changed


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


def propagate_beside(adjacency: SparseMatrix, both: Tensor, ptr: Sequence[int], bias: Tensor) -> Tensor:
    """A L + R + b, where L and R are the left and right halves of the columns of ``both``.

    Shapes: adjacency [N, N], both [N, 2H], bias [K, H] → [N, H].
    """
    return _SparseProductBeside.apply(adjacency, both, bias, tuple(ptr))  # type: ignore[no-untyped-call, no-any-return]


def probabilities(logits: Tensor) -> Tensor:
    """softmax, classes first: [n, C] → [C, n]. Over a short last axis torch's softmax is several times slower."""
    powers = _shifted(logits).exp_()
    return powers.div_(powers.sum(dim=0))


def soft_cross_entropy(logits: Tensor, targets: Tensor, rows: NodeRows) -> Tensor:
    """-Σ_i Σ_c t_ci log softmax(z_i)_c for every client: logits [n, C], targets [C, n] → [K].

    ``targets`` carry their weights: one-hot columns divided by their number give the mean cross-entropy,
    probabilities give the distance of a distillation (up to their constant entropy), and sums of both give both.
    """
    return _SoftCrossEntropy.apply(logits, targets, rows)  # type: ignore[no-untyped-call, no-any-return]


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


def class_means(values: Tensor, batch: GraphBatch) -> Tensor:
    """Means of the training nodes' values by client and class: [n, H] → [K, C, H]; 0 where there are none."""
    counts = batch.train_class_counts
    slots = batch.train_rows.client_of * batch.num_classes + batch.train_labels
    sums = values.new_zeros(counts.numel(), values.shape[1]).index_add(0, slots, values)
    return sums.view(*counts.shape, -1) / counts.clamp(min=1)[:, :, None]


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over the client axis: values [K, …], weights [K] → […]; values [K, C, …], weights [K, C] → [C, …].

    It is 0 where all weights are 0.
    """
    total = weights.sum(dim=0)
    if weights.dim() > 1:
        sums = torch.einsum("kc,kc...->c...", weights, values)
        return sums / total.clamp(min=1e-12).view(-1, *[1] * (sums.dim() - 1))
    if total == 0:
        return values.new_zeros(values.shape[1:])
    mean: Tensor = torch.tensordot((weights / total).to(values.dtype), values, dims=1)
    return mean


class _SparseProduct(torch.autograd.Function):
    """S H + b with a constant sparse S; the gradient of H is Sᵀ times the incoming one."""

    @staticmethod
    def forward(ctx: Any, sparse: SparseMatrix, dense: Tensor, bias: Tensor | None, ptr: tuple[int, ...]) -> Tensor:
        ctx.sparse, ctx.ptr, ctx.has_bias = sparse, ptr, bias is not None
        result = _product(sparse.matrix, dense)
        return result if bias is None else _add_bias(result, bias, ptr, result)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        dense = _product(ctx.sparse.transpose, grad) if ctx.needs_input_grad[1] else None
        return None, dense, _bias_grad(grad, ctx.ptr) if ctx.has_bias else None, None


class _SparseProductBeside(torch.autograd.Function):
    """Halves are read and written in place, without copies of them."""

    @staticmethod
    def forward(ctx: Any, sparse: SparseMatrix, both: Tensor, bias: Tensor, ptr: tuple[int, ...]) -> Tensor:
        ctx.sparse, ctx.ptr = sparse, ptr
        left, right = both.chunk(2, dim=1)
        result = _add_bias(right, bias, ptr, both.new_empty(right.shape))
        return torch.addmm(result, sparse.matrix, left, out=result)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        both = grad.new_empty(grad.shape[0], 2 * grad.shape[1])
        left, right = both.chunk(2, dim=1)
        torch.addmm(left, ctx.sparse.transpose, grad.contiguous(), beta=0, out=left)
        right.copy_(grad)
        return None, both, _bias_grad(grad, ctx.ptr), None


class _SoftCrossEntropy(torch.autograd.Function):
    """One softmax for the loss and its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, rows: NodeRows) -> Tensor:
        logs = _shifted(logits)
        logs -= logs.exp().sum(dim=0).log()
        ctx.save_for_backward(logs, targets)
        ctx.rows = rows
        return client_sum((targets * logs).sum(dim=0).neg(), rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logs, targets = ctx.saved_tensors
        result = logs.exp().mul_(targets.sum(dim=0)).sub_(targets).mul_(per_row(grad, ctx.rows))
        return result.T.contiguous(), None, None


class _GroupedLinear(torch.autograd.Function):
    """One matrix product for each client, without a Python-side graph node for each."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ptr: tuple[int, ...], weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.ptr, ctx.has_bias = ptr, bias is not None
        result = inputs.new_empty(inputs.shape[0], weight.shape[2])
        if _equal_sizes(ptr):
            torch.bmm(_by_client(inputs, ptr), weight, out=_by_client(result, ptr))
            return result if bias is None else _add_bias(result, bias, ptr, result)
        for k, (start, stop) in enumerate(pairwise(ptr)):
            if bias is None:
                torch.mm(inputs[start:stop], weight[k], out=result[start:stop])
            else:
                torch.addmm(bias[k], inputs[start:stop], weight[k], out=result[start:stop])
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        equal, slices = _equal_sizes(ctx.ptr), list(enumerate(pairwise(ctx.ptr)))
        input_grad = weight_grad = None
        if ctx.needs_input_grad[0]:
            input_grad = inputs.new_empty(inputs.shape)
            if equal:
                torch.bmm(_by_client(grad, ctx.ptr), weight.mT, out=_by_client(input_grad, ctx.ptr))
            else:
                for k, (start, stop) in slices:
                    torch.mm(grad[start:stop], weight[k].T, out=input_grad[start:stop])
        if ctx.needs_input_grad[2]:
            weight_grad = weight.new_empty(weight.shape)
            if equal:
                torch.bmm(_by_client(inputs, ctx.ptr).mT, _by_client(grad, ctx.ptr), out=weight_grad)
            else:
                for k, (start, stop) in slices:
                    torch.mm(inputs[start:stop].T, grad[start:stop], out=weight_grad[k])
        return input_grad, None, weight_grad, _bias_grad(grad, ctx.ptr) if ctx.has_bias else None


def _shifted(logits: Tensor) -> Tensor:
    """Logits with classes first and their largest at 0: [n, C] → [C, n].

    Softmax is made from this by elementwise steps. torch's own over a first axis rounds a node's values by its place
    among the others, and a client alone would not get the bits that it gets in a block.
    """
    by_class = logits.detach().T.clone(memory_format=torch.contiguous_format)  # one node's are contiguous already
    return by_class.sub_(by_class.amax(dim=0))


def _product(sparse: Tensor, dense: Tensor) -> Tensor:
    result = dense.new_empty(sparse.shape[0], dense.shape[1])
    torch.addmm(result, sparse, dense, beta=0, out=result)
    return result


@lru_cache(maxsize=256)
def _equal_sizes(ptr: tuple[int, ...]) -> bool:
    """Whether many clients have equally many rows, so that one batched call is to serve all of them.

    Few clients get one call each, which gives the bits that each of them gets alone.
    """
    return len(ptr) > MANY and len({b - a for a, b in pairwise(ptr)}) == 1 and ptr[-1] > 0


def _by_client(values: Tensor, ptr: tuple[int, ...]) -> Tensor:
    """Rows of equal-sized clients with an axis for clients: [n, H] → [K, n/K, H], the same storage."""
    return values.view(len(ptr) - 1, -1, values.shape[1])


def _add_bias(values: Tensor, bias: Tensor, ptr: tuple[int, ...], result: Tensor) -> Tensor:
    """Writes H + b into ``result``, which may be H itself."""
    if _equal_sizes(ptr):
        torch.add(_by_client(values, ptr), bias[:, None], out=_by_client(result, ptr))
    else:
        for k, (start, stop) in enumerate(pairwise(ptr)):
            torch.add(values[start:stop], bias[k], out=result[start:stop])
    return result


def _bias_grad(grad: Tensor, ptr: tuple[int, ...]) -> Tensor:
    if _equal_sizes(ptr):
        return _by_client(grad, ptr).sum(dim=1)
    return torch.stack([grad[a:b].sum(dim=0) for a, b in pairwise(ptr)])


def squared_distance(params: Mapping[str, Tensor], centre: Mapping[str, Tensor]) -> Tensor:
    """‖a - b‖² over all weights of each client: [K, …] and [K, …] or […] → [K]."""
    return torch.stack([squared_gap(value, centre[name]) for name, value in params.items()]).sum(dim=0)


def gap(value: Tensor, centre: Tensor) -> Tensor:
    """a - b, for a loss or a gradient made of weights.

    Gaps below a millionth count as 0. They are rounding, and Adam would make steps of full size of them.
    """
    return functional.hardshrink(value - centre, 1e-6)


def squared_gap(value: Tensor, centre: Tensor) -> Tensor:
    """‖a - b‖² along all axes but the first, by `gap`."""
    return gap(value, centre).flatten(1).square().sum(dim=1)
