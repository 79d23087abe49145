"""Adam (and plain SGD) with explicit state, over weights that have a leading client axis.

The steps are torch's fused ones; the moments go in and come
out as a tree, so a client that restarts loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedspray.data.rows import NodeRows
from fedspray.nn import ops
from fedspray.nn.tree import Params, per_client, per_column


@dataclass(frozen=True, repr=False)
class AdamState:
    """Adam's memory."""

    first: Params
    """First moments, shaped as the weights."""
    second: Params
    """Second moments, shaped as the weights."""
    step: Tensor = per_client()
    """[K], float32: steps taken. All clients of one batch have taken equally many."""
    used_first: Params = per_column()
    """First moments of feature weights [K, F, H] where only rows in use are trained: [U, H]."""
    used_second: Params = per_column()
    """Their second moments."""

    @classmethod
    def zeros(
        cls, params: Params, num_clients: int, rows: NodeRows | None = None, on_features: Iterable[str] = ()
    ) -> AdamState:
        """The state before the first step.

        Args:
            params: the weights, [K, …].
            num_clients: K.
            rows: the clients' features.
            on_features: weights [K, F, H] that a loss uses only through `ops.feature_linear` of these features. Weights
                of an empty column get no gradient, so Adam neither trains nor stores them.
        """
        columns = None if rows is None else rows.columns
        used = () if columns is None else tuple(on_features)
        whole = {name: p for name, p in params.items() if name not in used}
        size = 0 if columns is None else len(columns)
        some = {name: params[name].new_empty(size, params[name].shape[2]) for name in used}
        device = next((p.device for p in params.values()), None)
        step = torch.zeros(num_clients, device=device)
        return cls(_zeros(whole), _zeros(whole), step, _zeros(some), _zeros(some))

    def forgotten(self) -> AdamState:
        """The state before the first step, for the same weights."""
        moments = (self.first, self.second, self.used_first, self.used_second)
        first, second, used_first, used_second = (_zeros(part) for part in moments)
        return AdamState(first, second, torch.zeros_like(self.step), used_first, used_second)


