"""``fedspray run``: train an algorithm on a federation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedspray import files
from fedspray.cli import knobs
from fedspray.cli.flags import AsJson, argument, examples, flag
from fedspray.cli.output import Output
from fedspray.display import percent
from fedspray.errors import InputError
from fedspray.experiment import Way

if TYPE_CHECKING:
    from fedspray.data.federation import Federation
    from fedspray.experiment import Experiment
    from fedspray.runs.callbacks import OnRecord
    from fedspray.runs.settings import Resolved

SECONDS_BETWEEN_LINES = 10.0
"""Of progress, where there is no terminal."""
MAX_SENTENCES = 30
"""Clients printed; result.json has all of them."""


@examples(
    "fedspray run --dataset banks --rounds 50",
    "fedspray run --dataset pubmed --algorithm fedavg --backbone sage --seeds 5 --out runs/pubmed",
    "fedspray run experiment.toml --set distill_weight=2",
    "fedspray run --resume runs/pubmed",
)
def run(
    config: Annotated[Path | None, argument("An experiment in TOML; flags override its values.", "FILE.toml")] = None,
    /,
    *,
    given: knobs.Experiment | None = None,
    out: Annotated[Path | None, flag("A new folder for everything.", "DIR", box="Files", default="runs/…")] = None,
    resume: Annotated[
        Path | None, flag("Continue the run in this folder, to the same bits.", "DIR", box="Files")
    ] = None,
    way: knobs.Way | None = None,
    as_json: AsJson = False,
) -> None:
    """Train an algorithm on a federation and report overall and minority accuracy."""
    output, chosen = Output(as_json), Way(**knobs.values(way))
    if chosen.track is not None:
        from fedspray.report import tracking

        tracking.check(chosen.track)
    if resume is not None:
        if given or config or out:
            named = ", ".join(sorted(given or ()) or (["FILE.toml"] if config else ["out"]))
            raise InputError(f"--resume reads its settings from the folder: remove {named}")
        _resume(output, resume, chosen)
    else:
        _begin(output, knobs.read(config, given), out, chosen)


def _begin(output: Output, experiment: Experiment, out: Path | None, way: Way) -> None:
    from fedspray.runs.settings import check_meaning, resolve

    settings = experiment.run
    resolved = resolve(settings)  # check settings before touching data
    check_meaning(settings.algorithm, settings.values, None if settings.backbone_of else settings.backbone)
    if out is not None:
        files.check_new(out, "--out", resumable=True)
    federation = knobs.open_federation(output, experiment.data.to_json())
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{federation.name}-{settings.algorithm}-{settings.backbone}-{moment}".replace(":", ".")
    source = experiment.data.located().to_json()
    _train(output, out or _unused(Path("runs") / name), federation, resolved, way, source)


def _unused(folder: Path) -> Path:
    """The folder, with a number if a run of the same second has its name."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(each for each in chain([folder], numbered) if not each.exists())


def _resume(output: Output, folder: Path, way: Way) -> None:
    """Runs the unfinished rest of a run folder."""
    from fedspray import stored
    from fedspray.experiment import Data
    from fedspray.federate import open_data
    from fedspray.runs import store
    from fedspray.runs.run import load_settings
    from fedspray.runs.settings import resolve

    settings, content = load_settings(folder)
    if (folder / "result.json").exists():
        _show(output, folder, stored.read(folder / "result.json", stored.Result))
        return
    if content["source"] is None:
        raise InputError(f"{folder} was started from Python: continue it there with fs.resume")
    with output.busy(f"preparing {content['dataset']} …"):
        federation = open_data(Data.of(**content["source"]))
    if content["versions"] != store.versions():
        output.note("this run started with other library versions: its results may differ from now on")
    own = replace(way, threads=way.threads or content["threads"])
    _train(output, folder, federation, resolve(settings), own, content["source"], resumed=True)


def _train(
    output: Output,
    folder: Path,
    federation: Federation,
    run: Resolved,
    way: Way,
    source: dict[str, Any],
    *,
    resumed: bool = False,
) -> None:
    from fedspray.report.tracking import tracked
    from fedspray.runs.conduct import header
    from fedspray.runs.run import carry_out, prepared

    try:
        with (
            tracked(way.track, header(federation.roster, run)) as (trackers, keep),
            show_progress(output, run.rounds.rounds, run.settings.seeds) as on_record,
            prepared(federation, run, folder, way, source, resumed=resumed) as how,
        ):
            result = carry_out(federation, run, folder, **how, callbacks=trackers, on_record=on_record)
            keep(result)
    except KeyboardInterrupt:
        output.note(f"stopped and saved; continue with: fedspray run --resume {folder}")
        raise
    _show(output, folder, result.summary())


def _show(output: Output, folder: Path, summary: dict[str, Any]) -> None:
    from fedspray.report import findings
    from fedspray.report.tables import run_table
    from fedspray.runs import benefit

    if not output.as_json:
        output.show(run_table(summary))
    most, patience = (summary["settings"].get(name) for name in ("rounds", "patience"))
    if patience and any(seed["rounds"] < most for seed in summary["seeds"]):
        ended = ", ".join(str(seed["rounds"]) for seed in summary["seeds"])
        output.note(f"ended after {ended} of {most} rounds: {patience} in a row were no better than an earlier one")
    for sentence in benefit.sentences(summary)[:MAX_SENTENCES]:
        output.note(sentence)
    for warning in benefit.warnings(summary):
        output.note(f"warning: {warning}")
    private = dict.fromkeys(findings.privacy(seed["privacy"]) for seed in summary["seeds"] if "privacy" in seed)
    for sentence in private:
        output.note(sentence)
    if any(seed.get("sums_only") for seed in summary["seeds"]):
        output.note("figures of single clients exist only at the clients: the server saw sums only (secure-sum)")
    elif "benefit" not in summary and summary["algorithm"] != "local" and not private:
        output.note("to see which clients federating helps, add --baseline local")
    output.note(f"saved in {folder}; view it with: fedspray report {folder}")
    output.result(summary)


@contextmanager
def show_progress(
    output: Output, rounds: int, seeds: tuple[int, ...], *, label: str | None = None
) -> Iterator[OnRecord]:
    """A live line for each seed on a terminal; elsewhere a plain line now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not output.messages.is_terminal:
        yield _plain_lines(output, rounds, label)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("val loss {task.fields[loss]}  overall {task.fields[overall]}  minority {task.fields[minority]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=output.messages, transient=True) as progress:
        tasks = {
            seed: progress.add_task(label or f"seed {seed}", total=rounds, loss="–", overall="–", minority="–")
            for seed in seeds
        }

        def show(seed: int, record: dict[str, Any]) -> None:
            val = record["val"]
            progress.update(
                tasks[seed],
                completed=record["round"],
                loss="–" if val["loss"] is None else f"{val['loss']:.3f}",
                overall=percent(val["overall"]),
                minority=percent(val["minority"]),
            )

        yield show


def _plain_lines(output: Output, rounds: int, label: str | None) -> OnRecord:
    if label is not None:
        output.note(f"{label}: {rounds} rounds …")
    last = time.monotonic()

    def show(seed: int, record: dict[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            overall, minority = (percent(record["val"][name]) for name in ("overall", "minority"))
            done = f"{label or f'seed {seed}'}: round {record['round']} of {rounds}"
            output.note(f"{done}, validation accuracy {overall} overall, {minority} minority")

    return show
