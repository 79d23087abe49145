"""GCFL and GCFL+ with clients that send what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from play import build

from fedspray.algorithms._clusters import OUTCOMES, ServerState
from fedspray.algorithms.gcfl import GCFL
from fedspray.data.federation import Task
from fedspray.nn import tree
from fedspray.nn.tree import Message

EAGER: dict[str, Any] = {"warmup": 0, "pause": 0}
ALWAYS = {**EAGER, "threshold": "fixed", "eps1": 1e9, "eps2": 0.0, "min_gap": -2.0, "min_members": 2}
VARIANTS: dict[str, dict[str, Any]] = {"gcfl": {}, "gcfl-plus": {"sequence_length": 1}}
"""Both algorithms, and settings with which they can cut from the first round on."""


def linear(name: str = "gcfl", **settings: Any) -> tuple[GCFL, ServerState]:
    """An algorithm over a model of 10 weights, and its server."""
    algorithm = build(name, "sgc", **{**EAGER, **settings})
    return algorithm, tree.cast(algorithm.init_server(Task(4, 2), 0), torch.float64)


def uplink(
    algorithm: Any,
    server: ServerState,
    ids: Sequence[int],
    updates: torch.Tensor,
    weights: Sequence[float] | None = None,
    norms: Sequence[float] | None = None,
) -> Message:
    """What these clients send if their updates are the rows of ``updates``, [K, 10]."""
    message: Message = {"num_train": torch.tensor(weights or [1.0] * len(ids), dtype=torch.float64)}
    start = 0
    for name, value in algorithm.broadcast(server, ids).items():
        size = value[0].numel()
        message[name] = value + updates[:, start : start + size].reshape(value.shape)
        start += size
    if norms is not None:
        message["norm"] = torch.tensor(norms, dtype=torch.float64)
    return message


def step(algorithm: Any, server: ServerState, ids: Sequence[int], updates: torch.Tensor, **more: Any) -> ServerState:
    found: ServerState = algorithm.server_update(server, uplink(algorithm, server, ids, updates, **more), ids)
    return found


def directions(signs: Sequence[int], *, seed: int = 0, noise: float = 0.2) -> torch.Tensor:
    """Updates along one direction, or against it, with noise."""
    draw = torch.Generator().manual_seed(seed)
    base = torch.randn(10, generator=draw, dtype=torch.float64)
    scatter = torch.randn(len(signs), 10, generator=draw, dtype=torch.float64)
    return torch.tensor(signs, dtype=torch.float64)[:, None] * base + noise * scatter


def clusters(algorithm: Any, server: ServerState) -> list[list[int]]:
    found: list[list[int]] = algorithm.diagnostics(server, {})["clusters"]
    return found


def outcome(server: ServerState, cluster: int = 0) -> str:
    return OUTCOMES[int(server.tests.outcome[cluster])]
