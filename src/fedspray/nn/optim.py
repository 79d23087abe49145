"""Adam (and plain SGD) with explicit state, over weights that have a leading client axis.

The steps themselves are torch's own fused ones; what is added is that the moments go in and come
out as a tree, so that a client that restarts loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam

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
    """First moments of feature weights [K, F, H] of which only the rows in use are trained: [U, H]."""
    used_second: Params = per_column()
    """Their second moments."""

    @classmethod
    def zeros(cls, params: Params, num_clients: int, used: Mapping[str, Tensor] | None = None) -> AdamState:
        """The state before the first step.

        Args:
            params: the weights, [K, …].
            num_clients: K.
            used: for feature weights [K, F, H], the rows in use (`NodeRows.columns`). Only these will be trained: the
                others get no gradient, so Adam would leave them as they are.
        """
        used = used or {}
        whole = {name: p for name, p in params.items() if name not in used}
        rows = {name: params[name].new_empty(len(columns), params[name].shape[2]) for name, columns in used.items()}
        return cls(_zeros(whole), _zeros(whole), torch.zeros(num_clients), _zeros(rows), _zeros(rows))


class Adam:
    """One round's worth of Adam steps on copies of the given weights: nothing passed in is changed.

    >>> optimizer = Adam(params, state, lr=0.003)                          # doctest: +SKIP
    >>> for _ in range(local_epochs):
    ...     optimizer.step(loss(optimizer.params))
    >>> params, state = optimizer.result()

    Args:
        params: the weights to start from.
        state: the memory to start from. Feature weights in its `used_first` are trained in their rows in use alone, as
            `params[name]` [U, H]; this is exact only without weight decay.
        lr: step size.
        weight_decay: L2 penalty.
        eps: Adam's ε.
        columns: the rows in use.
    """

    def __init__(
        self,
        params: Params,
        state: AdamState,
        *,
        lr: float,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        columns: Tensor | None = None,
    ) -> None:
        self._start, self._columns, self._num_clients = params, columns, len(state.step)
        self._used = frozenset(state.used_first)
        self.params = {
            name: (_copy(p) if columns is None or name not in self._used else ops.used_rows(p.detach(), columns))
            for name, p in params.items()
        }
        for p in self.params.values():
            p.requires_grad_()
        first, second = {**state.first, **state.used_first}, {**state.second, **state.used_second}
        self._first = {name: first[name].clone() for name in params}
        self._second = {name: second[name].clone() for name in params}
        self._steps = {name: state.step.max().clone() for name in params}
        self._lr, self._weight_decay, self._eps = lr, weight_decay, eps

    def step(self, losses: Tensor, *others: Adam) -> None:
        """Takes one step down the losses [K] of the clients (their weights are disjoint, so they add up).

        Args:
            losses: one number for each client.
            others: further optimizers, of other weights, that step down the same losses.
        """
        optimizers = (self, *others)
        for optimizer in optimizers:
            for p in optimizer.params.values():
                p.grad = None
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer._follow_gradients()

    def follow(self, gradients: Params) -> None:
        """Takes one step down gradients that somebody else computed."""
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
        """The weights and the memory after the steps."""
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
        return {name: self._whole(name, p.detach()) for name, p in self.params.items()}, state

    def _whole(self, name: str, value: Tensor) -> Tensor:
        if name not in self._used or self._columns is None:
            return value
        return ops.with_used_rows(self._start[name], self._columns, value)


class SGD:
    """One round's worth of plain gradient steps on copies of the given weights. It has no memory, so no state.

    >>> optimizer = SGD(params, lr=0.1)                                    # doctest: +SKIP
    >>> for _ in range(local_epochs):
    ...     optimizer.step(loss(optimizer.params))
    >>> params = optimizer.result()
    """

    def __init__(self, params: Params, *, lr: float, weight_decay: float = 0.0) -> None:
        self.params = {name: _copy(p).requires_grad_() for name, p in params.items()}
        self._optimizer = torch.optim.SGD(self.params.values(), lr=lr, weight_decay=weight_decay)

    def step(self, losses: Tensor) -> None:
        """Takes one step down the losses [K] of the clients."""
        self._optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def result(self) -> Params:
        """The weights after the steps."""
        return {name: p.detach() for name, p in self.params.items()}


def _copy(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in params.items()}
