"""A run from start to end, wherever its clients are: seeds, rounds, checkpoints, results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedspray import files
from fedspray.data.federation import Roster
from fedspray.engine.local import Blocks
from fedspray.engine.rounds import Engine, Progress, run_rounds, start
from fedspray.errors import RunStopped
from fedspray.files import Json
from fedspray.nn import tree
from fedspray.runs import store
from fedspray.runs.callbacks import Callback, Log, Saver, tell
from fedspray.runs.interrupts import remembered_interrupts
from fedspray.runs.models import PersonalModel
from fedspray.runs.proxies import ProxyKeeper
from fedspray.runs.result import RunResult, SeedResult
from fedspray.runs.settings import Resolved


class Host(Engine, Protocol):
    """An engine that can save a run, and that has the clients' models at its end."""

    @property
    def blocks(self) -> Blocks:
        """Which clients are trained together."""

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """What a checkpoint of this round must hold besides the server's state, by name."""

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Restores what `tensors` held."""

    def models(self) -> Mapping[str, PersonalModel]:
        """The personal models stored here, by client."""

    def digests(self, models: Mapping[str, PersonalModel]) -> Mapping[str, str]:
        """sha256 of every client's personal model, here or elsewhere."""

    def against_local(self, models: Mapping[str, PersonalModel]) -> Json:
        """By client: the counts of `benefit.against_local`, if data and models are here."""

    def keep(self, folder: Path, models: Mapping[str, PersonalModel]) -> None:
        """Writes the rest of a finished seed's files."""


OpenHost = Callable[[int, Blocks | None], Host]
"""From a seed and a checkpoint's blocks (None: a new run) to the clients."""


def conduct(
    roster: Roster,
    run: Resolved,
    folder: Path | None,
    open_host: OpenHost,
    *,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Runs all seeds, from their checkpoints if any, and writes the result if there is a folder."""
    results = []
    for seed in run.settings.seeds:
        own = None if folder is None else folder / f"seed-{seed}"
        if own is not None and (own / "result.json").exists():
            results.append(SeedResult.load(own))
            continue
        tensors, meta = _checkpoint(own)
        host = open_host(seed, meta.get("blocks"))
        progress = start(run.algorithm, roster.task, seed, run.dtype)
        kept = ProxyKeeper(run.algorithm.uplink, tree.part_of(tensors, "proxies"))
        if meta:
            progress = Progress(tree.restore(progress.server, tree.part_of(tensors, "server")), **meta["progress"])
            progress = _without_the_gone(progress, host.client_ids)
            host.load(tree.part_of(tensors, "engine"), progress.round_index)
        with remembered_interrupts() as interrupts, closing(Log(own, progress)) as log:
            saver = Saver(own, host, {"proxies": kept.tensors}, log, checkpoint_every)
            told = partial(tell, [kept, log, *callbacks, saver], interrupts)
            tell(callbacks if meta else (), interrupts, "on_round", seed, progress)
            try:
                progress = run_rounds(
                    run.algorithm,
                    host,
                    run.rounds,
                    seed,
                    progress,
                    on_exchange=partial(told, "on_exchange"),
                    on_record=partial(told, "on_record", seed),
                    on_round=partial(told, "on_round", seed),
                    links=run.links,
                )
            except (KeyboardInterrupt, RunStopped):
                saver.save()  # where the last finished round left it
                raise
            log.flush()
            told("on_round", seed, progress)
            results.append(_result(seed, own, host, progress, log.records, kept, run))
            told("on_end", seed, results[-1])
    outcome = RunResult(header(roster, run), results)
    if folder is not None:
        files.write_sealed(folder / "result.json", outcome.summary())
    return outcome


def header(roster: Roster, run: Resolved) -> Json:
    """The header of a result: data set, algorithm, backbone and all settings."""
    data = {name: value for name, value in roster.settings.items() if name != "split_seed"}
    return {
        "dataset": roster.name,
        "algorithm": run.settings.algorithm,
        "backbone": run.settings.backbone,
        "preset": run.settings.preset,
        "backbone_of": dict(run.settings.backbone_of),
        "link": list(run.settings.link),
        "settings": run.values,
        "federation": data | {"num_clients": roster.num_clients},
        "device": run.settings.device,
    }


def _checkpoint(folder: Path | None) -> tuple[dict[str, Tensor], Json]:
    """The state a seed resumes from; empty for a new one, whose folder it creates."""
    if folder is None:
        return {}, {}
    folder.mkdir(exist_ok=True)
    tensors, meta = store.read_checkpoint(folder)
    return tensors, meta or {}


def _without_the_gone(progress: Progress, client_ids: Sequence[int]) -> Progress:
    """Forgets the counts of clients that left for good; the next round is the best of those that are left."""
    kept = {k: rows for k, rows in progress.validation.items() if int(k) in client_ids}
    if len(kept) == len(progress.validation):
        return progress
    return replace(progress, validation=kept, best_score=None)


def _result(
    seed: int,
    folder: Path | None,
    host: Host,
    progress: Progress,
    records: list[Json],
    kept: ProxyKeeper,
    run: Resolved,
) -> SeedResult:
    """The result of a seed that ran to its end, written into its folder."""
    models = host.models()
    names = dict(zip(host.client_ids, host.client_names, strict=True))
    metrics = _metrics(progress.detail, records, names, progress.round_index)
    metrics |= {"models": dict(host.digests(models)), **run.spent(progress.round_index)}
    if compared := host.against_local(models):
        metrics["against_local"] = compared
    result = SeedResult(seed, metrics, records, models, kept.at(metrics["best_round"]))
    if folder is not None:
        result.save(folder)
        host.keep(folder, models)
        files.write_sealed(folder / "result.json", metrics)
        store.drop_checkpoints(folder)
    return result


def _metrics(detail: Json, records: list[Json], names: Mapping[int, str], rounds: int) -> Json:
    """The reported round as flat JSON: test metrics at the top, validation and details below."""

    def total(name: str) -> Any:
        return sum(record[name] for record in records)

    return {
        "best_round": detail["best_round"],
        "rounds": rounds,
        **detail["test"],
        **{name: detail[name] for name in ("by_homophily", "recall_by_budget")},
        "clients": {names[int(k)]: values for k, values in detail["clients"].items()},
        **({"sums_only": True} if detail.get("sums_only") else {}),
        "val": detail["val"],
        "train": detail["train"],
        "bytes_up": total("bytes_up"),
        "bytes_down": total("bytes_down") + detail["closing"]["bytes_down"],
        "bytes_evaluation": total("bytes_evaluation") + detail["closing"]["bytes_evaluation"],
        "failures": sum(len(record["failed"]) for record in records),
        "seconds": total("seconds"),
        "cpu_seconds": total("cpu_seconds"),
    }
