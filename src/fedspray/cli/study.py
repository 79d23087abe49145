"""What `compare`, `sweep` and `tune` share: options, the plan from file and flags, and one progress display."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspray.cli import options
from fedspray.cli.output import Output
from fedspray.errors import InputError, RunStopped

if TYPE_CHECKING:
    from fedspray.studies.cells import Cell
    from fedspray.studies.grid import Grid, Outcome
    from fedspray.studies.plan import Plan

_WORK, _FILES, _TRAINING = "Work", "Files", "Training"


def _option(flag: str, text: str, metavar: str, panel: str = _TRAINING, **more: Any) -> Any:
    return typer.Option(flag, help=text, metavar=metavar, rich_help_panel=panel, **more)


Config = Annotated[
    Path | None, typer.Argument(help="A study in TOML; flags override its values.", metavar="[FILE.toml]")
]
Datasets = Annotated[
    list[str] | None,
    _option(
        "--dataset",
        "A name, graph or folder, as for `fedspray run`; repeatable. [dim]default: banks[/dim]",
        "NAME|FILE|DIR",
        options.DATA_PANEL,
    ),
]
Algorithms = Annotated[
    list[str] | None,
    _option("--algorithm", "A name from `fedspray algorithms`; repeatable. [dim]default: fedspray[/dim]", "NAME"),
]
Backbones = Annotated[
    list[str] | None,
    _option("--backbone", "gcn, sgc, sage, mlp, gat, …; repeatable. [dim]default: gcn[/dim]", "NAME"),
]
Rounds = Annotated[int | None, _option("--rounds", "Number of rounds. [dim]default: 300[/dim]", "R", min=1)]
Seeds = Annotated[int | None, _option("--seeds", "The seeds 0 to N-1. [dim]default: 1[/dim]", "N", min=1)]
Settings = Annotated[
    list[str] | None,
    _option(
        "--set",
        "Any setting, for all cells or for those of a data set, method or backbone (fedspray:distill_weight=2).",
        "[OWNER:]NAME=VALUE",
    ),
]
Jobs = Annotated[
    int | None, _option("--jobs", "Cells at a time. [dim]default: cores / threads[/dim]", "N", _WORK, min=1)
]
Threads = Annotated[int, _option("--threads", "Threads of each worker.", "N", _WORK, min=1)]
Backend = Annotated[str, _option("--backend", "joblib's back end: loky (here), dask or ray.", "NAME", _WORK)]
Cluster = Annotated[
    str | None, _option("--cluster", "Address of the Dask scheduler or the Ray head.", "ADDRESS", _WORK)
]
Cells = Annotated[
    Path, _option("--cells", "Where finished cells are kept and found.", "DIR", _FILES, show_default="studies/cells")
]
KeepRuns = Annotated[
    bool,
    typer.Option("--keep-runs", help="Keep the run folder of every cell, with its models.", rich_help_panel=_FILES),
]
Out = Annotated[
    Path | None,
    _option("--out", "A folder for the results. [dim]default: studies/ and the file's name[/dim]", "DIR", _FILES),
]

CELLS = Path("studies/cells")


@dataclass(frozen=True)
class Work:
    """How cells are run: the options of the panels Work and Files."""

    output: Output
    cells: Path
    jobs: int | None = None
    threads: int = 1
    backend: str = "loky"
    cluster: str | None = None
    keep_runs: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    """How all cells ended that were asked for so far."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Work:
        """From a command's arguments by name, its ``locals()``."""
        work = cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})
        if work.cells.exists() and not work.cells.is_dir():
            raise InputError(f"--cells {work.cells} is not a folder, but finished cells are kept in one")
        return work

    def run(self, title: str, cells: Sequence[Cell]) -> list[Outcome]:
        """Runs cells with one progress display, and says how each ended."""
        from fedspray.studies.backends import Workers
        from fedspray.studies.grid import Grid

        cores = len(os.sched_getaffinity(0))
        jobs = self.jobs or max(1, cores // self.threads)
        if self.backend == "loky" and jobs * self.threads > cores:
            self.output.note(f"{jobs} jobs with {self.threads} thread(s) each share {cores} cores: this is slower")
        workers = Workers(jobs, self.threads, self.backend, self.cluster)
        with self.output.busy("preparing data …"):
            grid = Grid(cells, self.cells, workers, self.keep_runs)
        if grid.num_stored:
            self.output.note(f"{title}: {grid.num_stored} of {grid.total} cells are finished already")
        try:
            with _display(self.output, title, grid) as on_outcome:
                outcomes = grid.run(on_outcome)
        except KeyboardInterrupt:
            done = grid.num_finished
            self.output.note(f"stopped; {done} of {grid.total} cells are finished. The same command goes on from here.")
            raise
        self.outcomes.extend(outcomes)
        return outcomes


def read_plan(config: Path | None, given: Mapping[str, Any]) -> Plan:
    """The plan of a study: the file's values, then the flags.

    Args:
        config: the TOML file, if there is one.
        given: a command's arguments by name, its ``locals()``; all that is no flag of a study is ignored.
    """
    from fedspray.experiment import Experiment
    from fedspray.studies.choice import with_flags
    from fedspray.studies.plan import Plan

    flags = {name: given[name] for name in _single() if given.get(name) is not None}
    if "partition_dir" in flags:
        flags["partition_dir"] = str(flags["partition_dir"])
    lists = {key: given[name] for name, key in _LISTS.items() if given.get(name) is not None}
    name = "command line" if config is None else str(config)
    settings = _owned(given.get("settings"))
    if "rounds" in flags:  # stronger than all that the file says
        settings.setdefault("", {}).setdefault("rounds", flags.pop("rounds"))
    values = with_flags({} if config is None else Experiment.read_values(config), lists, flags, name)
    return Plan.from_values(values, name, settings)


def _single() -> list[str]:
    """Flags that have one value for the whole study."""
    from fedspray.experiment import data_knobs

    return [*(name for name in data_knobs() if name != "dataset"), "rounds"]


_LISTS = {
    "dataset": "datasets",
    "algorithm": "algorithms",
    "backbone": "backbones",
    "seeds": "seeds",
    "reference": "reference",
}
"""Flags, and the keys of ``[compare]`` that they stand for."""


def check_unset(setting: str, given: Mapping[str, Any]) -> None:
    """Refuses to vary what a flag of its own has decided."""
    if setting in _single() and given.get(setting) is not None:
        raise InputError(f"{setting} is set by a flag and varied, but only one can be")


def again(config: Path | None, given: Mapping[str, Any]) -> str:
    """What runs the rows of a study again: its file, with the flags that change its values; nothing without a file."""
    if config is None:
        return ""
    named = [(f"--{name.replace('_', '-')}", given[name]) for name in (*_single(), "seeds")]
    flags = [word for flag, value in named if value is not None for word in (flag, str(value))]
    return shlex.join([config.name, *flags, *(word for item in given["settings"] or [] for word in ("--set", item))])


def finish(outcomes: Sequence[Outcome]) -> None:
    """Ends with exit code 3 if a cell failed; the sentence names the first."""
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        raise RunStopped(
            f"{len(failed)} of {len(outcomes)} cells failed; the same command tries them again. "
            f"The first: {failed[0].cell}: {failed[0].failure}"
        )


def duration(seconds: float) -> str:
    """``8 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def _display(output: Output, title: str, grid: Grid) -> Iterator[Callable[[Outcome], None]]:
    """One bar for the whole grid on a terminal, one line for each finished cell elsewhere; failures always."""
    if grid.num_stored == grid.total:
        yield lambda outcome: None
    elif not output.messages.is_terminal:
        yield lambda outcome: output.note(f"{title}: {_count(grid)}, {_told(outcome)}, {_left(grid)}")
    else:
        with _bar(output, title, grid) as on_outcome:
            yield on_outcome


@contextmanager
def _bar(output: Output, title: str, grid: Grid) -> Iterator[Callable[[Outcome], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}, {task.fields[left]}"),
        TimeElapsedColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=output.messages, transient=True) as progress:
        task = progress.add_task(title, total=grid.total, count=_count(grid), left="")

        def refresh() -> None:
            progress.update(task, completed=grid.done(), count=_count(grid), left=_left(grid))

        def tick() -> None:
            while not over.wait(1.0):
                refresh()

        def on_outcome(outcome: Outcome) -> None:
            if outcome.failure is not None:
                output.note(_told(outcome))
            refresh()

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield on_outcome
        finally:
            over.set()
            ticker.join()


def _count(grid: Grid) -> str:
    return f"{grid.num_finished} of {grid.total} cells"


def _left(grid: Grid) -> str:
    left = grid.seconds_left()
    return "time left unknown" if left is None else f"about {duration(left)} left"


def _told(outcome: Outcome) -> str:
    from fedspray.report.tables import percent

    if outcome.result is None:
        return f"{outcome.cell} FAILED: {outcome.failure}"
    metrics = outcome.result.metrics
    part, where = (metrics["val"], "validation ") if outcome.cell.validation_only else (metrics, "")
    figures = f"{where}overall {percent(part['overall'])}, minority {percent(part['minority'])}"
    return f"{outcome.cell}: {figures} ({duration(metrics['seconds'])})"


def _owned(settings: Sequence[str] | None) -> dict[str, dict[str, str]]:
    """``OWNER:NAME=VALUE`` by owner; without an owner it is for all cells."""
    rules: dict[str, dict[str, str]] = {}
    for item in settings or []:
        left, equals, value = item.partition("=")
        owner, _, name = left.rpartition(":")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"--set is {item!r}, but must be of the form NAME=VALUE or OWNER:NAME=VALUE")
        rules.setdefault(owner.strip(), {})[name.strip()] = value.strip()
    return rules


def listed(flag: str, item: str) -> tuple[str, list[str]]:
    """``NAME=A,B,C`` as a name and its values."""
    name, equals, text = item.partition("=")
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not equals or not name.strip() or not values:
        raise InputError(f"{flag} is {item!r}, but must be of the form NAME=VALUE,VALUE,…")
    return name.strip(), values
