"""The runs of a project: beginning one, and looking at all of them."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from fedspray import stored
from fedspray.deploy import kinds
from fedspray.deploy.agreement import check_name
from fedspray.deploy.ledger import presence, read_events
from fedspray.deploy.locks import holder
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.session import AdminSession, Unreachable
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.certificates import check_dates, federation_fingerprint
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.progress import EXCHANGES, read_exchanges, read_progress
from fedspray.errors import InputError, MissingDataError
from fedspray.files import Json
from fedspray.runs.run import begin_with

FRESH = 30.0
"""Seconds during which only the command that started a new run drives it."""


def begin_run(project: Project, name: str | None) -> str:
    """Makes the folder of a new run and returns the run's name."""
    chosen = check_name("run", name or datetime.now().strftime("run-%Y%m%d-%H%M%S"))
    if project.run_folder(chosen).exists():
        raise InputError(f"there is a run {chosen!r} already: choose another name, or return to it with --attach")
    agreement = project.proposed()
    project.take_on(agreement)
    begin_with(project.run_folder(chosen), agreement.roster, agreement.settings, None, None)
    agreement.save(project.run_folder(chosen))
    return chosen


def check_certificates(project: Project) -> None:
    """Refuses a project whose server or coordinator nobody believes today."""
    for kit in (project.server, project.coordinator):
        check_dates(kit)


def last_run(project: Project) -> str:
    """The run that was begun last."""
    begun = [(file.stat().st_mtime, file.parent.name) for file in (project.folder / "runs").glob("*/settings.json")]
    if not begun:
        raise MissingDataError(f"{project.folder} has no run yet: begin one with fedspray deploy run {project.folder}")
    return max(begun)[1]


def unfinished_runs(project: Project) -> list[str]:
    """Runs that were begun and have no result."""
    begun = sorted(file.parent for file in (project.folder / "runs").glob("*/settings.json"))
    return [folder.name for folder in begun if not (folder / "result.json").exists()]


def resumable_runs(project: Project) -> list[str]:
    """Runs that a driver should bring to their end: begun some time ago, driven by nobody, not stopped for a reason."""
    return [
        name
        for name in unfinished_runs(project)
        if holder(project.run_folder(name) / "driver.lock") is None
        and read_progress(project.run_folder(name)).get("state") != "stopped"
        and time.time() - (project.run_folder(name) / "settings.json").stat().st_mtime > FRESH
    ]


def project_status(project: Project) -> dict[str, Any]:
    """The server's process, the sites with their jobs (None: not connected), and every run."""
    agreement = project.agreement()
    answering: dict[str, set[str]] = {}
    sites = project.proposed().roster.clients
    server = processes.running(project.server)
    if server is not None:
        try:
            with AdminSession(project.coordinator) as session:
                answering = session.sites()
        except Unreachable:
            server = None
    names = sorted(file.parent.name for file in (project.folder / "runs").glob("*/settings.json"))
    return {
        "address": str(project.address),
        "server": server,
        "agreement": agreement.fingerprint(),
        "fingerprint": federation_fingerprint(project.coordinator, project.proposed().fingerprint()),
        "sites": {name: sorted(answering[name]) if name in answering else None for name in sites},
        "without_certificate": project.without_certificate(),
        "since": {name: since for name, (_, since) in presence(project.server).items()},
        "left": sorted(members.left(project.server)),
        "about": dict(project.about),
        "disabled": [name for name, member in members.read(project.server).items() if member.disabled],
        "events": read_events(project.server),
        "runs": {name: _run_status(project, name) for name in names},
        "ledgers": ledgers(project),
    }


def missed_rounds(project: Project, run: str) -> dict[str, list[int]]:
    """The rounds of training that ended without a site's answer, by site."""
    folder = project.run_folder(run)
    settings = stored.read(folder / "settings.json", stored.Settings)
    missed: dict[str, list[int]] = {}
    for seed in settings["run"]["seeds"]:
        rounds = _rounds_of(folder, seed, settings)
        for exchange in read_exchanges(folder, seed):
            for site, answer in exchange["sites"].items():
                if answer["failed"] is not None and exchange["round"] <= rounds:
                    missed.setdefault(site, []).append(exchange["round"])
    return missed


def _rounds_of(folder: Path, seed: int, settings: Json) -> int:
    """The rounds of a finished seed, which patience may have ended early; of others, those that were agreed on."""
    result = folder / f"seed-{seed}" / "result.json"
    found = stored.read(result, stored.Seed) if result.exists() else settings["settings"]
    return int(found["rounds"])


def ledgers(project: Project) -> dict[str, dict[str, Any]]:
    """By site: how its ledger ended when it answered last, and when that was."""
    found: dict[str, dict[str, Any]] = {}
    for file in (project.folder / "runs").glob(f"*/seed-*/{EXCHANGES}"):
        for line in stored.read_lines(file, kinds.Exchange):
            for site, answer in line["sites"].items():
                if answer.get("ledger") and line["time"] >= found.get(site, line)["time"]:
                    found[site] = {"time": line["time"], "head": answer["ledger"]}
    return found


def _run_status(project: Project, run: str) -> dict[str, Any]:
    folder = project.run_folder(run)
    progress = read_progress(folder)
    done = (folder / "result.json").exists()
    alive = holder(folder / "lock") is not None
    state = "done" if done else progress.get("state", "waiting") if alive else "not running"
    if progress.get("state") == "stopped" and not done:
        state = "stopped"
    settings = stored.read(folder / "settings.json", stored.Settings)
    rounds = _rounds_of(folder, progress.get("seed", settings["run"]["seeds"][0]), settings)
    return {
        "state": state,
        "reason": progress.get("reason"),
        "seed": progress.get("seed"),
        "round": min(progress.get("round", 0), rounds),
        "rounds": rounds,
        "waiting_for": progress.get("waiting_for") or [] if alive else [],
        "missed": missed_rounds(project, run),
        "events": read_events(folder),
        "jobs": len(stored.read(folder / "jobs.json", kinds.Jobs)["jobs"]) if (folder / "jobs.json").exists() else 0,
    }
