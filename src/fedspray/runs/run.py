"""A run with all its clients in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedspray import algorithms, files, stored
from fedspray.algorithms.base import Algorithm
from fedspray.data import statistics
from fedspray.data.federation import Federation, Roster
from fedspray.engine.cluster import Cluster, opened
from fedspray.engine.device import describe_device
from fedspray.engine.local import Blocks, LocalEngine, choose_blocks, single_blocks
from fedspray.errors import InputError
from fedspray.experiment import RoundSettings, RunSettings, Way
from fedspray.files import Json
from fedspray.runs import benefit, nodes, store
from fedspray.runs.callbacks import Callback, Listener, OnRecord
from fedspray.runs.conduct import conduct, header
from fedspray.runs.models import PersonalModel
from fedspray.runs.result import RunResult
from fedspray.runs.settings import Resolved, resolve


def begin(
    folder: Path, federation: Federation, run: RunSettings | Resolved, source: Json | None, *, threads: int = 1
) -> Path:
    """Creates the run folder, with everything needed to start again to the same bits."""
    run = resolve(run)
    federation.check_labels(run.settings.keep_split)
    splits = federation.split_fingerprint() if run.settings.keep_split else None
    begin_with(folder, federation.roster, run, source, federation.fingerprint(), splits=splits, threads=threads)
    _describe(folder, federation)
    return folder


def _describe(folder: Path, federation: Federation) -> None:
    files.write_sealed(folder / store.FEDERATION, statistics.describe(federation).to_json())


def begin_with(
    folder: Path,
    roster: Roster,
    run: RunSettings | Resolved,
    source: Json | None,
    fingerprint: str | None,
    *,
    splits: str | None = None,
    threads: int = 1,
) -> Path:
    """The same for data elsewhere: ``fingerprint`` is None if unknown here.

    ``splits`` is the fingerprint of kept splits; None if the seeds draw them.
    """
    run = resolve(run)
    run.for_clients(roster)  # check settings before writing anything
    device = describe_device(run.device)
    files.new_folder(folder, resumable=fingerprint is not None)
    content = {
        **header(roster, run),
        "run": run.settings.to_json(),
        "source": source,
        "fingerprint": fingerprint,
        "splits": splits,
        "threads": threads,
        "device": device,
        "versions": store.versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    files.write_sealed(folder / "settings.json", content)
    return folder


def load_settings(folder: Path) -> tuple[RunSettings, Json]:
    """The settings of an existing run, and the whole of its settings file."""
    content = stored.read(folder / "settings.json", stored.Settings)
    return RunSettings(**content["run"]), content


def carry_out(
    federation: Federation,
    run: RunSettings | Resolved,
    folder: Path | None,
    *,
    threads: int = 1,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    on_record: OnRecord | None = None,
    begun: bool = False,
    cluster: Cluster | None = None,
) -> RunResult:
    """Runs all seeds here or on a cluster, from their checkpoints if any; writes into the folder `begin` made, if any.

    Unless the folder was just ``begun`` for this federation, its data is checked. Checkpoints are written every so many
    rounds, or by time. Threads train blocks of clients in parallel, or work inside products.
    """
    run = resolve(run)
    federation.check_labels(run.settings.keep_split)
    open_host = partial(_LocalHost, federation, run, run.for_clients(federation.roster), threads, cluster)
    if folder is not None and not begun and (folder / "settings.json").exists():
        _check_same_data(folder, federation)
        if not (folder / store.FEDERATION).exists():  # killed just before it was written
            _describe(folder, federation)
    heard = [*callbacks, *([] if on_record is None else [Listener(on_record)])]
    with nullcontext() if folder is None else files.only_writer(folder):
        result = conduct(federation.roster, run, folder, open_host, checkpoint_every=checkpoint_every, callbacks=heard)
    return replace(result, folder=folder, writer=partial(_write, federation, run, threads))


@contextmanager
def prepared(
    federation: Federation, run: Resolved, folder: Path | None, way: Way, source: Json | None, *, resumed: bool = False
) -> Iterator[Json]:
    """The machines that are asked for and, unless a run is resumed, its folder: what `carry_out` takes besides.

    ``source`` are the data's knobs, if known.
    """
    saved, threads = Path((source or {}).get("dataset", "")), way.threads or 1
    shared = saved if (saved / "manifest.json").is_file() else None
    with opened(way.engine, way.cluster, threads=threads, device=run.device, folder=shared) as cluster:
        if folder is not None and not resumed:
            begin(folder, federation, run, source, threads=threads)
        how = {"threads": threads, "checkpoint_every": way.checkpoint_every, "cluster": cluster}
        yield {**how, "begun": not resumed}


def _write(federation: Federation, run: Resolved, threads: int, result: RunResult, folder: Path) -> None:
    """Writes the folder of a run made without one."""
    begin(folder, federation, run, source=None, threads=threads)
    for seed in result.seeds:
        own = files.new_folder(folder / f"seed-{seed.seed}")
        records = store.RecordFile(own / store.RECORDS, keep=0)
        for record in seed.records:
            records.add(record)
        records.close()
        seed.save(own)
        split = federation if run.settings.keep_split else federation.with_split(seed.seed)
        nodes.NodeTable.from_models(split, seed.models).save(own / nodes.FILE)
        files.write_sealed(own / "result.json", seed.metrics)
    files.write_sealed(folder / "result.json", result.summary())


def _check_same_data(folder: Path, federation: Federation) -> None:
    content = stored.read(folder / "settings.json", stored.Settings)
    own, splits = content["fingerprint"], content.get("splits")  # folders of older versions have no splits
    if own != federation.fingerprint():
        raise InputError(f"{folder} was started on other data: its graphs had fingerprint {str(own)[:12]}…")
    if splits is not None and splits != federation.split_fingerprint():
        raise InputError(f"{folder} was started on other splits: its own had fingerprint {splits[:12]}…")


def _baseline(run: Resolved, seed: int) -> RunSettings:
    """Local with those of a run's settings that it has, on the current splits."""
    owners = (algorithms.find("local"), type(run.algorithm.backbone), RoundSettings)
    known = {each.name for owner in owners for each in fields(owner)}
    return replace(
        run.settings,
        algorithm="local",
        preset=None,
        values={name: value for name, value in run.values.items() if name in known},
        seeds=(seed,),
        keep_split=True,
        baseline=None,
    )