class Adam:
    """One round's worth of Adam steps on copies of the given weights: nothing passed in is changed.

    >>> optimizer = Adam(params, state, lr=0.003)                          # doctest: +SKIP
    >>> for _ in range(local_epochs):
    ...     optimizer.step(loss(optimizer.params))
    >>> params, state = optimizer.result()

    Args:
        params: the weights to start from.
        state: the moments to start from; they determine whether all weights are trained or only those in use.
        lr: step size.
        weight_decay: L2 penalty.
        eps: Adam's ε.
        rows: the clients' features, if the state was created with them.

    Use `params` in a network's products; for anything else about the weights, a loss calls the methods.
    """

    def __init__(
        self,
        params: Params,
        state: AdamState,
        *,
        lr: float,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        rows: NodeRows | None = None,
    ) -> None:
        self._start, self._num_clients = params, len(state.step)
        self._used = frozenset(state.used_first)
        self._columns, self._owners = _columns_in_use(rows) if self._used else (torch.empty(0), torch.empty(0))
        self.params = {
            name: (self._rows_in_use(name) if name in self._used else _copy(p)).requires_grad_()
            for name, p in params.items()
        }
        self._centres: Params = {}
        first, second = {**state.first, **state.used_first}, {**state.second, **state.used_second}
        self._first = {name: first[name].clone() for name in params}
        self._second = {name: second[name].clone() for name in params}
        self._steps = {name: state.step.max().clone() for name in params}
        self._lr, self._weight_decay, self._eps = lr, weight_decay, eps

    def step(self, losses: Tensor, *others: Adam) -> None:
        """Takes one step on the clients' losses [K] (their weights are disjoint, so losses add up).

        ``others`` are further optimizers, of other weights, that step down the same losses.
        """
        optimizers = (self, *others)
        for optimizer in optimizers:
            for p in optimizer.params.values():
                p.grad = None
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer._follow_gradients()

    def distance(self, centre: Params) -> Tensor:
        """‖θ - centre‖² over all weights of each client, [K]; the centre is [K, …]."""
        lengths = [
            self._distance_in_use(name, value, centre[name])
            if name in self._used
            else ops.squared_gap(value, centre[name])
            for name, value in self.params.items()
        ]
        return torch.stack(lengths).sum(dim=0)

    def _distance_in_use(self, name: str, value: Tensor, centre: Tensor) -> Tensor:
        if centre is not self._start[name]:
            raise ValueError(_ALL_WEIGHTS.format("a distance from other weights than those it starts from"))
        if name not in self._centres:
            self._centres[name] = self._rows_in_use(name)
        lengths = ops.squared_gap(value, self._centres[name])
        return lengths.new_zeros(self._num_clients).index_add(0, self._owners, lengths)

    def per_weight(self, values: Tensor) -> Params:
        """For each of `params`, the numbers of its clients along its first axis: [K] → [K], or more."""
        return {name: values.index_select(0, self._owners) if name in self._used else values for name in self.params}

    @property
    def all_params(self) -> Params:
        """`params`, each [K, …]: for a loss or a result that uses the weights directly."""
        if self._used:
            raise ValueError(_ALL_WEIGHTS.format("the weights themselves"))
        return self.params

    def follow(self, gradients: Params) -> None:
        """Takes one step with given gradients."""
        for name, gradient in gradients.items():
            self.params[name].grad = gradient
        self._follow_gradients()

    def _follow_gradients(self) -> None:
        """torch's own fused step; weights without a gradient stay as they are."""
        moving = {name: p.grad for name, p in self.params.items() if p.grad is not None}
        with torch.no_grad():
            adam(
                [self.params[name] for name in moving],
                list(moving.values()),
                [self._first[name] for name in moving],
                [self._second[name] for name in moving],
                [],
                [self._steps[name] for name in moving],
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=0.9,
                beta2=0.999,
                lr=self._lr,
                weight_decay=self._weight_decay,
                eps=self._eps,
            )

    def result(self) -> tuple[Params, AdamState]:
        """The weights and the moments after the steps."""
        steps = torch.stack(list(self._steps.values())).max()

        def part(moments: Params, *, used: bool) -> Params:
            return {name: value for name, value in moments.items() if (name in self._used) == used}

        state = AdamState(
            part(self._first, used=False),
            part(self._second, used=False),
            steps.expand(self._num_clients).clone(),
            part(self._first, used=True),
            part(self._second, used=True),
        )
        weights = {
            name: ops.with_used_rows(self._start[name], self._columns, p) if name in self._used else p.detach()
            for name, p in self.params.items()
        }
        return weights, state

    def _rows_in_use(self, name: str) -> Tensor:
        return ops.used_rows(self._start[name].detach(), self._columns)


def _columns_in_use(rows: NodeRows | None) -> tuple[Tensor, Tensor]:
    """Which rows of feature weights are trained, and the position of each one's client."""
    if rows is None or rows.columns is None:
        raise ValueError("the optimizer was created with sparse features: pass `rows`")
    return rows.columns, rows.client_of_column


_ALL_WEIGHTS = "the loss uses {}, so all of them must be trained: start from AdamState.zeros(params, num_clients)"
"""A programming error: weights of unused features would silently stay behind."""


class SGD:
    """One round's worth of plain gradient steps on copies of the given weights. It has no state.

    >>> optimizer = SGD(params, lr=0.1)                                    # doctest: +SKIP
    >>> for _ in range(local_epochs):
    ...     optimizer.step(loss(optimizer.params))
    >>> params = optimizer.result()
    """

    def __init__(self, params: Params, *, lr: float, weight_decay: float = 0.0) -> None:
        self.params = {name: _copy(p).requires_grad_() for name, p in params.items()}
        self._lr, self._weight_decay = lr, weight_decay

    def step(self, losses: Tensor) -> None:
        """Takes one step on the clients' losses [K]."""
        gradients = torch.autograd.grad(losses.sum(), list(self.params.values()), allow_unused=True)
        with torch.no_grad():
            for p, gradient in zip(self.params.values(), gradients, strict=True):
                if gradient is not None:
                    p.add_(gradient.add(p, alpha=self._weight_decay), alpha=-self._lr)

    def result(self) -> Params:
        """The weights after the steps."""
        return {name: p.detach() for name, p in self.params.items()}


def _copy(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in params.items()}
