"""One archive of a project or of a site's kit, and back: with a sha256 of every file.

Locks, logs and NVFlare's working folders are left out, and so are private keys, unless you ask for them. The archive
holds models and a site's state, so it is as confidential as the folder itself.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from fedspray import files
from fedspray.deploy import ledger
from fedspray.deploy.locks import PID_FILE, holder
from fedspray.errors import InputError, MissingDataError
from fedspray.files import Json

LIST = "backup.json"
PARTS = {
    "project": ("project.json", "agreement.json", "ca", "zips", "kits", "runs"),
    "site": ("startup", "local", "state", "models", "README.md", ledger.LEDGER),
}
"""What is kept of each kind of folder."""
OF_KITS = ("startup", "local", "state", "README.md", ledger.EVENTS)
"""What is kept of the kits inside a project."""


def kind_of(folder: Path) -> str:
    """Whether a folder is a "project" or a "site"."""
    for kind, sign in (("project", "project.json"), ("site", "local/site.json")):
        if (folder / sign).is_file():
            return kind
    raise MissingDataError(f"{folder} is neither a project nor a site's start-up kit")


@files.private_files()
def backup(folder: Path, target: Path, *, keys: bool) -> Json:
    """Writes an archive, for its owner alone; returns what is in it."""
    kind = kind_of(folder)
    check_quiet(folder, kind)
    if target.exists():
        raise InputError(f"{target} exists already: choose a new file")
    found = sorted(path for path in _kept(folder, kind) if keys or not _is_secret(path))
    hashes = {path.relative_to(folder).as_posix(): _hash(path) for path in found}
    content = {"kind": kind, "fedspray": version("fedspray"), "time": ledger.now(), "keys": keys, "files": hashes}
    with files.replacement(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in hashes:
            archive.write(folder / name, name)
        archive.writestr(LIST, json.dumps(files.seal(content), indent=2))
    ledger.write_event(folder / "kits" / "server" if kind == "project" else folder, "backup", kind, target.name)
    return content


@files.private_files()
def restore(archive_file: Path, folder: Path, kind: str) -> Json:
    """Unpacks an archive into a new folder, after checking every file; returns what was in it."""
    files.check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".restore-") as place:
        content = _unpacked(archive_file, Path(place) / "new")
        if content["kind"] != kind:
            raise InputError(f"{archive_file} is the backup of a {content['kind']}, but that of a {kind} is needed")
        if folder.exists():
            folder.rmdir()
        (Path(place) / "new").rename(folder)
    server_or_site = folder / "kits" / "server" if kind == "project" else folder
    ledger.write_event(server_or_site, "restored", kind, f"from {archive_file.name}, of {content['time']}")
    return content


def missing_keys(folder: Path, kind: str) -> list[Path]:
    """The private keys that a restored folder lacks."""
    of_project = ("ca/rootCA.key", "kits/server/startup/server.key", "kits/coordinator/startup/client.key")
    wanted = of_project if kind == "project" else ("startup/client.key",)
    return [folder / name for name in wanted if not (folder / name).exists()]


def _unpacked(archive_file: Path, place: Path) -> Json:
    place.mkdir()
    try:
        with zipfile.ZipFile(archive_file) as archive:
            if LIST not in archive.namelist():
                raise InputError(f"{archive_file} is not a backup: {LIST} is missing")
            archive.extractall(place)
    except FileNotFoundError:
        raise MissingDataError(f"{archive_file} is missing, but a backup is needed") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{archive_file} is not a backup that can be read ({error})") from None
    content = files.read_json(place / LIST)
    (place / LIST).unlink()
    found = {path.relative_to(place).as_posix(): _hash(path) for path in place.rglob("*") if path.is_file()}
    wrong = sorted(
        name for name in found.keys() | content["files"].keys() if found.get(name) != content["files"].get(name)
    )
    if wrong:
        raise InputError(f"{archive_file} is damaged: {wrong[0]} is not as it was ({len(wrong)} such files)")
    return content


def check_quiet(folder: Path, kind: str) -> None:
    """Nothing may change while it is copied."""
    kits = [folder / "kits" / "server"] if kind == "project" else [folder]
    runs = [lock for lock in folder.glob("runs/*/*lock") if holder(lock) is not None]
    busy = [kit for kit in kits if holder(kit / PID_FILE) is not None] + runs
    if busy:
        stop = f"fedspray {'deploy' if kind == 'project' else 'site'} stop {folder}"
        if busy[0].name == "driver.lock":
            stop = f"Ctrl-C in the terminal of `fedspray deploy run`, process {holder(busy[0])}"
        raise InputError(f"{busy[0]} is in use: stop it first ({stop})")


def _kept(folder: Path, kind: str) -> Iterator[Path]:
    for part in PARTS[kind]:
        for path in [folder / part, *(folder / part).rglob("*")]:
            inside = path.relative_to(folder).parts
            extra = inside[0] == "kits" and len(inside) > 2 and inside[2] not in OF_KITS
            if path.is_file() and not path.is_symlink() and not extra and not _is_passing(path):
                yield path


def _is_secret(path: Path) -> bool:
    """A private key, or a zip file for a site, which may hold one."""
    return path.suffix == ".key" or path.parent.name == "zips"


def _is_passing(path: Path) -> bool:
    return files.is_leftover(path) or path.name.endswith(("lock", ".pid"))


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
