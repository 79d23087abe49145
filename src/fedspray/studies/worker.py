"""One cell in a worker process: run once to its end, or stopped when its parent is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedspray import files
from fedspray.errors import InputError, RunStopped
from fedspray.runs import store
from fedspray.runs.result import RunResult
from fedspray.runs.run import begin, carry_out
from fedspray.studies.cells import Cell
from fedspray.studies.results import CellResult


@dataclass(frozen=True)
class Job:
    """What a worker is handed."""

    cell: Cell
    key: str
    path: Path
    """Of the finished cell."""
    threads: int = 1
    keep_run: bool = False
    owner: int | None = None
    """The process that waits for the result; workers exit when it is gone. None: none to watch."""

    @property
    def run_folder(self) -> Path:
        """Where the run is kept while it goes on."""
        return self.path.parent / "runs" / self.path.stem

    @property
    def lock(self) -> Path:
        """Held by the process that runs the cell."""
        return self.run_folder.with_name(f"{self.path.stem}.lock")

    def was_begun(self, moment: float) -> bool:
        """Whether a process has started it since ``moment``, or finished it."""
        return self.path.exists() or (self.lock.exists() and self.lock.stat().st_mtime >= moment)

    def drop_lock(self) -> None:
        """Removes a killed process's lock at a finished cell, unless it is held."""
        with contextlib.suppress(OSError), self.lock.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.lock.unlink(missing_ok=True)


def work(job: Job) -> tuple[str, str | None]:
    """Runs one cell to its end, in a worker: the key and, if it failed, why."""
    try:
        with _in_work, _locked(job.lock):
            _watch(job)
            if not job.path.exists():
                _run(job)
            job.lock.unlink(missing_ok=True)  # waiting processes find the cell finished
    except (InputError, RunStopped) as error:
        return job.key, str(error)
    except Exception as error:
        return job.key, f"{type(error).__name__}: {error}"
    return job.key, None


def _run(job: Job) -> None:
    cell, folder = job.cell, job.run_folder
    if cell.key() != job.key:
        raise InputError(f"the data of {cell} differs here from where the grid was started")
    federation = cell.federation()
    # `with_split` draws the same splits again; only those without test nodes have to be handed over.
    kept = replace(cell.run, keep_split=True) if cell.validation_only else cell.run
    run = replace(cell.resolved, settings=kept)
    if folder.exists() and not _can_go_on(folder):
        shutil.rmtree(folder)

    def stop_if_orphaned(seed: int, record: dict[str, Any]) -> None:
        if _is_orphaned(job):
            raise RunStopped("the process that started this worker is gone")

    def run_or_go_on() -> RunResult:
        if not folder.exists():
            source = None if cell.validation_only else cell.data.to_json()
            begin(folder, federation, run, source, threads=job.threads)
        return carry_out(federation, run, folder, threads=job.threads, on_record=stop_if_orphaned)

    was_begun = folder.exists()
    try:
        outcome = run_or_go_on()
    except InputError:
        if not was_begun:
            raise
        shutil.rmtree(folder)  # of another version, or damaged
        outcome = run_or_go_on()
    header = {
        "key": job.key,
        **cell.identity(),
        "dataset": federation.name,
        "preset": cell.run.preset,
        "federation": outcome.header["federation"],
        "threads": job.threads,
        "versions": store.versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    seed_folder = folder / f"seed-{cell.seed}"
    result = CellResult.from_run(header, seed_folder, outcome.seeds[0], validation_only=cell.validation_only)
    result.save(job.path)
    if not job.keep_run:
        shutil.rmtree(folder)


_in_work = threading.Lock()
_watchers: set[int] = set()


def _is_orphaned(job: Job) -> bool:
    return job.owner is not None and job.owner not in (os.getpid(), os.getppid())


def _watch(job: Job) -> None:
    """Once in a worker process: ends it when its parent is gone and no cell is running."""

    def leave() -> None:
        while not _is_orphaned(job):
            time.sleep(1)
        with _in_work:
            os._exit(1)

    if job.owner is not None and job.owner != os.getpid() and os.getpid() not in _watchers:
        _watchers.add(os.getpid())
        threading.Thread(target=leave, daemon=True).start()


def _can_go_on(folder: Path) -> bool:
    """Whether a run folder was started with the same versions of the libraries that affect bits."""
    try:
        return bool(files.read_json(folder / "settings.json").get("versions") == store.versions())
    except InputError:  # not there, or damaged
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        path.touch()
        yield
