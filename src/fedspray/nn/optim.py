"""Adam (and plain SGD) with explicit state, over weights that have a leading client axis.

The steps themselves are torch's own fused ones; what is added is that the moments go in and come
out as a tree, so that a client that restarts loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspray.nn.tree import Params, per_client


@dataclass(frozen=True)
class AdamState:
    """Adam's memory."""

    first: Params
    """First moments, shaped as the weights."""
    second: Params
    """Second moments, shaped as the weights."""
    step: Tensor = per_client()
    """[K], float32: steps taken. All clients of one batch have taken equally many."""

    @classmethod
    def zeros(cls, params: Params, num_clients: int) -> AdamState:
        """The state before the first step."""
        return cls(
            step=torch.zeros(num_clients),
            first={name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in params.items()},
            second={name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in params.items()},
        )


class Adam:
    """One round's worth of Adam steps on copies of the given weights: nothing passed in is changed.

    >>> optimizer = Adam(params, state, lr=0.003)                          # doctest: +SKIP
    >>> for _ in range(local_epochs):
    ...     optimizer.step(loss(optimizer.params))
    >>> params, state = optimizer.result()
    """

    def __init__(
        self, params: Params, state: AdamState, *, lr: float, weight_decay: float = 0.0, eps: float = 1e-8
    ) -> None:
        self.params = {
            name: p.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for name, p in params.items()
        }
        self._num_clients = len(state.step)
        self._optimizer = torch.optim.Adam(self.params.values(), lr=lr, weight_decay=weight_decay, eps=eps, fused=True)
        for name, p in self.params.items():
            self._optimizer.state[p] = {
                "step": state.step.max().clone(),
                "exp_avg": state.first[name].clone(),
                "exp_avg_sq": state.second[name].clone(),
            }

    def step(self, losses: Tensor, *others: Adam) -> None:
        """Takes one step down the losses [K] of the clients (their weights are disjoint, so they add up).

        Args:
            losses: one number for each client.
            others: further optimizers, of other weights, that step down the same losses.
        """
        optimizers = (self, *others)
        for optimizer in optimizers:
            optimizer._optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer._optimizer.step()

    def result(self) -> tuple[Params, AdamState]:
        """The weights and the memory after the steps."""
        memory = {name: self._optimizer.state[p] for name, p in self.params.items()}
        steps = next(iter(memory.values()))["step"]
        state = AdamState(
            step=steps.expand(self._num_clients).clone(),
            first={name: entry["exp_avg"] for name, entry in memory.items()},
            second={name: entry["exp_avg_sq"] for name, entry in memory.items()},
        )
        return {name: p.detach() for name, p in self.params.items()}, state


class SGD:
    """One round's worth of plain gradient steps on copies of the given weights. It has no memory, so no state.

    >>> optimizer = SGD(params, lr=0.1)                                    # doctest: +SKIP
    >>> for _ in range(local_epochs):
    ...     optimizer.step(loss(optimizer.params))
    >>> params = optimizer.result()
    """

    def __init__(self, params: Params, *, lr: float, weight_decay: float = 0.0) -> None:
        self.params = {
            name: p.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for name, p in params.items()
        }
        self._optimizer = torch.optim.SGD(self.params.values(), lr=lr, weight_decay=weight_decay)

    def step(self, losses: Tensor) -> None:
        """Takes one step down the losses [K] of the clients."""
        self._optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def result(self) -> Params:
        """The weights after the steps."""
        return {name: p.detach() for name, p in self.params.items()}
