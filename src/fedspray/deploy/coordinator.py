"""What the coordinator does beside driving a run: making a project, beginning runs, looking at them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedspray import files
from fedspray.data.federation import Task
from fedspray.data.graph import repeated
from fedspray.deploy import members, processes
from fedspray.deploy.agreement import MOST, Agreement, check_name
from fedspray.deploy.board import read_exchanges, read_progress
from fedspray.deploy.certificates import CERTIFICATE, KEY, check_dates, key_fingerprint, read_request
from fedspray.deploy.kits import Address, make_kits
from fedspray.deploy.locks import holder
from fedspray.deploy.parcels import pack
from fedspray.deploy.privacy import private_files
from fedspray.deploy.project import Project
from fedspray.deploy.protocol import read_events
from fedspray.deploy.session import AdminSession, Unreachable
from fedspray.errors import InputError, MissingDataError
from fedspray.experiment import Experiment, RunSettings
from fedspray.runs import store
from fedspray.runs.run import begin_with
from fedspray.runs.settings import resolve


def schema(features: str, classes: str) -> Task:
    """The task, from the numbers of features and classes or their names."""
    num_features, feature_names = _count_or_names("--features", features, at_least=1)
    num_classes, class_names = _count_or_names("--classes", classes, at_least=2)
    return Task(num_features, num_classes, class_names, feature_names)


def _count_or_names(flag: str, given: str, at_least: int) -> tuple[int, tuple[str, ...] | None]:
    """``3``, ``a,b,c``, or a text file with a name on each line; None for names that are not given."""
    if re.fullmatch("[0-9]+", given):
        digits = given.lstrip("0") or "0"
        if len(digits) > len(str(MOST)) or int(digits) > MOST:
            raise InputError(f"{flag} is {given[:60]}, but must be at most {MOST:,}")
        if int(digits) < at_least:
            raise InputError(f"{flag} is {given}, but must be at least {at_least}")
        return int(digits), None
    names = tuple(part.strip() for part in _listed(flag, given))
    if len(names) < 2 or not all(names):
        shown = given if len(given) <= 60 else f"{given[:60]}…"
        raise InputError(
            f"{flag} is {shown!r}, but must be a number, at least two names (a,b), or a file with one on each line"
        )
    twice = repeated(names)
    if twice is not None:
        raise InputError(f"{flag} names {twice!r} twice, but names must differ")
    return len(names), names


def _listed(flag: str, given: str) -> list[str]:
    file = Path(given)
    try:
        is_file = file.is_file()
    except OSError:  # too long for a path
        is_file = False
    if is_file and "," in given:
        raise InputError(
            f"{flag} is {given!r}, which is a list of names and a file too: give the file a name without a comma"
        )
    if not is_file:
        return given.split(",")
    try:
        return file.read_text().splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{flag} is {given!r}, which is not a text file, but must have a name on each line") from None


@private_files()
def init_project(
    folder: Path,
    agreement: Agreement,
    address: Address,
    *,
    grace: float,
    organisations: Mapping[str, str],
    requests: Path | None,
    make_keys: bool,
    valid_days: int,
) -> dict[Path, Path | None]:
    """Makes a project; returns the zip files that can be sent now, and for each the request that was signed.

    A site gets its zip file when its certificate request is signed: now, if it is in the folder ``requests``, or
    later with `sign`. With ``make_keys``, the keys of the other sites are made here; each is in its zip file alone.
    """
    project = Project(folder, address, grace, organisations)
    signed = _requests(requests, agreement)
    made = [name for name in agreement.roster.clients if make_keys and name not in signed]
    for organisation in organisations.values():
        check_name("organisation", organisation)
    if address.host in agreement.roster.clients:
        raise InputError(f"a site cannot be called {address.host!r}: it is the server's host name")
    store.new_folder(folder)
    try:
        agreement = make_kits(
            folder, agreement, address, keys_for=made, organisations=organisations, valid_days=valid_days
        )
        (folder / "runs").mkdir()
        agreement.save(folder)
        project.save()
        parcels: dict[Path, Path | None] = {sign(project, file): file for file in signed.values()}
        for name in made:
            parcels[pack(project, name, agreement)] = None
            (project.site(name) / "startup" / KEY).unlink()
        return parcels
    except BaseException:
        shutil.rmtree(folder)  # nothing half-made is left behind
        raise


@private_files()
def sign(project: Project, request: Path, *, again: bool = False) -> Path:
    """Signs a site's certificate request and returns the zip file to send to it, which holds no secret."""
    from nvflare.lighter.utils import Identity

    from fedspray.deploy.authority import Authority

    agreement = project.agreement()
    name, key = read_request(request)
    if name not in agreement.roster.clients:
        raise InputError(f"{request} is for {name!r}, but the sites are {', '.join(agreement.roster.clients)}")
    kit = project.site(name)
    certificate = kit / "startup" / CERTIFICATE
    if certificate.exists() and not again:
        raise InputError(
            f"{name} has a certificate already: give --again to sign another one, which takes the first one's place"
        )
    organisation = project.organisations.get(name, name).replace("-", "_")
    certificate.write_bytes(Authority.load(project.folder / "ca").issue(Identity(name, organisation), key))
    members.put_key(project.server, name, key_fingerprint(key))
    agreement.save(kit / "local")  # it may have been amended since
    return pack(project, name, agreement)


