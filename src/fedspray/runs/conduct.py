"""The part of a run that is the same wherever its clients are: seeds, records, checkpoints, results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from fedspray import files
from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Roster
from fedspray.engine.local import Blocks
from fedspray.engine.rounds import Engine, Progress, run_rounds, start
from fedspray.errors import RunStopped, disk_full_at
from fedspray.experiment import RoundSettings, RunSettings
from fedspray.nn import tree
from fedspray.runs import proxies, store
from fedspray.runs.models import PersonalModel
from fedspray.runs.result import Json, RunResult, SeedResult
from fedspray.runs.settings import build, build_for, describe, torch_dtype

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

OnRecord = Callable[[int, Json], None]
"""Called with the seed and every round's record."""


class Host(Engine, Protocol):
    """An engine that a run can be saved from, and that knows the clients' models when the run is over."""

    @property
    def blocks(self) -> Blocks:
        """Which clients are trained together."""

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """What a checkpoint of this round must hold besides the server's state, by name."""

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Goes back to what `tensors` held."""

    def models(self) -> Mapping[str, PersonalModel]:
        """The personal models that are here, by client."""

    def digests(self) -> Mapping[str, str]:
        """sha256 of every client's personal model, wherever it is."""

    def keep(self, folder: Path, models: Mapping[str, PersonalModel]) -> None:
        """Writes what else is known here about a finished seed into its folder."""


OpenHost = Callable[[int, list[Algorithm[Any, Any]], Blocks | None], Host]
"""From a seed, each client's algorithm and a checkpoint's blocks (None: a new run) to the clients."""


def conduct(
    roster: Roster,
    settings: RunSettings,
    folder: Path | None,
    open_host: OpenHost,
    *,
    checkpoint_every: int | None = None,
    on_record: OnRecord | None = None,
    on_round: Callable[[int, Progress], None] | None = None,
) -> RunResult:
    """Runs all seeds, from their checkpoints where there are any, and writes the result.

    Args:
        roster: who takes part, in what.
        settings: the run's.
        folder: the run folder; None keeps nothing.
        open_host: reaches the clients of one seed.
        checkpoint_every: rounds between checkpoints; None goes by time.
        on_record: called with the seed and every complete record.
        on_round: called with the seed and where it stands: at a checkpoint that it goes on from, and after every
            round, before its checkpoint.
    """
    results = [
        _Seed(roster, settings, seed, folder, open_host, checkpoint_every, on_record, on_round).result()
        for seed in settings.seeds
    ]
    outcome = RunResult(header(roster, settings), results)
    if folder is not None:
        files.write_sealed(folder / "result.json", outcome.summary())
    return outcome


def header(roster: Roster, settings: RunSettings) -> Json:
    """What a result says about its run: data set, algorithm, backbone and all settings."""
    algorithm, rounds = build(settings)
    data = {name: value for name, value in roster.settings.items() if name != "split_seed"}
    return {
        "dataset": roster.name,
        "algorithm": settings.algorithm,
        "backbone": settings.backbone,
        "preset": settings.preset,
        "backbone_of": dict(settings.backbone_of),
        "settings": describe(algorithm, rounds),
        "federation": data | {"num_clients": roster.num_clients},
    }


class _Seed:
    """One seed of a run."""

    def __init__(
        self,
        roster: Roster,
        settings: RunSettings,
        seed: int,
        folder: Path | None,
        open_host: OpenHost,
        checkpoint_every: int | None,
        on_record: OnRecord | None,
        on_round: Callable[[int, Progress], None] | None,
    ) -> None:
        self._roster, self._seed, self._open_host = roster, seed, open_host
        self._every, self._on_record, self._on_round = checkpoint_every, on_record, on_round
        self._algorithm, self._rounds = build(settings)  # the server's, whatever backbones clients have
        self._algorithms, _ = build_for(settings, roster)
        self._dtype = torch_dtype(settings)
        self._folder = None if folder is None else folder / f"seed-{seed}"

    def result(self) -> SeedResult:
        """The stored result of a finished seed, or the result of running it to its end."""
        if self._folder is not None and (self._folder / "result.json").exists():
            return SeedResult.load(self._folder)
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
        meta, tensors = self._read_checkpoint()
        host = self._open_host(self._seed, self._algorithms, None if meta is None else meta["blocks"])
        progress = start(self._algorithm, self._roster.task, self._seed, self._dtype)
        if meta is not None:
            server = tree.restore(progress.server, tree.part_of(tensors, "server"))
            progress = Progress(server, **meta["progress"])
            host.load(tree.part_of(tensors, "engine"), progress.round_index)
            if self._on_round is not None:
                self._on_round(self._seed, progress)
        tap = proxies.ProxyTap(host)
        tap.load(tree.part_of(tensors, "proxies"))
        with _Log(self._folder, progress) as log:
            saver = _Saver(self._folder, host, tap, log, self._every)

            def on_record(record: Json) -> None:
                log.add(record)
                if self._on_record is not None:
                    self._on_record(self._seed, record)

            def on_round(progress: Progress) -> None:
                if self._on_round is not None:
                    self._on_round(self._seed, progress)
                saver.after_round(progress)

            try:
                progress = run_rounds(
                    self._algorithm,
                    tap,
                    self._rounds,
                    self._seed,
                    progress,
                    on_record=on_record,
                    on_round=on_round,
                )
            except (KeyboardInterrupt, RunStopped):
                saver.save()  # where the last finished round left it
                raise
            log.flush()
            if self._on_round is not None:
                self._on_round(self._seed, progress)
            return self._finish(host, tap, progress, log.records)

    def _read_checkpoint(self) -> tuple[Json | None, dict[str, torch.Tensor]]:
        tensors, meta = ({}, None) if self._folder is None else store.read_checkpoint(self._folder)
        return meta, tensors

    def _finish(self, host: Host, tap: proxies.ProxyTap, progress: Progress, records: list[Json]) -> SeedResult:
        models = host.models()
        metrics = _metrics(progress, records, self._roster.clients, host.digests(), self._rounds)
        result = SeedResult(self._seed, metrics, records, models, tap.at(metrics["best_round"]))
        if self._folder is not None:
            result.save(self._folder)
            host.keep(self._folder, models)
            files.write_sealed(self._folder / "result.json", metrics)
            store.drop_checkpoints(self._folder)
        return result


