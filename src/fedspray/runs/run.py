"""Carrying out a run: every seed through the training loop, with everything on disk that a crash must not lose."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from fedspray.algorithms.base import Algorithm
from fedspray.data import statistics
from fedspray.data.federation import Federation
from fedspray.engine.local import LocalEngine, single_blocks
from fedspray.engine.rounds import Progress, RoundSettings, run_rounds, start
from fedspray.engine.worker import Snapshot
from fedspray.errors import InputError, RunStopped
from fedspray.nn import tree
from fedspray.runs import predictions, proxies, store
from fedspray.runs.models import PersonalModel
from fedspray.runs.result import Json, RunResult, SeedResult
from fedspray.runs.settings import RunSettings, describe

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

OnRecord = Callable[[int, Json], None]
"""Called with the seed and every round's record."""


def run(
    federation: Federation,
    *,
    algorithm: str = "fedspray",
    backbone: str = "gcn",
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    preset: str | None = None,
    backbone_of: Mapping[str, str] | None = None,
    keep_split: bool = False,
    out: str | Path | None = None,
    threads: int = 1,
    on_record: OnRecord | None = None,
    **values: Any,
) -> RunResult:
    """Trains on a federation.

    Args:
        federation: the clients; each seed draws their splits anew, unless ``keep_split``.
        algorithm: a name from ``fedspray.algorithms.names()``, or ``package.module:Class``.
        backbone: a name from ``fedspray.backbones.names()``, or ``package.module:Class``.
        rounds: number of rounds; by default the preset's, or 300.
        seeds: each gives one result.
        preset: a named set of the algorithm's settings.
        backbone_of: clients that use another backbone, where the algorithm allows it.
        keep_split: use the federation's own splits for every seed.
        out: a new folder to keep everything in; None keeps nothing on disk.
        threads: torch's threads.
        on_record: called with the seed and each round's record.
        values: any setting of the algorithm, the backbone or the rounds.
    """
    if rounds is not None:
        values["rounds"] = rounds
    settings = RunSettings(
        algorithm=algorithm,
        backbone=backbone,
        preset=preset,
        values=values,
        backbone_of=backbone_of or {},
        seeds=tuple(seeds),
        keep_split=keep_split,
    )
    folder = None if out is None else begin(Path(out), federation, settings, source=None, threads=threads)
    return carry_out(federation, settings, folder, threads=threads, on_record=on_record)