def amended(old: RunSettings, given: Mapping[str, Any]) -> RunSettings:
    """The settings that were agreed on, with the flags that are given now.

    Where the algorithm or the backbone changes, settings that the new one does not have are left out, and so is a
    preset of the old algorithm.
    """
    new = Experiment.from_values(given, "command line").run
    changed = {each.name for each in fields(RunSettings)} & set(given) - {"backbone_of", "seeds"}
    if "algorithm" in changed and new.algorithm != old.algorithm:
        changed.add("preset")
    merged = replace(
        old,
        **{name: getattr(new, name) for name in changed},
        values={},
        backbone_of={**old.backbone_of, **new.backbone_of},
        seeds=new.seeds if {"seed", "seeds"} & set(given) else old.seeds,
    )
    known = resolve(merged).values
    return replace(merged, values={**{k: v for k, v in old.values.items() if k in known}, **new.values})


def begin_run(project: Project, name: str | None) -> str:
    """Makes the folder of a new run and returns the run's name."""
    chosen = check_name("run", name or datetime.now().strftime("run-%Y%m%d-%H%M%S"))
    agreement = project.agreement()
    begin_with(project.run_folder(chosen), agreement.roster, agreement.settings, None, None)
    agreement.save(project.run_folder(chosen))
    return chosen


def set_disabled(project: Project, site: str, disabled: bool) -> bool:
    """Cuts a site off, at once, or lets it in again; returns whether this changed anything."""
    sites = project.agreement().roster.clients
    if site not in sites:
        raise InputError(f"{site!r} is not a site of {project.folder}: the sites are {', '.join(sites)}")
    return members.set_disabled(project.server, site, disabled)


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


def project_status(project: Project) -> dict[str, Any]:
    """The server's process, the sites with their jobs (None: not connected), and every run."""
    agreement = project.agreement()
    answering: dict[str, set[str]] = {}
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
        "sites": {name: sorted(answering[name]) if name in answering else None for name in agreement.roster.clients},
        "without_certificate": project.without_certificate(),
        "disabled": [name for name, member in members.read(project.server).items() if member.disabled],
        "events": read_events(project.server),
        "runs": {name: _run_status(project, name) for name in names},
    }


def missed_rounds(project: Project, run: str) -> dict[str, list[int]]:
    """The rounds that ended without a site's answer, by site."""
    folder = project.run_folder(run)
    missed: dict[str, list[int]] = {}
    for seed in files.read_json(folder / "settings.json")["run"]["seeds"]:
        for exchange in read_exchanges(folder, seed):
            for site, answer in exchange["sites"].items():
                if answer["failed"] is not None:
                    missed.setdefault(site, []).append(exchange["round"])
    return missed


def _run_status(project: Project, run: str) -> dict[str, Any]:
    folder = project.run_folder(run)
    progress = read_progress(folder)
    done = (folder / "result.json").exists()
    alive = holder(folder / "lock") is not None
    state = "done" if done else progress.get("state", "waiting") if alive else "not running"
    if progress.get("state") == "stopped" and not done:
        state = "stopped"
    rounds = files.read_json(folder / "settings.json")["settings"]["rounds"]
    return {
        "state": state,
        "reason": progress.get("reason"),
        "seed": progress.get("seed"),
        "round": min(progress.get("round", 0), rounds),
        "rounds": rounds,
        "waiting_for": progress.get("waiting_for") or [] if alive else [],
        "missed": missed_rounds(project, run),
        "jobs": len(files.read_json(folder / "jobs.json")["jobs"]) if (folder / "jobs.json").exists() else 0,
    }


def _requests(folder: Path | None, agreement: Agreement) -> dict[str, Path]:
    if folder is None:
        return {}
    files = {file.stem: file for file in sorted(folder.glob("*.csr"))}
    if not files:
        raise MissingDataError(f"--csr {folder} holds no file SITE.csr")
    for stem, file in files.items():
        if stem not in agreement.roster.clients:
            raise InputError(f"{file} is for no site: the sites are {', '.join(agreement.roster.clients)}")
        name, _ = read_request(file)
        if name != stem:
            raise InputError(f"{file} asks for a certificate for {name!r}, but must be for {stem!r}")
    return files
