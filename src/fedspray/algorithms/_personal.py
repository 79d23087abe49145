"""What a server keeps for each client: rows in the order of client ids, long enough for all that it has heard of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspray.nn.tree import Params


def grow(rows: Tensor, client_ids: Sequence[int], fresh: Tensor) -> Tensor:
    """``rows`` [M, …] with one for each of these clients; those that are new are ``fresh`` […]."""
    missing = max(client_ids, default=-1) + 1 - len(rows)
    return rows if missing <= 0 else torch.cat([rows, fresh.expand(missing, *rows.shape[1:])])


@dataclass(frozen=True)
class PersonalModels:
    """One model for each client that was seen so far."""

    start: Params
    """The initial model, without a client axis: what a client gets that was not seen yet."""
    gnn: Params
    """[M, …]: row k is client k's model; M - 1 is the highest id seen so far."""

    def of(self, client_ids: Sequence[int]) -> Params:
        """The models of these clients, [K, …]."""
        return {name: value[list(client_ids)] for name, value in self._grown(client_ids).items()}

    def mixed(self, sent: Params, shares: Tensor, client_ids: Sequence[int]) -> Params:
        """`gnn` after a round: client k gets the sum of the models sent, [K, …], times row k of ``shares`` [K, K].

        Clients that did not take part keep theirs.
        """
        rows = torch.tensor(client_ids)
        return {
            name: value.index_copy(0, rows, torch.tensordot(shares, sent[name], dims=1))
            for name, value in self._grown(client_ids).items()
        }

    def _grown(self, client_ids: Sequence[int]) -> Params:
        return {name: grow(value, client_ids, self.start[name]) for name, value in self.gnn.items()}
