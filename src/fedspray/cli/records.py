"""Commands about what a federation keeps: events for a SIEM, backups, and forgetting a site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from fedspray import files
from fedspray.cli.flags import AsJson, argument, flag
from fedspray.cli.organisations import Kit, ProjectFolder, SiteName, confirm, organisational
from fedspray.cli.output import Output
from fedspray.errors import InputError

NewFolder = Annotated[Path, argument("A new folder.", "DIR")]
Archive = Annotated[Path, argument("A file that `backup` wrote.", "FILE.zip")]
Follow = Annotated[bool, flag("Keep waiting for new events.")]
EventsFile = Annotated[
    Path | None,
    flag("Append to this file, skipping events it already has.", "FILE", default="standard output", name="--out"),
]
BackupFile = Annotated[Path, flag("A new file.", "FILE.zip", name="--out")]
WithKeys = Annotated[bool, flag("Include private keys: whoever reads the file can then impersonate you.")]


def deploy_events(folder: ProjectFolder, /, *, follow: Follow = False, out: EventsFile = None) -> None:
    """Print everything that happened to the server and its runs, one JSON object per line."""
    _events(folder, follow, out)


def site_events(kit: Kit, /, *, follow: Follow = False, out: EventsFile = None) -> None:
    """Print everything that happened at this site, and every answer that left, one JSON object per line."""
    _events(kit, follow, out)


def _events(folder: Path, follow: bool, out: Path | None) -> None:
    from fedspray.deploy.operations.events import stream

    with files.private_files():
        seen = out.read_text().splitlines() if out is not None and out.exists() else []
        for line in stream(folder, follow=follow, seen=seen):
            if out is not None:
                files.append_line(out, line)
            else:
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()


@organisational
def deploy_backup(
    folder: ProjectFolder, /, *, out: BackupFile, with_keys: WithKeys = False, as_json: AsJson = False
) -> None:
    """Back up a project into one file; stop the server first."""
    _backup(folder, "project", out, with_keys, as_json)


@organisational
def site_backup(kit: Kit, /, *, out: BackupFile, with_keys: WithKeys = False, as_json: AsJson = False) -> None:
    """Back up a kit into one file; stop the site first."""
    _backup(kit, "site", out, with_keys, as_json)


def _backup(folder: Path, kind: str, out: Path, with_keys: bool, as_json: bool) -> None:
    from fedspray.deploy.provisioning.backup import backup, kind_of

    if kind_of(folder) != kind:
        raise InputError(f"{folder} is a {kind_of(folder)}, but must be a {kind}")
    output, made = Output(as_json), backup(folder, out, keys=with_keys)
    keys = "with private keys: keep it as safe as these" if with_keys else "without private keys: keep these apart"
    output.note(f"{out} holds {len(made['files'])} files, {keys}")
    output.result(made)


@organisational
def deploy_restore(archive: Archive, folder: NewFolder, /, *, as_json: AsJson = False) -> None:
    """Restore a project from a backup into a new folder; nothing is overwritten."""
    _restore(archive, folder, "project", as_json)


@organisational
def site_restore(archive: Archive, kit: NewFolder, /, *, as_json: AsJson = False) -> None:
    """Restore a kit from a backup into a new folder; nothing is overwritten."""
    _restore(archive, kit, "site", as_json)


def _restore(archive: Path, folder: Path, kind: str, as_json: bool) -> None:
    from fedspray.deploy.provisioning.backup import missing_keys, restore

    output, found = Output(as_json), restore(archive, folder, kind)
    output.note(f"{folder} is as it was at {found['time']}: {len(found['files'])} files, each with the right sha256")
    for key in missing_keys(folder, kind):
        output.note(f"put {key} back: the backup holds no private keys")
    output.result(found)


@organisational
def forget(folder: ProjectFolder, site: SiteName, /, *, yes: Annotated[bool, flag("Do not ask.")] = False) -> None:
    """Remove a site and delete everything the project holds about it alone; models keep what they learned from it."""
    from fedspray.deploy.provisioning.federation import check_site
    from fedspray.deploy.provisioning.forget import forget
    from fedspray.deploy.provisioning.project import Project

    project = Project.open(folder)
    check_site(project, site)
    if not yes:
        confirm(f"Delete what is known of {site}, for good?", f"{site} was not forgotten")
    forget(project, site)
    output = Output()
    output.note(f"{site} is forgotten; its name stays in the agreement, which the others agreed to")
    output.note("sums over all sites and models of past rounds still hold what it added to them")
