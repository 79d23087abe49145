"""The device that clients train on, and how many nodes fit there at once.

Only workers know it. The server, random draws, counts and everything that is written stay on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Federation
from fedspray.errors import InputError

CPU = torch.device("cpu")

COPIES_OF_WEIGHTS, COPIES_OF_LAYERS = 8, 16
"""Weights: the values, gradients, two moments, what was received and two snapshots. Layers: what autograd keeps."""


def find_device(name: str) -> torch.device:
    """``cpu``, ``cuda``, ``cuda:1`` …, ``mps``, or ``auto``: an accelerator if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, number = name.partition(":")
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if kind not in available or (number and (kind != "cuda" or not number.isdigit())):
        raise InputError(f"device is {name!r}, but must be auto, cpu, cuda, cuda:NUMBER or mps")
    if int(number or 0) >= available[kind]:
        there = [f"cuda:{i}" for i in range(available["cuda"])] + ["mps"] * available["mps"]
        raise InputError(f"device is {name!r}, but torch finds {' and '.join(['cpu', *there])} here")
    if kind == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is made
        torch.use_deterministic_algorithms(True, warn_only=True)
        return torch.device("cuda", int(number or 0))
    return torch.device(kind)


def describe_device(device: torch.device) -> str:
    """For a record: the device, and the name of the hardware behind it."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def free_memory(device: torch.device) -> int:
    """Free bytes on an accelerator."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())


def nodes_that_fit(
    federation: Federation, algorithms: Sequence[Algorithm[Any, Any]], dtype: torch.dtype, memory: int
) -> int:
    """How many nodes a block may have in half of this many bytes: an estimate from the data and the widest network."""
    graphs, task = [client.graph for client in federation.clients], federation.task
    nodes = max(1, sum(graph.num_nodes for graph in graphs))
    entries = sum(int(getattr(graph.features, "nnz", graph.features.size)) for graph in graphs)
    edges = sum(graph.edges.shape[1] for graph in graphs)
    width = max(each.backbone.hidden * each.backbone.layers + task.num_classes for each in algorithms)
    weights = width * task.num_features * len(graphs)
    # A sparse entry is a value and an index, twice; so is an edge, in both directions.
    numbers = 4 * entries + 8 * edges + COPIES_OF_WEIGHTS * weights + COPIES_OF_LAYERS * width * nodes
    return int(memory / 2 / (dtype.itemsize * numbers / nodes))
