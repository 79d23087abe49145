"""Running many cells in parallel worker processes, each exactly once.

::

    CELLS/<name>.json       a finished cell; it is there, whole, or not at all
    CELLS/runs/<name>/      the run folder of a cell that is being run: it is resumed from its checkpoint
    CELLS/runs/<name>.lock  held by the process that runs the cell

A lock ends with its process, however that ends. A worker whose parent was killed notices after the round,
saves and leaves; whoever wants the cell meanwhile waits for the lock and goes on from the checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedspray.errors import InputError, OtherVersionError, RunStopped, unknown
from fedspray.runs import store
from fedspray.runs.interrupts import remembered_interrupts
from fedspray.runs.result import RunResult
from fedspray.runs.run import begin, carry_out
from fedspray.studies.cells import Cell
from fedspray.studies.results import CellResult

BACKENDS = ("loky", "dask", "ray")
"""joblib's own back ends: worker processes here, or a cluster that the user has."""


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Results do not depend on it, except that other `threads` may round differently.
    """

    jobs: int = 1
    """Cells at a time."""
    threads: int = 1
    """torch's threads in each."""
    backend: str = "loky"
    cluster: str | None = None
    """Address of the Dask scheduler or the Ray head; None starts one here, or finds the one of the environment."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise unknown("back end", self.backend, BACKENDS)
        if self.cluster is not None and self.backend == "loky":
            raise InputError(f"the cluster {self.cluster!r} needs the back end dask or ray, but it is 'loky'")


@dataclass(frozen=True, eq=False)
class Outcome:
    """How one cell ended: with a result, or with the reason why there is none."""

    cell: Cell
    path: Path
    result: CellResult | None = None
    failure: str | None = None
    was_stored: bool = False
    """It was finished before."""


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
    """The process that waits for the result; its worker processes leave when it is gone. None: nobody to watch."""

    @property
    def run_folder(self) -> Path:
        """Where the run is kept while it goes on."""
        return self.path.parent / "runs" / self.path.stem


@dataclass(eq=False)
class Grid:
    """Cells, and what is known of them.

    Args:
        cells: the same cell may occur twice (under two names); it is run once.
        folder: where finished cells are kept, and found.
        workers: who does the work.
        keep_runs: keep each cell's run folder (records, models) too.
    """

    cells: Sequence[Cell]
    folder: Path
    workers: Workers = field(default_factory=Workers)
    keep_runs: bool = False

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()  # workers elsewhere have another current folder
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        owner = os.getpid() if self.workers.backend == "loky" and self.workers.jobs > 1 else None
        self._jobs: dict[str, Job] = {}
        self._keys = []
        for cell in self.cells:
            key = cell.key()
            self._keys.append(key)
            path = self.folder / f"{cell.name(key)}.json"
            self._jobs.setdefault(key, Job(cell, key, path, self.workers.threads, self.keep_runs, owner))
        stored = [key for key, job in self._jobs.items() if job.path.exists()]
        for key in stored:
            _drop_lock(self._jobs[key])
        self._outcomes = {key: self._load(self._jobs[key], was_stored=True) for key in stored}
        self.num_stored = len(stored)
        self.total = len(self._jobs)
        self._began, self._done_before = time.monotonic(), self.done()

    def run(self, on_outcome: Callable[[Outcome], None] | None = None) -> list[Outcome]:
        """Runs what is not there yet, and returns how every cell ended, in the order of `cells`."""
        self._began, self._done_before = time.monotonic(), self.done()
        with remembered_interrupts() as stop_if_interrupted:
            while pending := [job for key, job in self._jobs.items() if key not in self._outcomes]:
                began = time.time()
                try:
                    for key, failure in _parallel(self.workers, pending):
                        self._add(key, failure, on_outcome)
                        stop_if_interrupted()
                except _worker_death():
                    stop_if_interrupted()  # a terminal interrupts the workers too
                    in_work = [job for job in pending if job.key not in self._outcomes and _was_begun(job, began)]
                    for job in in_work:
                        self._add(job.key, _run_alone(self.workers, job), on_outcome)
                    if not in_work:
                        raise
        return [replace(self._outcomes[key], cell=cell) for key, cell in zip(self._keys, self.cells, strict=True)]

    def stored(self) -> list[Outcome]:
        """How every cell stands, running none: one that is not finished has neither a result nor a failure."""
        nothing = {key: Outcome(job.cell, job.path) for key, job in self._jobs.items()}
        known = {**nothing, **self._outcomes}
        return [replace(known[key], cell=cell) for key, cell in zip(self._keys, self.cells, strict=True)]

    @property
    def num_finished(self) -> int:
        """Cells that have a result."""
        return sum(job.path.exists() for job in self._jobs.values())

    def done(self) -> float:
        """How many cells are done, counting the rounds of those in work."""
        return float(sum(self._share(key) for key in self._jobs))

    def seconds_left(self) -> float | None:
        """An estimate, from the measured cells of the same kind; None while nothing is known."""
        left = {key: 1 - self._share(key) for key in self._jobs}
        waiting = [(self._expected(self._jobs[key].cell), share) for key, share in left.items() if share > 0]
        known = [seconds * share for seconds, share in waiting if seconds is not None]
        if len(known) == len(waiting):
            return sum(known) / max(1, min(self.workers.jobs, len(waiting)))
        done = self.total - sum(left.values()) - self._done_before
        return (time.monotonic() - self._began) * sum(left.values()) / done if done > 0 else None

    def _expected(self, cell: Cell) -> float | None:
        """Seconds of a cell like this one: same data, method and backbone; else same data and backbone."""
        outcomes = list(self._outcomes.values())  # the display asks from its own thread
        finished = [(o.cell, o.result.metrics["seconds"]) for o in outcomes if o.result is not None]
        for alike in (_kind, _loose_kind):
            known = [seconds for other, seconds in finished if alike(other) == alike(cell)]
            if known:
                return float(sum(known) / len(known))
        return None

    def _share(self, key: str) -> float:
        job = self._jobs[key]
        if key in self._outcomes or job.path.exists():
            return 1.0
        records = job.run_folder / f"seed-{job.cell.seed}" / store.RECORDS
        try:
            return min(0.99, records.read_bytes().count(b"\n") / float(job.cell.settings["rounds"]))
        except OSError:
            return 0.0

    def _add(self, key: str, failure: str | None, on_outcome: Callable[[Outcome], None] | None) -> None:
        job = self._jobs[key]
        outcome = Outcome(job.cell, job.path, failure=failure) if failure else self._load(job)
        self._outcomes[key] = outcome
        if on_outcome is not None:
            on_outcome(outcome)

    @staticmethod
    def _load(job: Job, *, was_stored: bool = False) -> Outcome:
        return Outcome(job.cell, job.path, CellResult.load(job.path, job.key), was_stored=was_stored)


def work(job: Job) -> tuple[str, str | None]:
    """Runs one cell to its end, in a worker: the key and, if it failed, why."""
    try:
        with _in_work, _locked(_lock_path(job)):
            _watch(job)
            if not job.path.exists():
                _run(job)
            _lock_path(job).unlink(missing_ok=True)  # who waits for it finds the cell finished
    except (InputError, RunStopped) as error:
        return job.key, str(error)
    except Exception as error:
        return job.key, f"{type(error).__name__}: {error}"
    return job.key, None


def _run(job: Job) -> None:
    cell, folder = job.cell, job.run_folder
    if cell.key() != job.key:
        raise InputError(f"the data of {cell} are not the same here as where the grid was begun")
    federation = cell.federation()
    # `with_split` draws the same splits again; only those without test nodes have to be handed over.
    settings = replace(cell.run, keep_split=True) if cell.validation_only else cell.run
    if folder.exists() and not _can_go_on(folder):
        shutil.rmtree(folder)

    def stop_if_orphaned(seed: int, record: dict[str, Any]) -> None:
        if _is_orphaned(job):
            raise RunStopped("the process that started this worker is gone")

    def run_or_go_on() -> RunResult:
        if not folder.exists():
            source = None if cell.validation_only else dict(cell.source)
            begin(folder, federation, settings, source, threads=job.threads)
        return carry_out(federation, settings, folder, threads=job.threads, on_record=stop_if_orphaned)

    try:
        outcome = run_or_go_on()
    except OtherVersionError:
        shutil.rmtree(folder)
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
    """Once in a worker process: ends it when its parent is gone and no cell is in work, since nobody else would."""

    def leave() -> None:
        while not _is_orphaned(job):
            time.sleep(1)
        with _in_work:
            os._exit(1)

    if job.owner is not None and job.owner != os.getpid() and os.getpid() not in _watchers:
        _watchers.add(os.getpid())
        threading.Thread(target=leave, daemon=True).start()


def _can_go_on(folder: Path) -> bool:
    """Whether a run folder was begun, with the same versions of what the bits depend on."""
    try:
        return bool(store.read_json(folder / "settings.json").get("versions") == store.versions())
    except InputError:  # not there, or damaged
        return False


def _parallel(workers: Workers, jobs: Sequence[Job]) -> Iterator[tuple[str, str | None]]:
    """The outcomes as they come (or all at the end, where the back end cannot do better)."""
    from joblib import Parallel, delayed, parallel_config

    here = workers.backend == "loky"
    jobs_at_once = workers.jobs if here else -1  # a cluster knows how many it can take
    pre_dispatch = workers.jobs if here else "all"
    with _backend(workers) as options, parallel_config(workers.backend, n_jobs=jobs_at_once, **options):
        calls = [delayed(work)(job) for job in jobs]
        try:
            parallel = Parallel(batch_size=1, pre_dispatch=pre_dispatch, return_as="generator_unordered")
        except ValueError:  # this back end gives all results at once
            parallel = Parallel(batch_size=1, pre_dispatch=pre_dispatch)
        yield from parallel(calls)


@contextmanager
def _backend(workers: Workers) -> Iterator[dict[str, Any]]:
    """Connects to the cluster, if there is one, and gives the options of joblib's back end."""
    if workers.backend == "loky":
        with warnings.catch_warnings():
            # A worker whose memory has grown, since its cells have, is replaced after a cell: nothing to worry about.
            warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
            yield {"inner_max_num_threads": workers.threads} if workers.jobs > 1 else {}
    elif workers.backend == "dask":
        try:
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise InputError(f"the back end dask needs the package distributed, which is missing ({error})") from None
        local = None if workers.cluster else LocalCluster(n_workers=workers.jobs, threads_per_worker=1)
        with Client(workers.cluster or local):
            yield {}
        if local is not None:
            local.close()
    else:
        try:
            import ray
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise InputError(f"the back end ray needs the package ray, which is missing ({error})") from None
        if not ray.is_initialized():
            ray.init(address=workers.cluster, num_cpus=None if workers.cluster else workers.jobs)
        register_ray()
        yield {}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        path.touch()
        yield


def _drop_lock(job: Job) -> None:
    """Removes the lock of a finished cell that a killed process left behind, unless somebody holds it."""
    with contextlib.suppress(OSError), _lock_path(job).open("r") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _lock_path(job).unlink(missing_ok=True)


def _lock_path(job: Job) -> Path:
    return job.run_folder.with_name(f"{job.path.stem}.lock")


def _worker_death() -> tuple[type[BaseException], ...]:
    from joblib.externals.loky.process_executor import BrokenProcessPool

    return (BrokenProcessPool,)


def _was_begun(job: Job, moment: float) -> bool:
    return job.path.exists() or (_lock_path(job).exists() and _lock_path(job).stat().st_mtime >= moment)


def _run_alone(workers: Workers, job: Job) -> str | None:
    """Runs a cell that was in work when a worker process died, to see whether it was this one: why it failed."""
    try:
        ((_, failure),) = _parallel(workers, [job])
    except _worker_death() as error:
        return f"its worker process died, twice ({str(error).partition('. ')[0].strip()})"
    return failure


def _kind(cell: Cell) -> tuple[str, ...]:
    return cell.dataset, cell.backbone, cell.method


def _loose_kind(cell: Cell) -> tuple[str, ...]:
    return cell.dataset, cell.backbone
