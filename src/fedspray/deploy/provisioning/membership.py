"""Sites that come and go, and certificates that are renewed: without a new project, and without losing runs.

A site that is added stands behind the others in the agreement, so their numbers stay; it takes part once the sites
have agreed and it is connected, and a run that is under way goes on with it. A site that is removed keeps its number
and is not asked any more. Renewing changes no key, so neither the agreement nor the list of members changes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedspray.deploy.agreement import check_name
from fedspray.deploy.ledger import write_event
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.archive import pack
from fedspray.deploy.provisioning.certificates import AUTHORITY, CERTIFICATE, key_of, read_certificate, read_request
from fedspray.deploy.provisioning.federation import check_site, sign
from fedspray.deploy.provisioning.kits import PROJECT, add_kits
from fedspray.deploy.provisioning.project import Project
from fedspray.errors import InputError, MissingDataError
from fedspray.files import private_files

NAMES = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.UNSTRUCTURED_NAME)
"""Where a certificate has its owner's name, organisation and, for the coordinator, role."""


@dataclass(frozen=True)
class Applicant:
    """A site as the coordinator knows it before it is there."""

    name: str
    organisation: str | None = None
    contact: str | None = None
    """Whom to call when it is away."""
    nodes: int | None = None
    """How many its graph should have."""


def read_sites(file: Path) -> list[Applicant]:
    """Reads a TOML file with a table ``[[site]]`` for each site: name, organisation, contact, nodes."""
    try:
        content = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise MissingDataError(f"{file} is missing, but a list of sites is needed") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a TOML file that can be read ({error})") from None
    rows = content.get("site")
    if not isinstance(rows, list) or not rows or set(content) != {"site"}:
        raise InputError(f"{file} must hold a table [[site]] for each site, and nothing else")
    return [_applicant(row, file) for row in rows]


def known_of(sites: Sequence[Applicant]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """The organisations of sites, and what else is known about them, as a project keeps both."""
    rows = {site.name: {"contact": site.contact, "nodes": site.nodes} for site in sites}
    about = {name: {key: value for key, value in row.items() if value is not None} for name, row in rows.items()}
    organisations = {check_name("site", site.name): site.organisation or site.name for site in sites}
    for organisation in organisations.values():
        check_name("organisation", organisation)
    return organisations, {name: row for name, row in about.items() if row}


def _applicant(row: Mapping[str, Any], file: Path) -> Applicant:
    kinds = {"name": str, "organisation": str, "contact": str, "nodes": int}
    for key, value in row.items():
        if key not in kinds or not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise InputError(f"{key} = {value!r} in {file} is not one of: name, organisation, contact (texts), nodes")
    if "name" not in row:
        raise InputError(f"a site in {file} has no name")
    return Applicant(**row)


@private_files()
def add(project: Project, sites: Sequence[Applicant]) -> None:
    """Writes a new agreement with further sites, for all sites to agree to, and makes the new ones' kits."""
    known, left = project.proposed().roster.clients, members.left(project.server)
    for site in sites:
        check_name("site", site.name)
        if site.name in known and site.name not in left:
            raise InputError(f"{site.name} is a site of {project.folder} already")
        if site.name == project.address.host:
            raise InputError(f"a site cannot be called {site.name!r}: it is the server's host name")
    organisations, about = known_of(sites)
    project = replace(
        project, organisations={**project.organisations, **organisations}, about={**project.about, **about}
    )
    old = project.proposed()
    new = tuple(site.name for site in sites if site.name not in known)
    agreement = replace(old, roster=replace(old.roster, clients=(*known, *new)))
    add_kits(project.folder, agreement, [site.name for site in sites], project.address, project.organisations)
    for site in sites:
        members.set_left(project.server, site.name, False)
    agreement.save(project.folder)
    project.save()


def approve(project: Project, request: Path, *, again: bool = False) -> Path:
    """Signs a site's request, and adds the site first if it is new; returns the zip file for it."""
    name, _ = read_request(request)
    if name not in project.proposed().roster.clients or name in members.left(project.server):
        add(project, [Applicant(name)])
    return sign(Project.open(project.folder), request, again=again)


def remove(project: Project, site: str) -> bool:
    """Cuts a site off for good; runs go on without it. Returns whether it was there."""
    check_site(project, site)
    changed = members.set_left(project.server, site, True)
    if changed:
        write_event(project.server, "removed", site, "the coordinator removed this site")
    return changed


@private_files()
def renew(project: Project, *, valid_days: int, new_authority: bool = False) -> list[Path]:
    """Makes new certificates for the keys that are there, and returns the zip files for the sites.

    Args:
        project: whose server, coordinator and sites get them.
        valid_days: how long they are valid.
        new_authority: sign them with a new key. The server takes them on when it is started again, and from then on
            no site is let in that did not take on its own; without it old and new ones work beside each other.
    """
    from nvflare.lighter.utils import Identity, serialize_cert

    from fedspray.deploy.provisioning.authority import Authority

    folder, old = project.folder / "ca", Authority.load(project.folder / "ca")
    authority = Authority.make(PROJECT, valid_days) if new_authority else old.renewed(valid_days)
    left = members.left(project.server)
    signed = [name for name in project.with_certificate() if name not in left]
    for kit in (project.server, project.coordinator, *map(project.site, signed)):
        own = kit / "startup" / ("server.crt" if kit == project.server else CERTIFICATE)
        before = read_certificate(own)
        identity = Identity(*(_named(before, oid) for oid in NAMES))
        host = project.address.host if kit == project.server else None
        own.write_bytes(authority.issue(identity, key_of(before), host))
        (kit / "startup" / AUTHORITY).write_bytes(serialize_cert(authority.certificate))
    authority.save(folder)
    write_event(project.server, "renewed", "coordinator", f"certificates of {', '.join(signed)}, for {valid_days} days")
    return [pack(project, name, project.proposed()) for name in signed]


def _named(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str | None:
    """A part of the name that a certificate is for."""
    found = certificate.subject.get_attributes_for_oid(oid)
    return str(found[0].value) if found else None