class _LocalHost(LocalEngine):
    """The clients of one seed and their models, in this process or on a cluster; ``blocks`` are a checkpoint's."""

    def __init__(
        self,
        federation: Federation,
        run: Resolved,
        algorithms: Sequence[Algorithm[Any, Any]],
        threads: int,
        cluster: Cluster | None,
        seed: int,
        blocks: Blocks | None,
    ) -> None:
        if not run.settings.keep_split:
            federation = federation.with_split(seed)
        if blocks is None and run.rounds.participation < 1:
            blocks = single_blocks(federation)
        home = None
        if cluster is not None:
            blocks = blocks or choose_blocks(federation, algorithms, at_once=threads)
            home = cluster.home(federation, algorithms, seed, run.dtype, len(blocks))
        super().__init__(
            federation,
            algorithms,
            seed,
            blocks=blocks,
            dtype=run.dtype,
            threads=threads,
            device=run.device,
            links=run.links,
            home=home,
        )
        self._run, self._algorithms, self._seed, self._threads = run, algorithms, seed, threads

    def against_local(self, models: Mapping[str, PersonalModel]) -> Json:
        if self.clients_are_hidden:
            return {}
        alone = None
        if self._run.settings.baseline is not None:
            baseline = _baseline(self._run, self._seed)
            alone = carry_out(self._federation, baseline, None, threads=self._threads).models
        return dict(benefit.against_local(self._federation, models, alone))

    def keep(self, folder: Path, models: Mapping[str, PersonalModel]) -> None:
        if not self.clients_are_hidden:
            nodes.NodeTable.from_models(self._federation, models).save(folder / nodes.FILE)

    def models(self) -> Mapping[str, PersonalModel]:
        found, task = {}, self._federation.task
        for k, snapshot in self.personal_models().items():
            client = self._federation.clients[k]
            settings = self._run.settings.of_client(client.name)
            model = PersonalModel(client.name, k, self._algorithms[k], task, snapshot, settings)
            found[client.name] = model.described(client, self._federation.name)
        return found

    def digests(self, models: Mapping[str, PersonalModel]) -> Mapping[str, str]:
        return {name: model.digest() for name, model in models.items()}