def begin(
    folder: Path, federation: Federation, settings: RunSettings, source: Json | None, *, threads: int = 1
) -> Path:
    """Creates the run folder, with all that is needed to start again to the same bits."""
    settings.build_for(federation)  # refuse bad settings before anything is written
    store.new_folder(folder)
    content = {
        **_header(federation, settings),
        "run": asdict(settings),
        "source": source,
        "fingerprint": federation.fingerprint(),
        "threads": threads,
        "versions": store.versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    store.write_json(folder / "settings.json", content)
    store.write_json(folder / store.FEDERATION, statistics.describe(federation).to_json())
    return folder


def load_settings(folder: Path) -> tuple[RunSettings, Json]:
    """The settings of an existing run, and the whole of its settings file."""
    content = store.read_json(folder / "settings.json")
    kept = {**content["run"], "seeds": tuple(content["run"]["seeds"])}
    return RunSettings(**kept), content


def carry_out(
    federation: Federation,
    settings: RunSettings,
    folder: Path | None,
    *,
    threads: int = 1,
    checkpoint_every: int | None = None,
    on_record: OnRecord | None = None,
) -> RunResult:
    """Runs all seeds, from their checkpoints where there are any, and writes the result."""
    torch.set_num_threads(threads)
    if folder is not None and (folder / "settings.json").exists():
        stored = store.read_json(folder / "settings.json")["fingerprint"]
        if stored != federation.fingerprint():
            raise InputError(f"{folder} was begun on other data: its graphs had fingerprint {stored[:12]}…")
    results = [
        _Seed(
            federation if settings.keep_split else federation.with_split(seed),
            settings,
            seed,
            folder,
            checkpoint_every,
            on_record,
        ).result()
        for seed in settings.seeds
    ]
    outcome = RunResult(_header(federation, settings), results)
    if folder is not None:
        store.write_json(folder / "result.json", outcome.summary())
    return outcome


def _header(federation: Federation, settings: RunSettings) -> Json:
    algorithm, rounds = settings.build()
    data = {name: value for name, value in federation.settings.items() if name != "split_seed"}
    return {
        "dataset": federation.name,
        "algorithm": settings.algorithm,
        "backbone": settings.backbone,
        "preset": settings.preset,
        "backbone_of": dict(settings.backbone_of),
        "settings": describe(algorithm, rounds),
        "federation": data | {"num_clients": federation.num_clients},
    }


class _Seed:
    """One seed of a run."""

    def __init__(
        self,
        federation: Federation,
        settings: RunSettings,
        seed: int,
        folder: Path | None,
        checkpoint_every: int | None,
        on_record: OnRecord | None,
    ) -> None:
        self._federation, self._settings, self._seed = federation, settings, seed
        self._every, self._on_record = checkpoint_every, on_record
        self._algorithms, self._rounds = settings.build_for(federation)
        self._dtype = getattr(torch, settings.dtype)
        self._folder = None if folder is None else folder / f"seed-{seed}"
        self._names = [client.name for client in federation.clients]

    def result(self) -> SeedResult:
        """The stored result of a finished seed, or the result of running it to its end."""
        if self._folder is not None and (self._folder / "result.json").exists():
            return self._stored()
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
        meta, tensors = self._read_checkpoint()
        engine = self._engine(meta)
        progress = start(self._algorithms[0], self._federation.task, self._seed, self._dtype)
        if meta is not None:
            server = tree.restore(progress.server, tree.part_of(tensors, "server"))
            progress = Progress(server, **meta["progress"])
            engine.load(tree.part_of(tensors, "engine"), progress.round_index)
        tap = proxies.ProxyTap(engine)
        tap.load(tree.part_of(tensors, "proxies"))
        with _Log(self._folder, progress) as log:
            saver = _Saver(self._folder, engine, tap, log, self._every)

            def on_record(record: Json) -> None:
                log.add(record)
                if self._on_record is not None:
                    self._on_record(self._seed, record)

            try:
                progress = run_rounds(
                    self._algorithms[0],
                    tap,
                    self._rounds,
                    self._seed,
                    progress,
                    on_record=on_record,
                    on_round=saver.after_round,
                )
            except (KeyboardInterrupt, RunStopped):
                saver.save()  # where the last finished round left it
                raise
            log.flush()
            return self._finish(engine, tap, progress, log.records)

    def _engine(self, meta: Json | None) -> LocalEngine:
        blocks = meta["blocks"] if meta is not None else None
        if blocks is None and self._rounds.participation < 1:
            blocks = single_blocks(self._federation)
        return LocalEngine(self._federation, self._algorithms, self._seed, blocks=blocks, dtype=self._dtype)

    def _read_checkpoint(self) -> tuple[Json | None, dict[str, torch.Tensor]]:
        if self._folder is None or not (self._folder / store.CHECKPOINT).exists():
            return None, {}
        tensors, meta = store.read_tensors(self._folder / store.CHECKPOINT)
        return meta, tensors

    def _finish(
        self, engine: LocalEngine, tap: proxies.ProxyTap, progress: Progress, records: list[Json]
    ) -> SeedResult:
        models = {
            self._names[k]: self._model(k, engine.algorithm_of(k), snapshot)
            for k, snapshot in engine.personal_models().items()
        }
        metrics = _metrics(progress, records, self._names, models, self._rounds)
        if self._folder is not None:
            (self._folder / "models").mkdir(exist_ok=True)
            for name, model in models.items():
                model.save(self._folder / "models" / f"{name}.safetensors")
            seen = tap.at(metrics["best_round"])
            if seen is not None:
                seen.save(self._folder / proxies.FILE)
            predictions.TestPredictions.of_models(self._federation, models).save(self._folder / predictions.FILE)
            store.write_json(self._folder / "result.json", metrics)
            (self._folder / store.CHECKPOINT).unlink(missing_ok=True)
        return SeedResult(self._seed, metrics, records, models)

    def _model(self, k: int, algorithm: Algorithm[Any, Any], snapshot: Snapshot) -> PersonalModel:
        own = replace(
            self._settings,
            backbone=self._settings.backbone_of.get(self._names[k], self._settings.backbone),
            backbone_of={},
        )
        return PersonalModel(self._names[k], k, algorithm, self._federation.task, snapshot, own)

    def _stored(self) -> SeedResult:
        assert self._folder is not None
        metrics = store.read_json(self._folder / "result.json")
        models = {
            name: PersonalModel.load(self._folder / "models" / f"{name}.safetensors") for name in metrics["models"]
        }
        log = store.RecordFile(self._folder / store.RECORDS, keep=self._rounds.rounds)
        log.close()
        return SeedResult(self._seed, metrics, log.records, models)


def _metrics(
    progress: Progress,
    records: list[Json],
    names: list[str],
    models: Mapping[str, PersonalModel],
    rounds: RoundSettings,
) -> Json:
    """The reported round as flat JSON: test metrics at the top, validation and details below."""
    detail = progress.detail
    test = detail["test"]
    return {
        "best_round": detail["best_round"],
        "rounds": rounds.rounds,
        **{name: test[name] for name in ("overall", "minority", "majority", "balanced")},
        **{name: test[name] for name in ("overall_client_mean", "minority_client_mean", "macro_f1", "recall", "loss")},
        "auc": detail["auc"],
        "by_homophily": detail["by_homophily"],
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
        "models": {name: model.digest() for name, model in models.items()},
    }


class _Log:
    """The records of a seed, in memory and, where there is a folder, on disk and for TensorBoard."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self._file: store.RecordFile | None = None
        self._writer: SummaryWriter | None = None
        self._memory: list[Json] = []
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            done = max(0, progress.round_index - 1)
            self._file = store.RecordFile(folder / store.RECORDS, keep=done)
            self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    @property
    def records(self) -> list[Json]:
        """All records so far."""
        return self._memory if self._file is None else self._file.records

    def add(self, record: Json) -> None:
        """Adds a round's record."""
        if self._file is None or self._writer is None:
            self._memory.append(record)
            return
        self._file.add(record)
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
        if self._file is not None and self._writer is not None:
            self._file.close()
            self._writer.close()


class _Saver:
    """Writes checkpoints: every N rounds, or (by default) so seldom that they cost under 5% of the time."""

    def __init__(
        self, folder: Path | None, engine: LocalEngine, tap: proxies.ProxyTap, log: _Log, every: int | None
    ) -> None:
        self._folder, self._engine, self._tap, self._log, self._every = folder, engine, tap, log, every
        self._progress: Progress | None = None
        self._cost, self._last = 0.05, time.perf_counter()

    def after_round(self, progress: Progress) -> None:
        """Remembers where the run is and, if it is time, saves it."""
        self._progress = progress
        due = (
            progress.round_index % self._every == 0
            if self._every
            else time.perf_counter() - self._last > 40 * self._cost
        )
        if due:
            self.save()

    def save(self) -> None:
        """Writes the last finished round as the checkpoint."""
        if self._folder is None or self._progress is None:
            return
        began = time.perf_counter()
        self._log.flush()
        progress = self._progress
        tensors = {
            **tree.flatten(progress.server, "server"),
            **tree.prefixed("engine", self._engine.tensors(progress.round_index)),
            **tree.prefixed("proxies", self._tap.tensors()),
        }
        known = {
            name: getattr(progress, name) for name in ("round_index", "best_round", "best_score", "pending", "detail")
        }
        store.write_tensors(
            self._folder / store.CHECKPOINT, tensors, {"progress": known, "blocks": self._engine.blocks}
        )
        self._last = time.perf_counter()
        self._cost = max(0.05, self._last - began)
