"""Rids a project of what it holds about one site, apart from its name and what sums and models took from it.

What is told of the site alone goes: its validation counts, its rows in the server's state, what links remember of it,
its figures in records and results, its answers, its events, its certificate and contact, and NVFlare's logs and working
folders, which name everybody. Sums over all sites and models stay: what a site added to them cannot be taken out.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspray import files
from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Task
from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.provisioning import membership
from fedspray.deploy.provisioning.backup import check_quiet
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.progress import EXCHANGES, OLDER, PROGRESS, SHARED
from fedspray.engine.layouts import play
from fedspray.engine.rounds import start
from fedspray.files import Json
from fedspray.messages import combine
from fedspray.nn import tree
from fedspray.runs import proxies, store

LOGS = ("*.log", "log*.txt", "log*.json", "*.fl", "transfer", "storage")
"""NVFlare's, in the server's kit; beside them the working folder of each job."""
SOMEBODY = "a forgotten site"


@files.private_files()
def forget(project: Project, site: str) -> None:
    """Removes a site, if it is not removed yet, and all that is known of it alone. The server must be stopped."""
    check_quiet(project.folder, "project")
    membership.remove(project, site)
    for settings in (project.folder / "runs").glob("*/settings.json"):
        _Run(settings.parent, site).forget()
    _rewrite(project.server / ledger.EVENTS, _without_mention(site))
    organisations, about = _without(project.organisations, site), _without(project.about, site)
    replace(project, organisations=organisations, about=about).save()
    shutil.rmtree(project.site(site), ignore_errors=True)
    (project.folder / "zips" / f"{site}.zip").unlink(missing_ok=True)
    jobs = [each for each in project.server.iterdir() if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-.*", each.name)]
    for path in (*jobs, *(found for pattern in LOGS for found in project.server.glob(pattern))):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ledger.write_event(
        project.server, "forgotten", site, "the coordinator removed all that was known of this site alone"
    )


class _Run:
    """One run's folder."""

    def __init__(self, folder: Path, site: str) -> None:
        self._folder, self._site, self._agreement = folder, site, Agreement.load(folder)
        self._clients = self._agreement.roster.clients

    def forget(self) -> None:
        if self._site not in self._clients:
            return
        self._id = self._clients.index(self._site)
        self._rows = client_axes(
            self._agreement.algorithms[0], self._agreement.roster.task, self._agreement.resolved.dtype
        )
        for own in self._folder.glob("seed-*"):
            self._checkpoint(own)
            self._records(own / store.RECORDS)
            _rewrite(own / EXCHANGES, lambda line: {**line, "sites": _without(line["sites"], self._site)})
            for name in (SHARED, OLDER):
                self._tensors(own / name)
            self._result(own / "result.json")
            self._proxies(own / proxies.FILE)
        self._result(self._folder / "result.json")
        _rewrite(self._folder / ledger.EVENTS, _without_mention(self._site))
        if (file := self._folder / PROGRESS).exists():
            shown = files.read_json(file)
            lists = {
                key: [n for n in value if n != self._site] for key, value in shown.items() if isinstance(value, list)
            }
            files.write_json(file, {**shown, **lists})

    def _checkpoint(self, own: Path) -> None:
        tensors, meta = store.read_checkpoint(own)
        if meta is None:
            return
        progress, k = meta["progress"], str(self._id)
        if k in progress["validation"]:
            progress |= {"validation": _without(progress["validation"], k), "best_score": None}
        progress["pending"] = self._record(progress["pending"])
        if progress["detail"]:
            progress["detail"]["clients"] = _without(progress["detail"]["clients"], k)
        kept = {name: self._blank(name, value) for name, value in tensors.items()}
        kept = {name: value for name, value in kept.items() if not name.startswith(f"engine.links.{k}.")}
        for index in {name.split(".")[1] for name in kept if name.startswith("proxies.")}:
            kept |= tree.prefixed(f"proxies.{index}", self._others(tree.part_of(kept, f"proxies.{index}")))
        store.write_tensors(own / store.CHECKPOINT, kept, meta)
        (own / store.OLDER_CHECKPOINT).unlink(missing_ok=True)

    def _tensors(self, file: Path) -> None:
        if file.exists():
            tensors, meta = store.read_tensors(file)
            store.write_tensors(file, {name: self._blank(name, value) for name, value in tensors.items()}, meta)

    def _proxies(self, file: Path) -> None:
        if file.exists():
            tensors, meta = store.read_tensors(file)
            store.write_tensors(file, self._others(tensors), meta)

    def _others(self, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """Class vectors, of the other clients alone."""
        rows = held["clients"] != self._id
        return {name: value[rows] if name in ("clients", "own", "weight") else value for name, value in held.items()}

    def _blank(self, name: str, value: Tensor) -> Tensor:
        """A tensor with zeros where it is about the site alone."""
        for axis in (0,) if name == "engine.heard" else self._rows.get(name, ()):
            if self._id < value.shape[axis]:
                value = value.index_fill(axis, torch.tensor([self._id]), 0)
        return value

    def _records(self, file: Path) -> None:
        if not file.exists():
            return
        before, lines = "", []
        for entry in files.read_chain(file, len(files.read_lines(file)))[1]:
            sealed = files.seal(self._record(entry), before)
            before = sealed["seal"]
            lines.append(json.dumps(sealed, allow_nan=False) + "\n")
        files.write_text(file, "".join(lines))

    def _record(self, record: Json) -> Json:
        """The record of a round, without what it says of the site."""
        new = {**record}
        if "clients" in new:
            new["clients"] = _without(new["clients"], str(self._id))
        if "failed" in new:
            new["failed"] = _without(new["failed"], self._site)
        for key in ("trained", "evaluated"):
            if key in new:
                new[key] = [k for k in new[key] if k != self._id]
        for key in ("bytes_up_by_client", "bytes_down_by_client"):
            sizes = new.get(
                key, []
            )  # in the order of the clients that were there: with fewer, nobody knows whose is whose
            whole = len(sizes) == len(self._clients)
            new |= {key: [size if whole and k != self._id else 0 for k, size in enumerate(sizes)]} if sizes else {}
        return new | ({"diagnostics": {}} if "diagnostics" in new else {})

    def _result(self, file: Path) -> None:
        if not file.exists():
            return
        content = files.read_json(file)
        for part in (content, *content.get("seeds", ())):
            for key in ("clients", "models"):
                if isinstance(part.get(key), dict):
                    part[key] = _without(part[key], self._site)
        files.write_sealed(file, content)


def client_axes(algorithm: Algorithm[Any, Any], task: Task, dtype: torch.dtype) -> dict[str, tuple[int, ...]]:
    """The axes of the server's tensors that have a row for each client, found by a round with few and with more."""
    played = play(algorithm, task, dtype)

    def shapes(count: int) -> dict[str, tuple[int, ...]]:
        uplink = {name: torch.cat([value] * count) for name, value in played.uplink.items()}
        server = start(algorithm, task, 0, dtype).server
        server = algorithm.server_update(server, combine(algorithm.uplink, uplink), tuple(range(count)))
        return {name: tuple(value.shape) for name, value in tree.flatten(server, "server").items()}

    few, many = shapes(4), shapes(7)
    return {
        name: tuple(axis for axis, pair in enumerate(zip(few[name], many[name], strict=True)) if pair == (4, 7))
        for name in few.keys() & many.keys()
        if len(few[name]) == len(many[name])
    }


def _without(mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key != name}


def _without_mention(site: str) -> Callable[[Json], Json | None]:
    """Lines about a site go; in lines about others its name is replaced."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(site)}(?![\w-])")

    def changed(line: Json) -> Json | None:
        if line.get("sender") == site:
            return None
        return {key: pattern.sub(SOMEBODY, value) if isinstance(value, str) else value for key, value in line.items()}

    return changed


def _rewrite(file: Path, change: Callable[[Json], Json | None]) -> None:
    """Changes each line of a file, or leaves it out."""
    if file.exists():
        lines = [new for line in files.read_lines(file) if (new := change(line)) is not None]
        files.write_text(file, "".join(f"{json.dumps(line)}\n" for line in lines))
