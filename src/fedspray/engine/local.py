"""The engine of simulations: all clients, trained in blocks, in this process or in those of a cluster.

A block is several clients stacked into one batch. Small clients are faster together (fewer calls),
large ones alone (cache); the result is the same up to rounding, and a run keeps its blocks when it is
resumed. With several threads, blocks are trained at the same time, one thread each.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Federation, Task
from fedspray.data.statistics import node_homophily
from fedspray.engine.clients import init_state
from fedspray.engine.crossing import Chain, Crossing, joined, trip_of
from fedspray.engine.device import CPU, free_memory, nodes_that_fit
from fedspray.engine.rounds import Answers
from fedspray.engine.worker import Request, Snapshot, Worker
from fedspray.errors import ContractError, InputError, RunStopped
from fedspray.evaluation.counting import blank
from fedspray.nn import tree
from fedspray.nn.tree import Message

if TYPE_CHECKING:
    from fedspray.engine.cluster import Remote
    from fedspray.engine.sums import LocalSums

    Block: TypeAlias = Worker | Remote
    """Clients that are trained together, here or somewhere else."""

Blocks = list[list[int]]


class Home(Protocol):
    """Where blocks are."""

    @property
    def at_once(self) -> int:
        """How many blocks can be asked at the same time."""

    def open(self, ids: Sequence[int]) -> Block:
        """A block of these clients, before the first round."""

    def split(self, block: Any) -> Sequence[Block]:
        """The same clients as one block each."""


@dataclass(frozen=True)
class InProcess:
    """Blocks of clients, given by their ids, in this process; ``at_once`` of them are trained at the same time."""

    clients: Mapping[int, Client]
    algorithms: Mapping[int, Algorithm[Any, Any]]
    task: Task
    seed: int
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    at_once: int = 1

    def open(self, ids: Sequence[int]) -> Worker:
        """A block of these clients, before the first round."""
        clients = [self.clients[k] for k in ids]
        batch = GraphBatch.from_clients(clients, ids, dtype=self.dtype)
        homophily = np.concatenate([node_homophily(client.graph) for client in clients])
        algorithm = self.algorithms[ids[0]]
        state = init_state(algorithm, self.task, batch, self.seed)
        return Worker(algorithm, batch, state, homophily, self.seed, self.device)

    def split(self, block: Worker) -> list[Worker]:
        """The same clients as one block each."""
        return block.split([self.open([k]) for k in block.client_ids])


class LocalEngine:
    """Carries messages between the server and the blocks.

    Args:
        federation: the clients and their data.
        algorithms: each client's algorithm (they differ at most in their backbones).
        seed: the run's.
        blocks: which clients are trained together; None lets `choose_blocks` decide.
        dtype: of all data and weights.
        threads: shared among the blocks; the rest goes into each block's products.
        device: where the workers train.
        links: the steps that messages pass between clients and server.
        home: where the blocks are; None: in this process.
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
        home: Home | None = None,
    ) -> None:
        self.client_ids = tuple(range(federation.num_clients))
        self.client_names = tuple(client.name for client in federation.clients)
        self._federation = federation
        most = BLOCK_NODES
        if device != CPU:
            most = max(most, nodes_that_fit(federation, algorithms, dtype, free_memory(device)))
        chosen = blocks or choose_blocks(federation, algorithms, at_once=threads, most=most)
        own, theirs = dict(enumerate(federation.clients)), dict(enumerate(algorithms))
        self._home: Home = home or InProcess(own, theirs, federation.task, seed, dtype, device, threads)
        self._blocks: list[Block] = []
        for ids in chosen:  # a comprehension would be one more frame above a user's own
            self._blocks.append(self._home.open(ids))
        self._hides_evaluation = any(link.hides_evaluation for link in links)
        self._sums: LocalSums | None = None
        if links and links[-1].only_sums:
            from fedspray.engine.sums import LocalSums, as_secure_sum

            *links, last = links
            classes = {k: torch.from_numpy(client.train_class_counts).to(dtype) for k, client in own.items()}
            self._sums = LocalSums(as_secure_sum(last), algorithms[0].uplink, classes)
        self._crossing = None
        if links:
            columns = {k: used for b in self._blocks for k, used in zip(b.client_ids, b.columns, strict=True)}
            self._crossing = Crossing(links, trip_of(algorithms[0], federation.task, seed, dtype), columns)
        torch.set_num_threads(max(1, threads // len(self._blocks)))
        at_once = min(self._home.at_once, len(self._blocks))
        self._pool = ThreadPoolExecutor(at_once) if at_once > 1 else None

    @property
    def clients_are_hidden(self) -> bool:
        """Whether the server sees no figures of single clients."""
        return self._sums is not None or self._hides_evaluation

    @property
    def blocks(self) -> Blocks:
        """The clients of each block."""
        return [list(block.client_ids) for block in self._blocks]

    def exchange(self, request: Request, downlink: Message, train_ids: Set[int]) -> Answers:
        """Sends every client its row of ``downlink`` and collects the answers, in the order of client ids.

        A client with invalid settings or data, or an algorithm that breaks its contract, stops the run, since it would
        fail in every round. Only clients in ``train_ids`` train.
        """
        crossing = self._crossing if downlink else None
        arrived, down = (downlink, None) if crossing is None else crossing.down(downlink, request.round_index)
        answers: list[tuple[tuple[int, ...], bool, Message, Message]] = []
        errors: dict[int, Exception] = {}
        queue = list(self._blocks)
        while queue:
            again: list[Block] = []
            for block, train, answer in self._asked(queue, request, arrived, train_ids):
                ids = block.client_ids
                try:
                    answers.append((ids, train, *answer()))
                except (RunStopped, ContractError):
                    raise
                except Exception as error:
                    if len(ids) > 1:  # find the failing client; from now on they train one by one
                        again += self._dissolve(block)
                    elif isinstance(error, InputError):
                        raise InputError(f"client {self.client_names[ids[0]]}: {error}") from None
                    else:
                        errors[ids[0]] = _kept(error)
            queue = again
        uplinks = [(ids, uplink) for ids, trained, uplink, _ in answers if trained]
        shown = blank if self._hides_evaluation else dict
        counted = [(ids, shown(counts)) for ids, _, _, counts in answers if counts]
        failures = {k: f"{type(error).__name__}: {error}" for k, error in errors.items()}
        found = Answers(*_stack(uplinks), *_stack(counted), failures, errors=errors)
        if crossing is not None:
            uplink, up = crossing.up(found.uplink, found.trained, request.round_index)
            found = replace(found, uplink=uplink, bytes_down=down, bytes_up=up)
        return found if self._sums is None else self._sums.add_up(found, self._best(request), request, downlink)

    def _best(self, request: Request) -> dict[int, Message]:
        """By client: the counts of the best model so far, in rounds that end with a comparison."""
        if not request.evaluate or self._hides_evaluation:
            return {}
        found = {}
        for block in self._blocks:
            counts = block.count_best()
            for place, k in enumerate(block.client_ids if counts else ()):
                found[k] = {name: value[place : place + 1] for name, value in counts.items()}
        return found

    def personal_models(self) -> dict[int, Snapshot]:
        """The kept model of every client that has one."""
        return {
            k: model
            for block in self._blocks
            for k, model in zip(block.client_ids, block.personal_models(), strict=True)
            if model is not None
        }

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The clients' state at the end of a round, by name."""
        flat: dict[str, Tensor] = {}
        for index, block in enumerate(self._blocks):
            flat |= tree.prefixed(f"worker{index}", block.tensors(round_index))
        if self._crossing is not None:
            flat |= tree.prefixed("links", self._crossing.tensors(round_index))
        return flat

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Restores what `tensors` held; the blocks must be the same."""
        for index, block in enumerate(self._blocks):
            block.recall({round_index: tree.part_of(tensors, f"worker{index}")})
        if self._crossing is not None:
            self._crossing.load(tree.part_of(tensors, "links"), round_index)

    def _asked(
        self, blocks: Sequence[Block], request: Request, downlink: Message, train_ids: Set[int]
    ) -> Iterator[tuple[Block, bool, Callable[[], tuple[Message, Message]]]]:
        """Each block, whether it trains, and what gives its uplink and counts; several are at work if threads are."""
        asks = (
            (block, train, partial(block.handle, replace(request, train=train), _rows(downlink, block.client_ids)))
            for block in blocks
            for train in [request.train and block.client_ids[0] in train_ids]
        )
        if self._pool is None:
            yield from asks
            return
        waiting = [(block, train, self._pool.submit(ask)) for block, train, ask in asks]
        try:
            yield from ((block, train, future.result) for block, train, future in waiting)
        finally:  # if one stops the run
            for _, _, future in waiting:
                future.cancel()

    def _dissolve(self, block: Block) -> Sequence[Block]:
        singles = self._home.split(block)
        position = self._blocks.index(block)
        self._blocks[position : position + 1] = singles
        return singles


BLOCK_NODES = 40_000
"""A block has at most about this many nodes, unless a single client has more.

A block's calls cost as much as some 4,000 more nodes, so small clients belong together. Beyond this size there
is little to gain, layers no longer fit into the cache, and memory grows with the largest block.
docs/performance.md has the measurements.
"""


BLOCK_NODES_AT_LEAST = 15_000
"""No smaller blocks for another thread: it gains more inside products."""


def choose_blocks(
    federation: Federation, algorithms: Sequence[Algorithm[Any, Any]], *, at_once: int = 1, most: int = BLOCK_NODES
) -> Blocks:
    """Neighbours in the list with the same backbone, in as few blocks of about ``most`` nodes as possible.

    Clients with dense and with sparse features never share a block. ``at_once`` can be trained at the same time.
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


def _kept(error: Exception) -> Exception:
    """The error with its lines, without what the calls held: the tensors of a client that ran out of memory."""
    own = error.__traceback__
    traceback.clear_frames(own)
    return error.with_traceback(own and own.tb_next)  # the caller's frame holds all answers


def _rows(downlink: Message, ids: Sequence[int]) -> Message:
    if list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return {name: value[ids[0] : ids[0] + len(ids)] for name, value in downlink.items()}
    return {name: value[list(ids)] for name, value in downlink.items()}


def _stack(parts: list[tuple[tuple[int, ...], Message]]) -> tuple[Message, tuple[int, ...]]:
    """Joins the messages of several blocks, in the order of client ids."""
    ids = [k for block, _ in parts for k in block]
    if len(parts) == 1:
        return parts[0][1], tuple(ids)
    whole = joined([message for _, message in parts])
    if ids != sorted(ids):
        order = torch.tensor(np.argsort(ids))
        whole = {name: value[order] for name, value in whole.items()}
    return whole, tuple(sorted(ids))
