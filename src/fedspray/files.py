"""Files that are written whole or not at all, and that reveal later changes.

Our own JSON objects end with a seal, the sha256 of everything before it; the seal of a
line covers the line before it too, so no line can go missing. Readers check and remove the seal. Files of
older versions have none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedspray.errors import InputError, MissingDataError, disk_full_at

Json = dict[str, Any]
"""A JSON object."""

LOCK = ".lock"
"""Held by the process that writes into a folder."""

OWNER_ALONE = 0o077
"""The umask of every process of a federation: folders are made with mode 700 and files with mode 600."""

_SEAL = "seal"
_HASH = "sha256:"


def write_text(path: Path, text: str) -> None:
    """Writes a file in one step: it is there, whole and on disk, or not at all."""
    with replacement(path) as temporary:
        temporary.write_text(text)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON for other programs in one step."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON of our own in one step."""
    write_json(path, seal(content))


def read_json(path: Path, what: str = "a run folder") -> dict[str, Any]:
    """Reads a JSON object and checks its seal, if it has one; ``what`` is the kind of folder that should hold it."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise MissingDataError(f"{path} is missing: {path.parent} is not {what}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} does not hold a JSON object")
    return unseal(content, path)


def seal(content: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The content with its seal; ``before`` is the seal of the line before."""
    text = before + json.dumps(content, allow_nan=False)
    return {**content, _SEAL: _HASH + hashlib.sha256(text.encode()).hexdigest()}


def unseal(content: Mapping[str, Any], path: object, before: str = "") -> dict[str, Any]:
    """The content without its seal; refuses content changed since it was sealed.

    The seal comes last. A damaged one is recognised by its key or its value.
    """
    rest = dict(content)
    name, value = rest.popitem() if rest else ("", None)
    if name != _SEAL and not (isinstance(value, str) and value.startswith(_HASH)):
        return dict(content)
    if seal(rest, before) != content:
        raise InputError(f"{path} is damaged: it was changed after it was written")
    return rest


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A temporary file that replaces another once it is on disk; removed after an error."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with disk_full_at(path):
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file, on disk when this returns; starts a new line after one that a crash cut off."""
    with disk_full_at(path), path.open("ab+") as stream:
        if stream.seek(0, os.SEEK_END) > 0:
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else f"\n{line}"
        stream.write(f"{line}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line, without lines that a crash cut off. Empty without a file."""
    entries = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return [entry for entry in entries if isinstance(entry, dict)]


def read_chain(path: Path, count: int) -> tuple[list[str], list[dict[str, Any]]]:
    """The first lines of a sealed chain, and their entries; refuses a file with lost or changed lines."""
    lines = path.read_text(errors="replace").splitlines()[:count] if path.exists() else []
    entries, before = [], ""
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            entries.append(unseal(entry, f"{path}, line {number},", before))
        except (ValueError, RecursionError, AttributeError, TypeError) as error:
            reason = error if isinstance(error, InputError) else f"{path}, line {number}, is damaged"
            raise InputError(f"{reason}: remove {path.parent} to run it again from the start") from None
        before = str(entry.get(_SEAL, ""))
    if len(lines) < count:
        raise InputError(
            f"{path} has {len(lines)} of {count} lines: remove {path.parent} to run it again from the start"
        )
    return lines, entries


def check_new(path: Path, what: str = "", *, resumable: bool = False) -> None:
    """Refuses a folder that isn't empty or cannot be made.

    ``what`` is the flag that names it, and ``resumable`` says that ``--resume`` continues what is there.
    """
    flag = f"{what} " if what else ""
    if path.exists() and (not path.is_dir() or not all(map(is_leftover, path.iterdir()))):
        otherwise = ", or continue it with --resume (in Python fedspray.resume)" if resumable else ""
        raise InputError(f"{flag}{path} exists already and is not empty: choose a new folder{otherwise}")
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        why = "is not writable" if nearest.is_dir() else "is not a folder"
        raise InputError(f"{flag}{path} cannot be made: {nearest} {why}")


def new_folder(path: Path, *, resumable: bool = False) -> Path:
    """Creates a folder; refuses one that isn't empty."""
    check_new(path, resumable=resumable)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A path to build a file or folder at; it replaces the target, if that is an empty folder, once it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        made = Path(temporary) / target.name
        yield made
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)


def sha256(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which the system releases when the process ends; refuses if another process has it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{folder} is in use by another process: wait for it, or choose another folder") from None
    try:
        yield
    finally:
        lock.release()


def is_leftover(path: Path) -> bool:
    """Whether a killed process left this file: a lock, or an unfinished temporary file."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(".tmp"))


@contextmanager
def private_files() -> Iterator[None]:
    """Files created meanwhile are private to their owner from the start."""
    before = os.umask(OWNER_ALONE)
    try:
        yield
    finally:
        os.umask(before)
