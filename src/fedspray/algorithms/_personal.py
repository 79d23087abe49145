"""What a server keeps per client: rows in the order of client ids, for all clients seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.nn.tree import Params


@dataclass(frozen=True)
class ServerState:
    """One model for each client that was seen so far."""

    start: Params
    """The initial model, without a client axis, for clients not seen yet."""
    gnn: Params
    """[M, …]: row k is client k's model; M - 1 is the highest id seen so far."""


def grow(rows: Tensor, client_ids: Sequence[int], fresh: Tensor) -> Tensor:
    """``rows`` [M, …], extended to these clients; new rows are ``fresh`` […]."""
    missing = max(client_ids, default=-1) + 1 - len(rows)
    return rows if missing <= 0 else torch.cat([rows, fresh.expand(missing, *rows.shape[1:])])


def own_models(models: Params, start: Params, client_ids: Sequence[int]) -> Params:
    """The models of these clients, [K, …], from ``models`` [M, …] by id; unknown clients get ``start`` […]."""
    return {name: grow(value, client_ids, start[name])[list(client_ids)] for name, value in models.items()}


def mixed_models(models: Params, start: Params, sent: Params, shares: Tensor, client_ids: Sequence[int]) -> Params:
    """``models`` [M, …] after a round: client k gets the sum of the models sent, [K, …], times row k of ``shares``.

    Clients that sat out keep theirs.
    """
    rows = torch.tensor(client_ids)
    return {
        name: grow(value, client_ids, start[name]).index_copy(0, rows, torch.tensordot(shares, sent[name], dims=1))
        for name, value in models.items()
    }


def cosines(vectors: Tensor) -> Tensor:
    """[K, K] of the rows [K, D]; two clients are never as alike as one is to itself, whatever rounding says."""
    direction = functional.normalize(vectors, dim=1)
    almost = 1 - torch.finfo(vectors.dtype).eps / 2
    return (direction @ direction.T).clamp(-1, almost).fill_diagonal_(1)


def shares_by(similarity: Tensor, num_train: Tensor, sharpness: float) -> Tensor:
    """[K, K]: row k is how much of each client's model goes into client k's: softmax of ``sharpness`` · similarity.

    Models of clients without training nodes count for nobody.
    """
    learned = num_train > 0
    if not learned.any():  # nobody has learned anything: each keeps what it has
        return torch.eye(len(similarity), dtype=similarity.dtype)
    return (sharpness * similarity).masked_fill(~learned, -torch.inf).softmax(dim=1)


def rounded(matrix: Tensor) -> list[list[float]]:
    """For a round's record."""
    return [[round(value, 4) for value in row] for row in matrix.tolist()]
