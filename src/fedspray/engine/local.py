"""The in-process engine: all clients here, trained in blocks.

A block is several clients stacked into one batch. Small clients are faster together (fewer calls),
large ones alone (cache); the result is the same up to rounding, and a run keeps its blocks when it is
resumed. With several threads, blocks are trained at the same time, one thread each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.data.statistics import node_homophily
from fedspray.engine.crossing import Chain, Crossing, columns_in_use, trip_of
from fedspray.engine.device import CPU, free_memory, nodes_that_fit
from fedspray.engine.rounds import Answers
from fedspray.engine.worker import Request, Snapshot, Worker
from fedspray.errors import InputError
from fedspray.nn import tree
from fedspray.nn.tree import Message

if TYPE_CHECKING:
    from fedspray.engine.sums import LocalSums

Blocks = list[list[int]]


class LocalEngine:
    """Carries messages between the server and workers in this process.

    Args:
        federation: the clients and their data.
        algorithms: each client's algorithm (they differ at most in their backbones).
        seed: the run's.
        blocks: which clients are trained together; None lets `choose_blocks` decide.
        dtype: of all data and weights.
        threads: shared out among the blocks; what is left over goes into each block's products.
        device: where the workers train.
        links: what messages pass between clients and server.
    """

    def __init__(
        self,
        federation: Federation,
        algorithms: Sequence[Algorithm[Any, Any]],
        seed: int,
        *,
        blocks: Blocks | None = None,
        dtype: torch.dtype = torch.float32,
        threads: int = 1,
        device: torch.device = CPU,
        links: Chain = (),
    ) -> None:
        self.client_ids = tuple(range(federation.num_clients))
        self.client_names = tuple(client.name for client in federation.clients)
        self._federation, self._dtype = federation, dtype
        self._homophily = [node_homophily(client.graph) for client in federation.clients]
        self._workers: list[Worker] = []
        most = BLOCK_NODES
        if device != CPU:
            most = max(most, nodes_that_fit(federation, algorithms, dtype, free_memory(device)))
        for ids in blocks or choose_blocks(federation, algorithms, at_once=threads, most=most):
            batch, homophily = self._batch(ids), self._stacked_homophily(ids)
            self._workers.append(Worker(algorithms[ids[0]], federation.task, batch, homophily, seed, device))
        self._sums: LocalSums | None = None
        if links and links[-1].only_sums:
            from fedspray.engine.sums import LocalSums, as_secure_sum

            *links, last = links
            batches = [worker.batch for worker in self._workers]
            classes = {k: each.train_class_counts[i] for each in batches for i, k in enumerate(each.client_ids)}
            self._sums = LocalSums(as_secure_sum(last), algorithms[0].uplink, dict(sorted(classes.items())))
        self._crossing = None
        if links:
            used = [zip(w.batch.client_ids, columns_in_use(w.batch), strict=True) for w in self._workers]
            trip = trip_of(algorithms[0], federation.task, seed, dtype)
            self._crossing = Crossing(links, trip, dict(pair for pairs in used for pair in pairs))
        at_once = min(threads, len(self._workers))
        torch.set_num_threads(threads // at_once)
        self._pool = ThreadPoolExecutor(at_once) if at_once > 1 else None

    @property
    def sums_only(self) -> bool:
        """Whether the server sees sums over clients only."""
        return self._sums is not None

    @property
    def blocks(self) -> Blocks:
        """The clients of each block."""
        return [list(worker.batch.client_ids) for worker in self._workers]

    def exchange(self, request: Request, downlink: Message, train_ids: Set[int]) -> Answers:
        """Sends every client its row of ``downlink`` and collects the answers, in the order of client ids.

        A client whose settings or data are refused stops the run, since it would fail in every round.

        Args:
            request: what is asked of everyone; only clients in ``train_ids`` train.
            downlink: [K, …].
            train_ids: who trains in this round.
        """
        crossing = self._crossing if downlink else None
        arrived, down = (downlink, None) if crossing is None else crossing.down(downlink, request.round_index)
        answers: list[tuple[tuple[int, ...], bool, Message, Message]] = []
        failures: dict[int, str] = {}
        queue = list(self._workers)
        while queue:
            again: list[Worker] = []
            for worker, outcome in zip(queue, self._ask(queue, request, arrived, train_ids), strict=True):
                ids = worker.batch.client_ids
                if not isinstance(outcome, Exception):
                    answers.append((ids, *outcome))
                elif len(ids) == 1 and isinstance(outcome, InputError):
                    raise InputError(f"client {self.client_names[ids[0]]}: {outcome}")
                elif len(ids) == 1:
                    failures[ids[0]] = f"{type(outcome).__name__}: {outcome}"
                else:  # find out which of them it is; from now on they are trained one by one
                    again += self._dissolve(worker)
            queue = again
        uplinks = [(ids, uplink) for ids, trained, uplink, _ in answers if trained]
        counted = [(ids, counts) for ids, _, _, counts in answers if counts]
        found = Answers(*_stack(uplinks), *_stack(counted), failures)
        if crossing is not None:
            uplink, up = crossing.up(found.uplink, found.trained, request.round_index)
            found = replace(found, uplink=uplink, bytes_down=down, bytes_up=up)
        return found if self._sums is None else self._sums.add_up(found, self._best(request), request, downlink)

    def _best(self, request: Request) -> dict[int, Message]:
        """By client: the counts of the best model so far, in rounds that end with a comparison."""
        if not request.evaluate:
            return {}
        found = {}
        for worker in self._workers:
            counts = worker.count_best()
            for place, k in enumerate(worker.batch.client_ids if counts else ()):
                found[k] = {name: value[place : place + 1] for name, value in counts.items()}
        return found

    def personal_models(self) -> dict[int, Snapshot]:
        """The kept model of every client that has one."""
        return {
            k: model
            for worker in self._workers
            for k, model in zip(worker.batch.client_ids, worker.personal_models(), strict=True)
            if model is not None
        }

    def algorithm_of(self, client_id: int) -> Algorithm[Any, Any]:
        """The algorithm that a client runs."""
        return next(worker.algorithm for worker in self._workers if client_id in worker.batch.client_ids)

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """Everything that the clients remembered at the end of a round, by name."""
        flat: dict[str, Tensor] = {}
        for index, worker in enumerate(self._workers):
            flat |= tree.prefixed(f"worker{index}", worker.tensors(round_index))
        if self._crossing is not None:
            flat |= tree.prefixed("links", self._crossing.tensors(round_index))
        return flat

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Goes back to what `tensors` held; the blocks must be the same."""
        for index, worker in enumerate(self._workers):
            worker.load(tree.part_of(tensors, f"worker{index}"), round_index)
        if self._crossing is not None:
            self._crossing.load(tree.part_of(tensors, "links"), round_index)

    def _ask(
        self, workers: Sequence[Worker], request: Request, downlink: Message, train_ids: Set[int]
    ) -> Iterator[tuple[bool, Message, Message] | Exception]:
        """For each worker: whether it trained, what it sends up and its counts; or why there is none of that."""

        def ask(worker: Worker) -> tuple[bool, Message, Message] | Exception:
            ids = worker.batch.client_ids
            train = request.train and ids[0] in train_ids
            try:
                return train, *worker.handle(replace(request, train=train), _rows(downlink, ids))
            except Exception as error:
                return error

        return map(ask, workers) if self._pool is None else self._pool.map(ask, workers)

    def _batch(self, ids: Sequence[int]) -> GraphBatch:
        return GraphBatch.from_clients([self._federation.clients[k] for k in ids], ids, dtype=self._dtype)

    def _stacked_homophily(self, ids: Sequence[int]) -> Any:
        return np.concatenate([self._homophily[k] for k in ids])

    def _dissolve(self, worker: Worker) -> list[Worker]:
        ids = worker.batch.client_ids
        singles = worker.split([self._batch([k]) for k in ids], [self._homophily[k] for k in ids])
        position = self._workers.index(worker)
        self._workers[position : position + 1] = singles
        return singles


