"""What a running server shows to the coordinator's terminal: one small file in the run folder, and a log of exchanges.

::

    RUN/progress.json            now: state, round, who is waited for
    RUN/events.jsonl             who failed since when and why; the driver adds jobs and restarts
    RUN/seed-0/exchanges.jsonl   every exchange: each site's answer, bytes and seconds
    RUN/seed-0/shared.safetensors   the server's state of the best round so far
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from fedspray import files, stored
from fedspray.deploy import kinds
from fedspray.deploy.ledger import write_event
from fedspray.engine.rounds import Progress
from fedspray.errors import InputError, disk_full_at
from fedspray.files import Json
from fedspray.nn import tree
from fedspray.runs import store
from fedspray.runs.callbacks import Callback

REFUSED, SILENT, LEFT_OUT = "run refused", "did not say whether it takes part", "left out"
"""Events of a run that the coordinator is told of, with the site's name and the reason."""
PROGRESS = "progress.json"
EXCHANGES = "exchanges.jsonl"
SHARED = "shared.safetensors"
OLDER = ".shared.older.safetensors"
"""What `SHARED` was before: the checkpoint may not know of the new best round yet."""


class ProgressRecorder(Callback):
    """Written by the server's job process."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder
        self._now: Json = {"job": job, "pid": os.getpid(), "state": "starting", "round": 0}
        self._servers: dict[int, Progress] = {}
        self.show()

    def show(self, **values: Any) -> None:
        """Changes some of what is shown."""
        self._now |= {**values, "time": time.time()}
        temporary = self._folder / f".{PROGRESS}.tmp"
        with disk_full_at(self._folder / PROGRESS):
            temporary.write_text(json.dumps(self._now))
            temporary.replace(self._folder / PROGRESS)

    def tell(self, event: str, site: str, what: str) -> None:
        """Adds to the run's events."""
        write_event(self._folder, event, site, what)

    def add_exchange(self, seed: int, line: Json) -> None:
        """Logs one exchange; an exchange that is repeated after a crash is there twice."""
        files.append_line(self._folder / f"seed-{seed}" / EXCHANGES, json.dumps(line))

    def on_round(self, seed: int, progress: Progress) -> None:
        """Keeps the shared part of the best round: that of the round before this one, or an older one.

        A job that goes on from a checkpoint calls it with that first.
        """
        folder, before = self._folder / f"seed-{seed}", self._servers.get(seed)
        if before is None:
            _put_back(folder, progress.best_round)
        over = bool(progress.detail)
        best = progress if over else before
        if best is not None and progress.best_round == best.round_index:
            tensors = tree.flatten(best.server, "server")
            if tensors:
                _keep(folder, tensors, best.round_index)
        self._servers[seed] = progress

    def finish(self) -> None:
        """All seeds are done."""
        for file in self._folder.glob(f"seed-*/{OLDER}"):
            file.unlink()
        self.show(state="done")


def read_progress(folder: Path) -> Json:
    """What is shown now; nothing before the first job began, or if a power cut left nothing of it."""
    try:
        return stored.read(folder / PROGRESS, kinds.Progress)
    except InputError:
        return {}


def read_exchanges(folder: Path, seed: int) -> list[Json]:
    """All exchanges of a seed, the last version of each."""
    latest: dict[int, Json] = {}
    for entry in stored.read_lines(folder / f"seed-{seed}" / EXCHANGES, kinds.Exchange):
        latest[entry["round"]] = entry
    return [latest[index] for index in sorted(latest)]


def _keep(folder: Path, tensors: dict[str, Tensor], round_index: int) -> None:
    if (folder / SHARED).exists():
        (folder / SHARED).replace(folder / OLDER)
    store.write_tensors(folder / SHARED, tensors, {"round": round_index})


def _put_back(folder: Path, best_round: int | None) -> None:
    """Undoes a `_keep` that came after the checkpoint: what is evaluated again, by fewer sites, may end otherwise."""
    older = folder / OLDER
    if older.exists() and store.read_tensors(older)[1]["round"] == best_round:
        older.replace(folder / SHARED)
