"""What is sent to a site: its kit as one zip file, with a page for its engineer."""

from __future__ import annotations

import os
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from fedspray.deploy.agreement import Agreement
from fedspray.deploy.provisioning.certificates import AUTHORITY, CERTIFICATE, KEY, check_key, read_certificate
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError, MissingDataError
from fedspray.files import private_files

MOST_BYTES = 10_000_000
"""A kit has less than 100,000."""
PAGE = """# {federation}: {site}

This folder makes your organisation a site of the federation "{federation}". Your data stay with you.
You need Linux, Python 3.11 or newer, and one outgoing TCP connection to {address}. No port is opened here.

1. Install fedspray {version} from the wheel and the `constraints.txt` that the coordinator sends:
   `pip install -c constraints.txt 'fedspray-{version}-py3-none-any.whl[deploy]'`
   and unpack this file with `fedspray site unpack KIT {site}.zip`, where KIT is the folder in which you made your
   private key with `fedspray site request` (a new one if the coordinator made it). Compare the fingerprint that it
   prints with the coordinator's, by phone. Then, in KIT:
2. Check, with the folder (or npz file) of your data: `fedspray site check . --data /path/to/data`
3. Start: `fedspray site start .` (for a service that survives reboots, see `fedspray site service`). Each run then
   waits for your yes: `fedspray site runs .`, `fedspray site accept . RUN`. For a trial, start with `--accept-all`.
4. Look: `fedspray site status .`, and what has left your site so far: `fedspray site ledger .`
5. Stop: `fedspray site stop .`

What will run is in `local/agreement.json`: {algorithm} with {backbone}, {rounds} rounds, {features} features and
{classes} classes per node, sites {sites}. Nothing else can be run here: jobs bring no code, and a job
for another agreement is refused.

What leaves: for each round the model parts and counts that `fedspray site check` lists. They reveal, among other
things, how many training nodes you have and how they are distributed over classes.

Yours alone: `local/site.json` (where your data are), `state/` (the last two rounds), `models/` (your personal
model, for `fedspray predict`), `ledger.jsonl`. Keep `startup/client.key` secret.
"""


def pack(project: Project, site: str, agreement: Agreement) -> Path:
    """Writes a site's kit and its page into a zip file."""
    settings, roster, kit = agreement.settings, agreement.roster, project.site(site)
    replace(Site.open(kit), expected_nodes=project.about.get(site, {}).get("nodes")).save()
    page = PAGE.format(
        federation=roster.name,
        site=site,
        version=agreement.version,
        address=project.address,
        algorithm=settings.algorithm,
        backbone=settings.of_client(site).backbone,
        rounds=agreement.resolved.rounds.rounds,
        features=roster.task.num_features,
        classes=roster.task.num_classes,
        sites=", ".join(roster.clients),
    )
    (kit / "README.md").write_text(page)
    target = project.folder / "zips" / f"{site}.zip"
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(kit.rglob("*")):
            if file.is_file():
                archive.write(file, f"{roster.name}-{site}/{file.relative_to(kit)}")
    return target


@private_files()
def unpack(archive_file: Path, kit: Path) -> Site:
    """Unpacks a zip file that `pack` wrote into ``kit``, around the private key that `make_request` left there."""
    if (kit / "local").exists():
        raise InputError(f"{kit} holds a start-up kit already: choose another folder")
    nearest = next(folder for folder in (kit, *kit.absolute().parents) if folder.exists())
    with tempfile.TemporaryDirectory(dir=nearest) as place:
        new = _extract(archive_file, Path(place))
        if (new / "startup" / KEY).is_file() and (kit / "startup" / KEY).exists():
            raise InputError(f"{archive_file} brings a private key, but {kit} has one already: choose another folder")
        if not (new / "startup" / KEY).is_file():
            check_key(kit / "startup" / KEY, read_certificate(new / "startup" / CERTIFICATE))
        site = Site.open(new)
        (kit / "startup").mkdir(parents=True, exist_ok=True)
        for file in (new / "startup").iterdir():
            file.rename(kit / "startup" / file.name)
        (new / "README.md").rename(kit / "README.md")
        (new / "local").rename(kit / "local")  # last: now it is a kit
    return replace(site, folder=kit)


@private_files()
def take_certificates(archive_file: Path, kit: Path) -> Site:
    """Puts the certificates of a zip file that `pack` wrote into a kit that is in use; its key and all else stay."""
    site = Site.open(kit)
    nearest = next(folder for folder in (kit, *kit.absolute().parents) if os.access(folder, os.W_OK))
    with tempfile.TemporaryDirectory(dir=nearest) as place:
        new = _extract(archive_file, Path(place))
        if Site.open(new).name != site.name:
            raise InputError(f"{archive_file} is for {Site.open(new).name!r}, but {kit} is the kit of {site.name!r}")
        check_key(kit / "startup" / KEY, read_certificate(new / "startup" / CERTIFICATE))
        for name in (CERTIFICATE, AUTHORITY):
            (new / "startup" / name).replace(kit / "startup" / name)
    return site


def _extract(archive_file: Path, place: Path) -> Path:
    try:
        with zipfile.ZipFile(archive_file) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise InputError(f"{archive_file} unpacks to more than {MOST_BYTES:,} bytes: it is not a site's kit")
            archive.extractall(place)
    except FileNotFoundError:
        raise MissingDataError(f"{archive_file} is missing, but the coordinator's zip file is needed") from None
    except zipfile.BadZipFile as error:
        raise InputError(f"{archive_file} is not a zip file that can be read ({error})") from None
    found = list(place.iterdir())
    parts = ("local/site.json", f"startup/{CERTIFICATE}", "README.md")
    if len(found) != 1 or not all((found[0] / part).is_file() for part in parts):
        raise InputError(f"{archive_file} is not a site's kit: it must hold one folder with {', '.join(parts)}")
    return found[0]