BLOCK_NODES = 40_000
"""A block has about this many nodes at most, unless one client alone has more.

A block costs as much as some 4,000 more nodes (its calls), so small clients belong together. Beyond this size there
is little left to win, layers no longer fit into the cache, and memory grows with the largest block.
docs/performance.md has the measurements.
"""


BLOCK_NODES_AT_LEAST = 15_000
"""Blocks of fewer nodes are not made for the sake of a further thread: inside products it then wins more."""


def choose_blocks(
    federation: Federation, algorithms: Sequence[Algorithm[Any, Any]], *, at_once: int = 1, most: int = BLOCK_NODES
) -> Blocks:
    """Neighbours in the list with the same backbone, in as few blocks of at most about ``most`` nodes as will do.

    Clients with dense and with sparse features do not share a block.

    Args:
        federation: the clients.
        algorithms: each client's.
        at_once: how many blocks can be trained at the same time.
        most: nodes of a block.
    """
    groups: dict[Any, list[int]] = {}
    for k in range(federation.num_clients):
        groups.setdefault((algorithms[k].backbone, federation.clients[k].graph.is_sparse), []).append(k)
    blocks: Blocks = []
    for group in groups.values():
        sizes = [federation.clients[k].graph.num_nodes for k in group]
        total = sum(sizes)
        rounds = math.ceil(total / most / at_once)
        count = max(math.ceil(total / most), min(rounds * at_once, total // BLOCK_NODES_AT_LEAST))
        middles = np.cumsum(sizes) - np.array(sizes) / 2
        places = np.floor(middles * count / max(1, total)).astype(int)
        blocks += [[k for k, place in zip(group, places, strict=True) if place == b] for b in np.unique(places)]
    return blocks


def single_blocks(federation: Federation) -> Blocks:
    """Every client alone."""
    return [[k] for k in range(federation.num_clients)]


def _rows(downlink: Message, ids: Sequence[int]) -> Message:
    if list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return {name: value[ids[0] : ids[0] + len(ids)] for name, value in downlink.items()}
    return {name: value[list(ids)] for name, value in downlink.items()}


def _stack(parts: list[tuple[tuple[int, ...], Message]]) -> tuple[Message, tuple[int, ...]]:
    """Joins the messages of several blocks, in the order of client ids."""
    ids = [k for block, _ in parts for k in block]
    if len(parts) == 1:
        return parts[0][1], tuple(ids)
    names = parts[0][1] if parts else {}
    joined = {name: torch.cat([message[name] for _, message in parts]) for name in names}
    if ids != sorted(ids):
        order = torch.tensor(np.argsort(ids))
        joined = {name: value[order] for name, value in joined.items()}
    return joined, tuple(sorted(ids))
