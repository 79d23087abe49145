"""Blocks in the actors of a Ray cluster, for simulations that outgrow a process (``--engine ray``).

An actor is a process of the cluster that holds several blocks. It reads the data of its own clients alone: from the
folder of a saved federation, which every machine must see, or else from Ray's object store. Messages go through the
store. So does what a block remembers after each round, which belongs to the process that leads the run: when an actor
dies, Ray starts it again, its blocks are opened from there and asked once more, and nothing in the result tells.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Client, Federation, Split, Task
from fedspray.engine.device import CPU
from fedspray.engine.local import InProcess
from fedspray.engine.worker import Request, Snapshot, Worker
from fedspray.errors import InputError, RunStopped, unknown
from fedspray.nn.tree import Message

ATTEMPTS = 4
"""How often an actor may die over the same question; what kills it more often would never stop doing so."""

Packed = dict[str, tuple[NDArray[Any], int]]
"""Tensors as arrays, which Ray moves without copies; what is the same for all clients is there once."""
Memories = dict[int, Packed]
"""By round: what `Worker.tensors` gives."""


ENGINES = ("local", "ray")


@contextmanager
def opened(
    engine: str,
    address: str | None = None,
    *,
    threads: int = 1,
    device: torch.device = CPU,
    folder: Path | None = None,
) -> Iterator[Cluster | None]:
    """The cluster that one of the `ENGINES` needs; None for ``local``, which needs none.

    ``address`` is that of the cluster's head; None: that in ``RAY_ADDRESS``, or else a cluster on this machine, which
    offers as many threads as the run is given. ``folder`` is that of the saved federation that is run, if it is one.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "local":
        if address is not None:
            raise InputError(f"the cluster {address!r} needs the engine ray, but it is 'local'")
        yield None
        return
    if device != CPU:
        raise InputError(f"device is {str(device)!r}, but the engine ray trains on the CPU alone")
    with connected(address, threads):
        cluster = Cluster(threads, folder)
        try:
            yield cluster
        finally:
            cluster.clear()


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Connects this process with a cluster, or starts one that no other machine can reach, unless one is at hand."""
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what a later version will do; this one warns
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # of a death Ray tells on standard output
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on any system: listen on loopback only
    try:
        import ray
    except ImportError as error:
        raise InputError(
            f"ray needs the package ray, which is missing ({error}): pip install 'fedspray[ray]'"
        ) from None
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"the Ray cluster at {address!r} cannot be reached: {reason}") from None
    try:
        yield
    finally:
        ray.shutdown()


class Cluster:
    """The cluster that this process is connected with, and the actors of one seed on it."""

    def __init__(self, threads: int, folder: Path | None = None) -> None:
        self._threads, self._folder = threads, folder
        self._actors: list[Any] = []

    def home(
        self,
        federation: Federation,
        algorithms: Sequence[Algorithm[Any, Any]],
        seed: int,
        dtype: torch.dtype,
        num_blocks: int,
    ) -> Actors:
        """Actors for the blocks of a seed, in the place of those of the seed before: no more than there are blocks."""
        import ray

        self.clear()
        num_actors = min(self._threads, num_blocks)
        own = self._threads // num_actors
        kind = ray.remote(_Actor).options(num_cpus=own, max_restarts=-1)
        self._actors = [kind.remote(own, sys.path) for _ in range(num_actors)]
        return Actors(self._actors, federation, self._folder, algorithms, seed, dtype)

    def clear(self) -> None:
        """Ends all actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


