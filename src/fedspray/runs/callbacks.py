"""Callbacks of a run: the log of its rounds, checkpoints, and users' own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedspray.engine.rounds import Answers, Progress
from fedspray.engine.worker import Request
from fedspray.errors import disk_full_at
from fedspray.files import Json
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs import store
from fedspray.runs.interrupts import Interrupts

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from fedspray.runs.conduct import Host
    from fedspray.runs.result import SeedResult

OnRecord = Callable[[int, Json], None]
"""Called with the seed and every round's record."""


class Callback:
    """Base of callbacks: override the methods you need. An exception stops the run, which can be resumed."""

    def on_exchange(self, request: Request, downlink: Message, answers: Answers) -> None:
        """Clients answered; messages must not be changed."""

    def on_record(self, seed: int, record: Json) -> None:
        """The record of a round is complete: one exchange after the round, when its model was evaluated."""

    def on_round(self, seed: int, progress: Progress) -> None:
        """A round ended; also called when a seed resumes and after its last exchange."""

    def on_end(self, seed: int, result: SeedResult) -> None:
        """A seed is done."""


class Listener(Callback):
    """Passes records on to a function."""

    def __init__(self, on_record: OnRecord) -> None:
        self._on_record = on_record

    def on_record(self, seed: int, record: Json) -> None:
        """Calls the function."""
        self._on_record(seed, record)


def tell(callbacks: Sequence[Callback], interrupts: Interrupts, event: str, *given: Any) -> None:
    """Calls the method of this name of all, in order; a Ctrl-C waits for them."""
    with interrupts.held():
        for each in callbacks:
            getattr(each, event)(*given)


class Log(Callback):
    """The records of a seed, in memory and, with a folder, on disk and for TensorBoard."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self._folder = folder
        self._file: store.RecordFile | None = None
        self._writer: SummaryWriter | None = None
        self.records: list[Json] = []
        """All so far."""
        if folder is not None:
            done = max(0, progress.round_index - 1)
            self._file = store.RecordFile(folder / store.RECORDS, keep=done)
            self.records = self._file.records
            if find_spec("tensorboard") is None:  # a server or a site has none
                return
            from torch.utils.tensorboard import SummaryWriter

            with disk_full_at(folder):
                self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def on_record(self, seed: int, record: Json) -> None:
        """Adds a round's record."""
        if self._folder is None or self._file is None:
            self.records.append(record)
            return
        self._file.add(record)
        with disk_full_at(self._folder):
            for part, name in product(("train", "val", "test"), store.CURVES):
                if self._writer is not None and record[part][name] is not None:
                    self._writer.add_scalar(f"{part}/{name}", record[part][name], record["round"])

    def flush(self) -> None:
        """Makes sure that the records are on disk."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Closes its files."""
        if self._folder is not None and self._file is not None:
            with (
                disk_full_at(self._folder),
                contextlib.closing(self._writer) if self._writer else contextlib.nullcontext(),
            ):
                self._file.close()


class Saver(Callback):
    """Writes checkpoints: every N rounds, or (by default) rarely enough to cost under 5% of the time.

    A checkpoint holds the state at the end of its round: an exchange that fails later doesn't affect it. ``parts`` is
    what else it holds, by its name: the tensors of a round. The log is flushed before it.
    """

    def __init__(
        self,
        folder: Path | None,
        host: Host,
        parts: dict[str, Callable[[int], dict[str, Tensor]]],
        log: Log,
        every: int | None,
    ) -> None:
        self._folder, self._host, self._log, self._every = folder, host, log, every
        self._parts = {"engine": host.tensors, **parts}
        self._unsaved: tuple[dict[str, Tensor], Json] | None = None
        self._cost, self._last = 0.05, time.perf_counter()

    def on_round(self, seed: int, progress: Progress) -> None:
        """Notes the run's progress and saves it if a checkpoint is due."""
        if self._folder is None or progress.detail:
            return
        tensors = tree.flatten(progress.server, "server")
        for name, part in self._parts.items():
            tensors |= tree.prefixed(name, part(progress.round_index))
        known = {name: value for name, value in vars(progress).items() if name != "server"}
        self._unsaved = tensors, {"progress": known, "blocks": self._host.blocks}
        now = time.perf_counter()
        if progress.round_index % self._every == 0 if self._every else now - self._last > 40 * self._cost:
            self.save()

    def save(self) -> None:
        """Writes the last finished round as the checkpoint, if that is not done yet."""
        if self._folder is None or self._unsaved is None:
            return
        began = time.perf_counter()
        self._log.flush()
        store.write_checkpoint(self._folder, *self._unsaved)
        self._unsaved = None
        self._last = time.perf_counter()
        self._cost = max(0.05, self._last - began)
