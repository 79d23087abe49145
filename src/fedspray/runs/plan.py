"""Predicts a run's memory, time and bytes from a few trial rounds on a sample of the data.

Everything grows linearly: with the stored entries of features and edges, with nodes times width, and with clients
times weights. So a few rounds of the real algorithm on some of the clients (a large client is thinned first) are
measured here, and scaled. A federation that is small enough is its own sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.engine.local import LocalEngine, single_blocks
from fedspray.engine.process import peak_memory, release_memory, resident_memory
from fedspray.engine.rounds import run_rounds, start
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.memory import total_memory
from fedspray.runs.settings import Resolved, resolve
from fedspray.seeds import generator

SAMPLE_NODES = 100_000
"""The sample has about this many nodes."""
OUT_OF_CACHE = 0.2
"""A client with f times the sample's nodes costs f^0.2 times more for each of them: its layers miss the cache."""
WARM_UP_NODES = 500
TRIAL_ROUNDS = 4


@dataclass(frozen=True)
class Forecast:
    """What a run will need."""

    num_clients: int
    num_nodes: int
    sample_nodes: int
    """Nodes of the trial; all of them if it needed no scaling."""
    memory: int | None
    """Bytes of the whole process at its peak; None if unknown."""
    memory_available: int | None
    """Bytes that this machine has left, this process included."""
    cpu_seconds_per_round: float
    cpu_seconds: float
    """All rounds of all seeds."""
    bytes_up_per_round: int
    """From all clients together, evaluation counts included."""
    bytes_down_per_round: int
    bytes_total: int
    """Both ways, all rounds of all seeds."""

    @property
    def fits(self) -> bool | None:
        """Whether full batches fit into this machine's memory; None if unknown."""
        if self.memory is None or self.memory_available is None:
            return None
        return self.memory < self.memory_available

    def to_json(self) -> Json:
        """All fields, and `fits`."""
        return {**self.__dict__, "fits": self.fits}


def make_plan(federation: Federation, settings: RunSettings, *, threads: int = 1) -> Forecast:
    """Tries the run on a sample of ``federation`` and scales what it took."""
    federation.check_labels(settings.keep_split)
    if not settings.keep_split:
        federation = federation.with_split(settings.seeds[0])
    run = resolve(settings)
    algorithms = dict(zip(federation.roster.clients, run.for_clients(federation.roster), strict=True))
    # One-time set-up must not be scaled.
    _try(_sample(federation, WARM_UP_NODES), run, algorithms, threads)
    sample = _sample(federation, SAMPLE_NODES)
    release_memory()
    held = resident_memory()
    with peak_memory() as peak:
        engine, records = _try(sample, run, algorithms, threads)
        highest = peak()
    weights = sum(value.numel() for value in engine.tensors(TRIAL_ROUNDS).values()) // sample.num_clients
    width = run.algorithm.backbone.hidden
    sizes = [_size(client, width, weights) for client in federation.clients]
    scale = sum(sizes) / sum(_size(client, width, weights) for client in sample.clients)
    clients = federation.num_clients / sample.num_clients
    count = run.rounds.rounds * len(settings.seeds)
    slow = sum(_slowness(client) * size for client, size in zip(federation.clients, sizes, strict=True)) / sum(sizes)
    per_round = slow * scale * statistics.median(record["cpu_seconds"] for record in records[1:])
    last = records[-1]  # the first round has nothing to evaluate
    up = clients * (last["bytes_up"] + last["bytes_evaluation"])
    down = clients * last["bytes_down"]
    return Forecast(
        num_clients=federation.num_clients,
        num_nodes=sum(client.graph.num_nodes for client in federation.clients),
        sample_nodes=sum(client.graph.num_nodes for client in sample.clients),
        memory=None if held is None or highest is None else round(held + scale * (highest - held)),
        memory_available=_available(),
        cpu_seconds_per_round=per_round,
        cpu_seconds=count * per_round,
        bytes_up_per_round=round(up),
        bytes_down_per_round=round(down),
        bytes_total=round(count * (up + down)),
    )


def _try(
    sample: Federation, run: Resolved, algorithms: Mapping[str, Algorithm[Any, Any]], threads: int
) -> tuple[LocalEngine, list[Json]]:
    """A few rounds, with each client's algorithm by its name; returns their records too."""
    server, rounds, dtype = run.algorithm, run.rounds, run.dtype
    own = [algorithms[client.name] for client in sample.clients]
    blocks = single_blocks(sample) if rounds.participation < 1 else None
    engine = LocalEngine(sample, own, 0, blocks=blocks, dtype=dtype, threads=threads, links=run.links)
    records: list[Json] = []
    run_rounds(
        server,
        engine,
        replace(rounds, rounds=TRIAL_ROUNDS, min_clients=1),
        0,
        start(server, sample.task, 0, dtype),
        on_record=records.append,
        on_round=lambda _: None,
    )
    return engine, records


def _size(client: Client, width: int, weights: int) -> float:
    """The quantities that cost grows with: stored entries, nodes times width, weights."""
    graph = client.graph
    features: Any = graph.features
    entries = features.nnz if graph.is_sparse else graph.num_nodes * graph.num_features / 4
    return float(entries + 2 * graph.num_edges + graph.num_nodes * width / 4 + weights / 16)


def _slowness(client: Client) -> float:
    return float(max(1.0, client.graph.num_nodes / SAMPLE_NODES) ** OUT_OF_CACHE)


def _sample(federation: Federation, num_nodes: int) -> Federation:
    """Clients until there are ``num_nodes`` nodes, from all over the list; a larger one is thinned to that."""
    order = generator(0, "plan").permutation(federation.num_clients)
    sizes = np.cumsum([federation.clients[k].graph.num_nodes for k in order])
    chosen = order[: 1 + int(np.searchsorted(sizes, num_nodes))]
    return replace(federation, clients=tuple(_thinned(federation.clients[k], num_nodes) for k in sorted(chosen)))


def _thinned(client: Client, num_nodes: int) -> Client:
    """A client with ``num_nodes`` of its nodes and as many edges per node as before, between other pairs."""
    graph = client.graph
    if graph.num_nodes <= 2 * num_nodes:
        return client
    draw = generator(0, "plan", client.name)
    nodes = np.sort(draw.choice(graph.num_nodes, num_nodes, replace=False))
    edges = draw.integers(0, num_nodes, size=(2, round(graph.num_edges * num_nodes / graph.num_nodes)))
    small = Graph.from_arrays(graph.features[nodes], edges, graph.labels[nodes], num_classes=graph.num_classes)
    split = Split(client.split.train[nodes], client.split.val[nodes], client.split.test[nodes])
    return Client(client.name, small, split, np.arange(num_nodes))


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return total_memory()
    return free + (resident_memory() or 0)
