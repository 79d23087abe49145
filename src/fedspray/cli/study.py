"""What `compare`, `sweep` and `tune` share: options, the study from file and flags, and one progress display."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedspray.cli.flags import Cores, argument, flag
from fedspray.cli.knobs import Given, note_tidied, values
from fedspray.cli.output import Output
from fedspray.display import percent
from fedspray.errors import InputError, RunStopped
from fedspray.progress import ticking

if TYPE_CHECKING:
    from fedspray.studies.cells import Cell
    from fedspray.studies.grid import Grid
    from fedspray.studies.study import Study

Config = Annotated[Path | None, argument("A study in TOML; flags override its values.", "FILE.toml")]
Out = Annotated[
    Path | None, flag("A folder for the results.", "DIR", box="Files", default="studies/ and the file's name")
]


@dataclass(frozen=True)
class Work:
    """How cells run, and where they are stored."""

    jobs: Annotated[Cores | None, flag("Cells at a time.", "N", box="Work", default="cores / threads")] = None
    threads: Annotated[Cores, flag("Threads of each worker.", "N", box="Work")] = 1
    backend: Annotated[str, flag("joblib's back end: loky (here), dask or ray.", "NAME", box="Work")] = "loky"
    cluster: Annotated[
        str | None,
        flag("Address of the Dask scheduler or the Ray head.", "ADDRESS", box="Work", default="started here"),
    ] = None
    cells: Annotated[Path, flag("Where finished cells are stored.", "DIR", box="Files")] = Path("studies/cells")
    keep_runs: Annotated[bool, flag("Keep the run folder of every cell, with its models.", box="Files")] = False


WorkFlags = Annotated[Work, Parameter(name="*")]
WORK = Work()


@dataclass(frozen=True)
class Workers:
    """Runs cells and shows their outcomes."""

    work: Work
    output: Output
    ended: list[Cell] = field(default_factory=list)
    """All cells that were asked for so far."""
    told: set[str] = field(default_factory=set)
    """Data whose traps were named."""

    def __post_init__(self) -> None:
        if self.work.cells.exists() and not self.work.cells.is_dir():
            raise InputError(f"--cells {self.work.cells} is not a folder: choose one for finished cells")

    def run(self, title: str, cells: Sequence[Cell]) -> list[Cell]:
        """Runs cells with one progress display, and returns them as they ended."""
        from fedspray.studies.backends import Workers
        from fedspray.studies.grid import Grid

        work, cores = self.work, len(os.sched_getaffinity(0))
        jobs = work.jobs or max(1, cores // work.threads)
        if work.backend == "loky" and jobs * work.threads > cores:
            self.output.note(f"{jobs} jobs with {work.threads} thread(s) each share {cores} cores: this is slower")
        workers = Workers(jobs, work.threads, work.backend, work.cluster)
        with self.output.busy("preparing data …"):
            grid = Grid(cells, work.cells, workers, work.keep_runs)
        self._note_traps(cells)
        if grid.num_stored:
            self.output.note(f"{title}: {grid.num_stored} of {grid.total} cells are already finished")
        try:
            with _display(self.output, title, grid) as on_end:
                ended = grid.run(on_end)
        except KeyboardInterrupt:
            done = grid.num_finished
            self.output.note(f"stopped; {done} of {grid.total} cells are finished. Run the same command to continue.")
            raise
        self.ended.extend(ended)
        return ended

    def _note_traps(self, cells: Sequence[Cell]) -> None:
        """Says once of each data set what would train silently to nonsense."""
        for data, cell in {str(cell.data): cell for cell in cells}.items():
            if data not in self.told:
                self.told.add(data)
                note_tidied(self.output, cell.whole())


def read_study(config: Path | None, given: Given | None, reference: str | None = None) -> Study:
    """A study: the file's values, then the flags."""
    from fedspray.experiment import SETTINGS, Experiment
    from fedspray.studies.overrides import with_flags
    from fedspray.studies.study import Study

    flags = values({name: value for name, value in (given or {}).items() if name != "set"})
    lists = {key: flags.pop(name) for name, key in _LISTS.items() if name in flags}
    if reference is not None:
        lists["reference"] = reference
    overrides = _owned((given or {}).get("set", []))
    for name in [name for name in flags if name in SETTINGS]:  # they beat everything in the file
        overrides.setdefault("", {}).setdefault(name, flags.pop(name))
    where = "command line" if config is None else str(config)
    return Study.from_values(
        with_flags({} if config is None else Experiment.read_values(config), lists, flags, where), where, overrides
    )


_LISTS = {"dataset": "datasets", "algorithm": "algorithms", "backbone": "backbones", "seeds": "seeds"}
"""Flags, and the keys of ``[compare]`` that they stand for."""


def check_unset(setting: str, given: Given | None) -> None:
    """Refuses to vary a setting that a flag fixes."""
    if setting in (given or {}) and setting not in _LISTS:
        raise InputError(f"{setting} is both set by a flag and varied: do only one")


def again(config: Path | None, given: Given | None) -> str:
    """How to rerun a study: its file and the flags that change its values; empty without a file."""
    if config is None:
        return ""
    from fedspray.report.html import flag_words

    words = [config.name]
    for name, value in sorted((given or {}).items(), key=lambda item: item[0] == "set"):
        if name == "seeds" or name not in _LISTS:
            words += flag_words(f"--{name.replace('_', '-')}", value)
    return shlex.join(words)


def finish(cells: Sequence[Cell]) -> None:
    """Ends with exit code 3 if a cell failed; the sentence names the first."""
    failed = [cell for cell in cells if cell.failure is not None]
    if failed:
        raise RunStopped(
            f"{len(failed)} of {len(cells)} cells failed; run the same command to retry them. "
            f"The first: {failed[0]}: {failed[0].failure}"
        )


def duration(seconds: float) -> str:
    """``8 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def _display(output: Output, title: str, grid: Grid) -> Iterator[Callable[[Cell], None]]:
    """One bar for the whole grid on a terminal, one line per finished cell elsewhere; failures always."""
    if grid.num_stored == grid.total:
        yield lambda cell: None
        return
    if not output.messages.is_terminal:
        yield lambda cell: output.note(f"{title}: {_count(grid)}, {_told(cell)}, {_left(grid)}")
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}, {task.fields[left]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=output.messages, transient=True) as progress:
        task = progress.add_task(title, total=grid.total, count=_count(grid), left="")

        def refresh() -> None:
            progress.update(task, completed=grid.done(), count=_count(grid), left=_left(grid))

        def on_end(cell: Cell) -> None:
            if cell.failure is not None:
                output.note(_told(cell))
            refresh()

        with ticking(refresh):
            yield on_end


def _count(grid: Grid) -> str:
    return f"{grid.num_finished} of {grid.total} cells"


def _left(grid: Grid) -> str:
    left = grid.seconds_left()
    return "time left unknown" if left is None else f"about {duration(left)} left"


def _told(cell: Cell) -> str:
    if cell.result is None:
        return f"{cell} FAILED: {cell.failure}"
    metrics = cell.result.metrics
    part, where = (metrics["val"], "validation ") if cell.validation_only else (metrics, "")
    figures = f"{where}overall {percent(part['overall'])}, minority {percent(part['minority'])}"
    return f"{cell}: {figures} ({duration(metrics['seconds'])})"


def _owned(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """``OWNER:NAME=VALUE`` by owner; without an owner it is for all cells."""
    rules: dict[str, dict[str, str]] = {}
    for item in settings:
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
