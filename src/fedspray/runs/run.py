"""A run with all its clients in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedspray import files
from fedspray.algorithms.base import Algorithm
from fedspray.data import statistics
from fedspray.data.federation import Federation, Roster
from fedspray.data.graph import as_integers
from fedspray.engine.local import Blocks, LocalEngine, single_blocks
from fedspray.errors import InputError
from fedspray.experiment import DTYPES, RunSettings
from fedspray.runs import nodes, store
from fedspray.runs.conduct import Host, OnRecord, conduct, header
from fedspray.runs.models import PersonalModel
from fedspray.runs.result import Json, RunResult
from fedspray.runs.settings import build, build_for, check_meaning, refuse_text, torch_dtype


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
    dtype: str = DTYPES[0],
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
        dtype: ``float32``, or ``float64``: of weights and messages.
        out: a new folder to keep everything in; None keeps nothing on disk.
        threads: for blocks of clients at the same time, or inside products.
        on_record: called with the seed and each round's record.
        values: any setting of the algorithm, the backbone or the rounds.
    """
    if not isinstance(federation, Federation):
        raise InputError(f"federation is a {type(federation).__name__}, but must be a Federation: see build_federation")
    if not isinstance(seeds, Iterable):
        raise InputError(f"seeds is {seeds!r}, but must be a list of whole numbers: range({seeds}) for that many")
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads is {threads!r}, but must be at least 1")
    check_meaning(algorithm, values, None if backbone_of else backbone)
    if rounds is not None:
        values["rounds"] = rounds
    settings = RunSettings(
        algorithm=algorithm,
        backbone=backbone,
        preset=preset,
        values=values,
        backbone_of=backbone_of or {},
        seeds=tuple(as_integers("seeds", list(seeds)).tolist()),
        keep_split=keep_split,
        dtype=dtype,
    )
    refuse_text(settings)
    folder = None if out is None else begin(Path(out), federation, settings, source=None, threads=threads)
    return carry_out(federation, settings, folder, threads=threads, on_record=on_record)


def begin(
    folder: Path, federation: Federation, settings: RunSettings, source: Json | None, *, threads: int = 1
) -> Path:
    """Creates the run folder, with all that is needed to start again to the same bits."""
    federation.check_labels(settings.keep_split)
    splits = federation.split_fingerprint() if settings.keep_split else None
    begin_with(folder, federation.roster, settings, source, federation.fingerprint(), splits=splits, threads=threads)
    _describe(folder, federation)
    return folder


def _describe(folder: Path, federation: Federation) -> None:
    files.write_sealed(folder / store.FEDERATION, statistics.describe(federation).to_json())


def begin_with(
    folder: Path,
    roster: Roster,
    settings: RunSettings,
    source: Json | None,
    fingerprint: str | None,
    *,
    splits: str | None = None,
    threads: int = 1,
) -> Path:
    """The same for data that are elsewhere: ``fingerprint`` is None if nobody here can know it.

    ``splits`` is the fingerprint of the splits, where they are kept; None where the seeds draw them.
    """
    build_for(settings, roster)  # refuse bad settings before anything is written
    store.new_folder(folder, resumable=fingerprint is not None)
    content = {
        **header(roster, settings),
        "run": asdict(settings),
        "source": source,
        "fingerprint": fingerprint,
        "splits": splits,
        "threads": threads,
        "versions": store.versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    files.write_sealed(folder / "settings.json", content)
    return folder


def load_settings(folder: Path) -> tuple[RunSettings, Json]:
    """The settings of an existing run, and the whole of its settings file."""
    content = files.read_json(folder / "settings.json")
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
    """Runs all seeds here, from their checkpoints where there are any, and writes the result."""
    federation.check_labels(settings.keep_split)
    if folder is not None and (folder / "settings.json").exists():
        _check_same_data(folder, federation)
        if not (folder / store.FEDERATION).exists():  # killed just before it was written
            _describe(folder, federation)

    def open_host(seed: int, algorithms: list[Algorithm[Any, Any]], blocks: Blocks | None) -> Host:
        own = federation if settings.keep_split else federation.with_split(seed)
        return _Here(own, settings, algorithms, seed, blocks, threads)

    with nullcontext() if folder is None else files.only_writer(folder):
        result = conduct(
            federation.roster, settings, folder, open_host, checkpoint_every=checkpoint_every, on_record=on_record
        )
    return replace(result, folder=folder, writer=partial(_write, federation, settings, threads))


def _write(federation: Federation, settings: RunSettings, threads: int, result: RunResult, folder: Path) -> None:
    """Writes the folder of a run that was carried out without one."""
    begin(folder, federation, settings, source=None, threads=threads)
    for seed in result.seeds:
        own = store.new_folder(folder / f"seed-{seed.seed}")
        records = store.RecordFile(own / store.RECORDS, keep=0)
        for record in seed.records:
            records.add(record)
        records.close()
        seed.save(own)
        split = federation if settings.keep_split else federation.with_split(seed.seed)
        nodes.NodeTable.from_models(split, seed.models).save(own / nodes.FILE)
        files.write_sealed(own / "result.json", seed.metrics)
    files.write_sealed(folder / "result.json", result.summary())


def _check_same_data(folder: Path, federation: Federation) -> None:
    content = files.read_json(folder / "settings.json")
    stored, splits = content["fingerprint"], content.get("splits")  # folders of older versions have no splits
    if stored != federation.fingerprint():
        raise InputError(f"{folder} was begun on other data: its graphs had fingerprint {str(stored)[:12]}…")
    if splits is not None and splits != federation.split_fingerprint():
        raise InputError(f"{folder} was begun on other splits: its own had fingerprint {splits[:12]}…")


class _Here(LocalEngine):
    """All clients in this process, and their models."""

    def __init__(
        self,
        federation: Federation,
        settings: RunSettings,
        algorithms: list[Algorithm[Any, Any]],
        seed: int,
        blocks: Blocks | None,
        threads: int,
    ) -> None:
        if blocks is None and build(settings)[1].participation < 1:
            blocks = single_blocks(federation)
        super().__init__(federation, algorithms, seed, blocks=blocks, dtype=torch_dtype(settings), threads=threads)
        self._settings, self._roster = settings, federation.roster

    def keep(self, folder: Path, models: Mapping[str, PersonalModel]) -> None:
        nodes.NodeTable.from_models(self._federation, models).save(folder / nodes.FILE)

    def models(self) -> Mapping[str, PersonalModel]:
        names = self._roster.clients
        return {
            names[k]: PersonalModel(
                names[k], k, self.algorithm_of(k), self._roster.task, snapshot, self._settings.of_client(names[k])
            )
            for k, snapshot in self.personal_models().items()
        }

    def digests(self) -> Mapping[str, str]:
        return {name: model.digest() for name, model in self.models().items()}
