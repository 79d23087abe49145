"""Running many cells in parallel worker processes, each exactly once.

::

    CELLS/<name>.json       a finished cell, written whole or not at all
    CELLS/runs/<name>/      the run folder of a cell that is being run: it is resumed from its checkpoint
    CELLS/runs/<name>.lock  held by the process that runs the cell

A lock ends with its process. A worker whose parent was killed notices after the round,
saves and exits; another process that wants the cell waits for the lock and resumes from the checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedspray.runs import store
from fedspray.runs.interrupts import remembered_interrupts
from fedspray.studies.backends import Workers, in_parallel, worker_death
from fedspray.studies.cells import Cell, Row
from fedspray.studies.results import CellResult
from fedspray.studies.worker import Job, work


@dataclass(eq=False)
class Grid:
    """Cells, and what is known of them; the same cell may occur twice (under two names) but runs once.

    With ``keep_runs`` each cell's run folder (records, models) is kept too.
    """

    cells: Sequence[Cell]
    folder: Path
    workers: Workers = field(default_factory=Workers)
    keep_runs: bool = False

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()  # workers elsewhere have another current folder
        owner = os.getpid() if self.workers.backend == "loky" and self.workers.jobs > 1 else None
        self._jobs: dict[str, Job] = {}
        self._keys = []
        for cell in self.cells:
            key = cell.key()
            path = self.folder / f"{cell.name(key)}.json"
            for old_key, name in () if path.exists() else cell.former():
                if (self.folder / f"{name}.json").exists():
                    key, path = old_key, self.folder / f"{name}.json"
            self._keys.append(key)
            self._jobs.setdefault(key, Job(cell, key, path, self.workers.threads, self.keep_runs, owner))
        stored = {key: job for key, job in self._jobs.items() if job.path.exists()}
        for job in stored.values():
            job.drop_lock()
        self._ended = {key: self._load(job) for key, job in stored.items()}
        self.num_stored, self.total = len(stored), len(self._jobs)
        self._began, self._done_before = time.monotonic(), self._steps_done()

    def run(self, on_end: Callable[[Cell], None] | None = None) -> list[Cell]:
        """Runs the missing cells and returns all cells in order with their outcomes."""
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)  # not before all cells are known to be sound
        self._began, self._done_before = time.monotonic(), self._steps_done()
        with remembered_interrupts() as stop_if_interrupted:
            while pending := [job for key, job in self._jobs.items() if key not in self._ended]:
                began = time.time()
                try:
                    for key, failure in in_parallel(self.workers, work, pending):
                        self._add(key, failure, on_end)
                        stop_if_interrupted()
                except worker_death():
                    stop_if_interrupted()  # a terminal interrupts the workers too
                    in_work = [job for job in pending if job.key not in self._ended and job.was_begun(began)]
                    for job in in_work:
                        self._add(job.key, _run_alone(self.workers, job), on_end)
                    if not in_work:
                        raise
        return self.stored()

    def stored(self) -> list[Cell]:
        """All cells without running any: unfinished ones have neither a result nor a failure."""
        found = []
        for key, cell in zip(self._keys, self.cells, strict=True):
            known = self._ended.get(key, cell)
            found.append(replace(cell, path=self._jobs[key].path, result=known.result, failure=known.failure))
        return found

    @property
    def num_finished(self) -> int:
        """Cells that have a result."""
        return sum(job.path.exists() for job in self._jobs.values())

    def done(self) -> float:
        """How many cells are done, counting the rounds of those in work."""
        return float(sum(self._share(key) for key in self._jobs))

    def seconds_left(self) -> float | None:
        """Estimated seconds left, from similar finished cells; None while unknown."""
        left = {key: 1 - self._share(key) for key in self._jobs}
        waiting = [(self._expected(self._jobs[key].cell), share) for key, share in left.items() if share > 0]
        known = [seconds * share for seconds, share in waiting if seconds is not None]
        # The number of cells a cluster runs at a time is unknown here.
        if len(known) == len(waiting) and self.workers.backend == "loky":
            return sum(known) / max(1, min(self.workers.jobs, len(waiting)))
        steps = {key: _steps(job.cell) for key, job in self._jobs.items()}
        ahead = sum(share * steps[key] for key, share in left.items())
        done = sum(steps.values()) - ahead - self._done_before
        return (time.monotonic() - self._began) * ahead / done if done > 0 else None

    def _expected(self, cell: Cell) -> float | None:
        """Seconds of a cell like this one, by its steps: on the same data, as similar as possible otherwise."""
        ended = list(self._ended.values())  # the display asks from its own thread
        finished = [(other, other.result.metrics["seconds"]) for other in ended if other.result is not None]
        for shared in (3, 2, 1):
            alike = [(o, seconds) for o, seconds in finished if _traits(o)[:shared] == _traits(cell)[:shared]]
            if alike:
                return float(_steps(cell) * sum(seconds for _, seconds in alike) / sum(_steps(o) for o, _ in alike))
        return None

    def _steps_done(self) -> float:
        return sum(self._share(key) * _steps(job.cell) for key, job in self._jobs.items())

    def _share(self, key: str) -> float:
        job = self._jobs[key]
        if key in self._ended or job.path.exists():
            return 1.0
        records = job.run_folder / f"seed-{job.cell.seed}" / store.RECORDS
        try:
            return min(0.99, records.read_bytes().count(b"\n") / float(job.cell.settings["rounds"]))
        except OSError:
            return 0.0

    def _add(self, key: str, failure: str | None, on_end: Callable[[Cell], None] | None) -> None:
        job = self._jobs[key]
        self._ended[key] = replace(job.cell, path=job.path, failure=failure) if failure else self._load(job)
        if on_end is not None:
            on_end(self._ended[key])

    @staticmethod
    def _load(job: Job) -> Cell:
        return replace(job.cell, path=job.path, result=CellResult.load(job.path, job.key))


RunCells = Callable[[str, Sequence[Cell]], list[Cell]]
"""Runs cells under a title (or only looks for finished ones), and returns them with their outcomes."""


def run_rows(title: str, rows: Sequence[Row], run_cells: RunCells, *, validation_only: bool = False) -> list[Row]:
    """Runs the cells of rows, seed by seed, so that partial results can be compared."""
    cells = [row.cells(validation_only=validation_only) for row in rows]
    order = sorted((k, i) for i, own in enumerate(cells) for k in range(len(own)))
    listed = [cells[i][k] for k, i in order]
    ended = dict(zip(order, run_cells(title, listed) if listed else [], strict=True))
    return [row.finished([ended[k, i] for k in range(len(cells[i]))]) for i, row in enumerate(rows)]


def _run_alone(workers: Workers, job: Job) -> str | None:
    """Reruns a cell that was running when a worker process died, to find the culprit; returns why it failed."""
    try:
        ((_, failure),) = in_parallel(workers, work, [job])
    except worker_death() as error:
        return f"its worker process died, twice ({str(error).partition('. ')[0].strip()})"
    return failure


def _steps(cell: Cell) -> float:
    """What the time of a cell grows with, on the same data with the same method."""
    return float(cell.settings["rounds"]) * float(cell.settings["local_epochs"])


def _traits(cell: Cell) -> tuple[Any, ...]:
    """What its time depends on, the most important first."""
    data = sorted((name, str(value)) for name, value in cell.data.to_json().items())
    return (data, cell.backbone), cell.run.algorithm, (cell.method, cell.label)