def _metrics(
    progress: Progress,
    records: list[Json],
    names: Sequence[str],
    digests: Mapping[str, str],
    rounds: RoundSettings,
) -> Json:
    """The reported round as flat JSON: test metrics at the top, validation and details below."""
    detail = progress.detail
    return {
        "best_round": detail["best_round"],
        "rounds": rounds.rounds,
        **detail["test"],
        **{name: detail[name] for name in ("by_homophily", "recall_by_budget")},
        "clients": {names[int(k)]: values for k, values in detail["clients"].items()},
        "val": detail["val"],
        "train": detail["train"],
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records) + detail["closing"]["bytes_down"],
        "bytes_evaluation": sum(record["bytes_evaluation"] for record in records)
        + detail["closing"]["bytes_evaluation"],
        "failures": sum(len(record["failed"]) for record in records),
        "seconds": sum(record["seconds"] for record in records),
        "cpu_seconds": sum(record["cpu_seconds"] for record in records),
        "models": dict(digests),
    }


class _Log:
    """The records of a seed, in memory and, where there is a folder, on disk and for TensorBoard."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self._folder = folder
        self._file: store.RecordFile | None = None
        self._writer: SummaryWriter | None = None
        self._memory: list[Json] = []
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            done = max(0, progress.round_index - 1)
            self._file = store.RecordFile(folder / store.RECORDS, keep=done)
            with disk_full_at(folder):
                self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    @property
    def records(self) -> list[Json]:
        """All records so far."""
        return self._memory if self._file is None else self._file.records

    def add(self, record: Json) -> None:
        """Adds a round's record."""
        if self._folder is None or self._file is None or self._writer is None:
            self._memory.append(record)
            return
        self._file.add(record)
        with disk_full_at(self._folder):
            for part in ("train", "val", "test"):
                for name in ("loss", "overall", "minority"):
                    if record[part][name] is not None:
                        self._writer.add_scalar(f"{part}/{name}", record[part][name], record["round"])

    def flush(self) -> None:
        """Makes sure that the records are on disk."""
        if self._file is not None:
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None and self._file is not None and self._writer is not None:
            with disk_full_at(self._folder), contextlib.closing(self._writer):
                self._file.close()


class _Saver:
    """Writes checkpoints: every N rounds, or (by default) so seldom that they cost under 5% of the time.

    What a checkpoint holds is taken when its round ends: an exchange that fails later leaves no trace in it.
    """

    def __init__(self, folder: Path | None, host: Host, tap: proxies.ProxyTap, log: _Log, every: int | None) -> None:
        self._folder, self._host, self._tap, self._log, self._every = folder, host, tap, log, every
        self._unsaved: tuple[dict[str, Tensor], Json] | None = None
        self._cost, self._last = 0.05, time.perf_counter()

    def after_round(self, progress: Progress) -> None:
        """Remembers where the run is and, if it is time, saves it."""
        if self._folder is None:
            return
        tensors = {
            **tree.flatten(progress.server, "server"),
            **tree.prefixed("engine", self._host.tensors(progress.round_index)),
            **tree.prefixed("proxies", self._tap.tensors()),
        }
        names = ("round_index", "best_round", "best_score", "validation", "pending", "detail")
        known = {name: getattr(progress, name) for name in names}
        self._unsaved = tensors, {"progress": known, "blocks": self._host.blocks}
        due = (
            progress.round_index % self._every == 0
            if self._every
            else time.perf_counter() - self._last > 40 * self._cost
        )
        if due:
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
