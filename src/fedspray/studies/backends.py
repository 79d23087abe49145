"""Where cells run: worker processes here, or a cluster, through joblib's back ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedspray.engine.cluster import connected
from fedspray.errors import InputError, unknown
from fedspray.knob import check, knob
from fedspray.studies.worker import Job

Ended = tuple[str, str | None]
"""The key of a cell and, if it failed, why."""

BACKENDS = ("loky", "dask", "ray")
"""joblib's own back ends: worker processes here, or a cluster that the user has."""


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Results don't depend on it, but other `threads` may round differently.
    """

    jobs: int = knob(1, "Cells at a time.", least=1)
    threads: int = knob(1, "torch's threads in each.", least=1)
    backend: str = "loky"
    cluster: str | None = None
    """Address of the Dask scheduler or the Ray head; None starts one here, or uses the environment's."""

    def __post_init__(self) -> None:
        check(self)
        if self.backend not in BACKENDS:
            raise unknown("back end", self.backend, BACKENDS)
        if self.cluster is not None and self.backend == "loky":
            raise InputError(f"the cluster {self.cluster!r} needs the back end dask or ray, but it is 'loky'")


def in_parallel(workers: Workers, work: Callable[[Job], Ended], jobs: Sequence[Job]) -> Iterator[Ended]:
    """The outcomes as they arrive, or all at the end if the back end can't stream."""
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
            # Replacing a worker whose memory has grown is harmless.
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
        with connected(workers.cluster, workers.jobs):
            from ray.util.joblib import register_ray

            register_ray()
            yield {}


def worker_death() -> tuple[type[BaseException], ...]:
    """What is raised when a worker process ends in the middle of its work."""
    from joblib.externals.loky.process_executor import BrokenProcessPool

    return (BrokenProcessPool,)