class Actors:
    """The blocks of a seed in actors: a home for `LocalEngine`."""

    at_once = 1000
    """They wait in line at their actor."""

    def __init__(
        self,
        actors: Sequence[Any],
        federation: Federation,
        folder: Path | None,
        algorithms: Sequence[Algorithm[Any, Any]],
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        import ray

        self._actors, self._federation, self._algorithms = actors, federation, algorithms
        self._seed, self._dtype, self._numbers = seed, dtype, count()
        self._sources = [ray.put(c) if folder is None else folder / "clients" / c.name for c in federation.clients]

    def open(self, ids: Sequence[int]) -> Remote:
        """A block of these clients, before the first round."""
        number = next(self._numbers)
        return Remote(self._actors[number % len(self._actors)], number, self._order(ids))

    def split(self, block: Remote) -> list[Remote]:
        """The same clients as one block each, at the same actor."""
        return block.split([(next(self._numbers), self._order([k])) for k in block.client_ids])

    def _order(self, ids: Sequence[int]) -> _Order:
        return _Order(
            tuple(ids),
            [self._sources[k] for k in ids],
            [self._federation.clients[k].split for k in ids],
            {k: self._algorithms[k] for k in ids},
            self._federation.task,
            self._seed,
            self._dtype,
        )


@dataclass(frozen=True)
class _Order:
    """What opens a block anywhere: its clients, and all else that `InProcess` needs."""

    ids: tuple[int, ...]
    sources: Sequence[Any]
    """Of each client: its folder, or what stands for it in Ray's store."""
    splits: Sequence[Split]
    algorithms: Mapping[int, Algorithm[Any, Any]]
    task: Task
    seed: int
    dtype: torch.dtype

    def home(self) -> InProcess:
        """These clients in this process."""
        found = [Client.load(each) if isinstance(each, Path) else _get(each) for each in self.sources]
        own = {k: replace(each, split=split) for k, each, split in zip(self.ids, found, self.splits, strict=True)}
        return InProcess(own, self.algorithms, self.task, self.seed, self.dtype)


class Remote:
    """A block at an actor, and in Ray's store what the block remembers."""

    def __init__(self, actor: Any, number: int, order: _Order, memories: Memories | None = None) -> None:
        self.client_ids = order.ids
        self._actor, self._number, self._order = actor, number, order
        self._memories: Any = memories
        self._is_open = memories is not None

    @property
    def columns(self) -> list[Tensor | None]:
        """The features that each client's nodes use; None where features are dense."""
        return self._ask("columns")  # type: ignore[no-any-return]

    def handle(self, request: Request, message: Message) -> tuple[Message, Message]:
        """Does what is asked, as `Worker.handle` does."""
        answer, self._memories = self._ask("handle", request, _packed(message), returns=2)
        if isinstance(answer, Exception):
            raise answer
        uplink, counts = answer
        return _opened(uplink), _opened(counts)

    def split(self, singles: Sequence[tuple[int, _Order]]) -> list[Remote]:
        """The same clients as one block each, with these numbers and orders."""
        memories = self._ask("split", [number for number, _ in singles])
        return [Remote(self._actor, *single, own) for single, own in zip(singles, memories, strict=True)]

    def count_best(self) -> Message:
        """The counts of the best model so far; nothing if there is none yet."""
        return _opened(self._ask("count_best"))

    def personal_models(self) -> list[Snapshot | None]:
        """The kept snapshot of each client."""
        return self._ask("personal_models")  # type: ignore[no-any-return]

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """Everything remembered at the end of a round, by name, whether the actor lives or not."""
        if self._memories is None:
            self._memories = self._ask("memories")
        held: Memories = self._memories if isinstance(self._memories, dict) else _get(self._memories)
        return _opened(held[max(known for known in held if known <= round_index)])

    def recall(self, memories: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Goes back to what `tensors` held at each of these rounds."""
        self._memories, self._is_open = {known: _packed(tensors) for known, tensors in memories.items()}, False

    def _ask(self, method: str, *given: Any, returns: int = 1) -> Any:
        """What a method of the actor returns, and where its further returns are; an actor that dies is asked again."""
        from ray.exceptions import RayActorError

        reason: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                if not self._is_open:  # retries: an actor that is being started is waited for
                    patient = self._actor.open.options(max_task_retries=-1)
                    _get(patient.remote(self._number, self._order, self._memories))
                    self._is_open = True
                found = getattr(self._actor, method).options(num_returns=returns).remote(self._number, *given)
                return _get(found) if returns == 1 else (_get(found[0]), *found[1:])
            except (RayActorError, Lost) as error:
                self._is_open, reason = False, error
        raise RunStopped(f"the actor of clients {list(self.client_ids)} died {ATTEMPTS} times ({reason})")


class Lost(LookupError):
    """An actor was started again since it opened a block."""


class _Actor:
    """Several blocks by number, in a process of the cluster. Ray starts it again if it dies, without blocks."""

    def __init__(self, threads: int, path: Sequence[str]) -> None:
        sys.path += [each for each in path if each not in sys.path]  # where a user's own algorithms may be
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes into it
        torch.set_num_threads(threads)
        self._blocks: dict[int, tuple[InProcess, Worker]] = {}

    def open(self, number: int, order: _Order, memories: Memories | None) -> None:
        home = order.home()
        worker = home.open(order.ids)
        if memories is not None:
            worker.recall({round_index: _opened(held) for round_index, held in memories.items()})
        self._blocks[number] = home, worker

    def handle(self, number: int, request: Request, message: Packed) -> tuple[Any, Memories]:
        worker = self._block(number)[1]
        try:
            uplink, counts = worker.handle(request, _opened(message))
        except Exception as error:
            return error, self.memories(number)
        return (_packed(uplink), _packed(counts)), self.memories(number)

    def split(self, number: int, numbers: Sequence[int]) -> list[Memories]:
        home, worker = self._block(number)
        self._blocks |= {n: (home, single) for n, single in zip(numbers, home.split(worker), strict=True)}
        return [self.memories(n) for n in numbers]

    def memories(self, number: int) -> Memories:
        worker = self._block(number)[1]
        return {round_index: _packed(worker.tensors(round_index)) for round_index in worker.rounds}

    def columns(self, number: int) -> list[Tensor | None]:
        return self._block(number)[1].columns

    def count_best(self, number: int) -> Packed:
        return _packed(self._block(number)[1].count_best())

    def personal_models(self, number: int) -> list[Snapshot | None]:
        return self._block(number)[1].personal_models()

    def _block(self, number: int) -> tuple[InProcess, Worker]:
        if number not in self._blocks:
            raise Lost(number)
        return self._blocks[number]


def _get(reference: Any) -> Any:
    """What stands in Ray's store; it is lost if the machine that held it is."""
    import ray
    from ray.exceptions import ObjectLostError

    try:
        return ray.get(reference)
    except ObjectLostError as error:
        reason = str(error).partition("\n")[0]
        raise RunStopped(f"a machine of the cluster is lost, with what its clients remembered ({reason})") from None


def _packed(tensors: Mapping[str, Tensor]) -> Packed:
    """Keeps the layout: with another one, products may round otherwise."""
    return {
        name: (value[:1].numpy(), len(value)) if value.dim() and len(value) > 1 and value.stride(0) == 0
        else (value.numpy(), 0)
        for name, value in tensors.items()
    }  # fmt: skip


def _opened(packed: Packed) -> dict[str, Tensor]:
    def opened(array: NDArray[Any], times: int) -> Tensor:
        value = torch.tensor(array)
        return value.expand(times, *value.shape[1:]) if times else value

    return {name: opened(*held) for name, held in packed.items()}
