"""What the coordinator does to a federation: makes it, signs requests, cuts sites off, changes the agreement."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedspray import files
from fedspray.data.federation import Task
from fedspray.data.graph import repeated
from fedspray.deploy.agreement import MOST, Agreement, check_name
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.archive import pack
from fedspray.deploy.provisioning.certificates import CERTIFICATE, KEY, key_fingerprint, read_request
from fedspray.deploy.provisioning.kits import Address, make_kits
from fedspray.deploy.provisioning.project import Project
from fedspray.errors import InputError, MissingDataError
from fedspray.experiment import Experiment, RunSettings
from fedspray.files import private_files
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
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[Path, Path | None]:
    """Makes a project; returns the zip files that can be sent now, and for each the request that was signed.

    A site gets its zip file when its certificate request is signed: now, if it is in the folder ``requests``, or
    later with `sign`. With ``make_keys``, the keys of the other sites are made here; each is in its zip file alone.
    """
    project = Project(folder, address, grace, organisations, about or {})
    signed = _requests(requests, agreement)
    made = [name for name in agreement.roster.clients if make_keys and name not in signed]
    for organisation in organisations.values():
        check_name("organisation", organisation)
    if address.host in agreement.roster.clients:
        raise InputError(f"a site cannot be called {address.host!r}: it is the server's host name")
    files.new_folder(folder)
    try:
        agreement = make_kits(
            folder, agreement, address, keys_for=made, organisations=organisations, valid_days=valid_days
        )
        (folder / "runs").mkdir()
        agreement.save(folder)
        project.save()
        archives: dict[Path, Path | None] = {sign(project, file): file for file in signed.values()}
        for name in made:
            archives[pack(project, name, agreement)] = None
            (project.site(name) / "startup" / KEY).unlink()
        return archives
    except BaseException:
        shutil.rmtree(folder)  # nothing half-made is left behind
        raise


@private_files()
def sign(project: Project, request: Path, *, again: bool = False) -> Path:
    """Signs a site's certificate request and returns the zip file to send to it, which holds no secret."""
    from nvflare.lighter.utils import Identity

    from fedspray.deploy.provisioning.authority import Authority

    agreement = project.proposed()
    name, key = read_request(request)
    if name not in agreement.roster.clients:
        raise InputError(f"{request} is for {name!r}, but the sites are {', '.join(agreement.roster.clients)}")
    kit = project.site(name)
    certificate = kit / "startup" / CERTIFICATE
    if certificate.exists() and not again:
        raise InputError(
            f"{name} has a certificate already: give --again to sign another one, which replaces the first"
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


def set_disabled(project: Project, site: str, disabled: bool) -> bool:
    """Cuts a site off, at once, or lets it in again; returns whether this changed anything."""
    check_site(project, site)
    return members.set_disabled(project.server, site, disabled)


def check_site(project: Project, site: str) -> None:
    """Refuses a name that no site of a project has."""
    sites = project.proposed().roster.clients
    if site not in sites:
        raise InputError(f"{site!r} is not a site of {project.folder}: the sites are {', '.join(sites)}")


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
