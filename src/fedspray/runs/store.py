"""Files of a run: every one appears whole or not at all.

::

    RUN/settings.json             written first: all that is needed to start again
    RUN/federation.json           the clients in numbers
    RUN/result.json               the result, when all seeds are done
    RUN/seed-0/rounds.jsonl       one record per round
    RUN/seed-0/checkpoint.safetensors   while the seed is running
    RUN/seed-0/events.out.tfevents.*    for TensorBoard
    RUN/seed-0/models/<client>.safetensors
    RUN/seed-0/nodes.json         every labelled node: tested, and rightly predicted
    RUN/seed-0/proxies.safetensors      class proxies before and after alignment, where there are any
    RUN/seed-0/result.json        when the seed is done
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspray.errors import InputError, disk_full_at

if TYPE_CHECKING:  # the main process of a site reads and writes text alone, and starts without PyTorch
    from torch import Tensor

CHECKPOINT = "checkpoint.safetensors"
RECORDS = "rounds.jsonl"
FEDERATION = "federation.json"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON in one step."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file in one step: it is there, whole and on disk, or not at all."""
    with _replacement(path) as temporary:
        temporary.write_text(text)


@contextmanager
def _replacement(path: Path) -> Iterator[Path]:
    """A file to write beside another, whose place it takes when it is on disk; nothing of it stays after an error."""
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


def read_json(path: Path) -> dict[str, Any]:
    """Reads what `write_json` wrote."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {path.parent} is not a run folder") from None
    except ValueError as error:
        raise InputError(f"{path} is not readable JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object, but what a run wrote is one")
    return content


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file, on disk when this returns; after a line that a crash cut off it begins a new one."""
    with disk_full_at(path), path.open("ab+") as stream:
        if stream.seek(0, os.SEEK_END) > 0:
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else f"\n{line}"
        stream.write(f"{line}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one on each line; without those that a crash cut off. Nothing without a file."""
    entries = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return [entry for entry in entries if isinstance(entry, dict)]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Writes tensors and JSON as one safetensors file, in one step.

    A tensor that is stored twice is written once, and a row that was expanded to many clients once, so a
    checkpoint is no larger than what it holds.
    """
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    alias: dict[str, str] = {}
    expanded: dict[str, int] = {}
    owners: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        value = tensor
        if value.dim() > 0 and value.shape[0] > 1 and value.stride(0) == 0:
            expanded[name] = value.shape[0]
            value = value[:1]
        key = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel() and key in owners:
            alias[name] = owners[key]
            continue
        owners[key] = name
        stored[name] = value.contiguous().clone() if _shares_storage(value) else value.contiguous()
    header = {"meta": json.dumps(dict(meta)), "alias": json.dumps(alias), "expanded": json.dumps(expanded)}
    with _replacement(path) as temporary:
        save_file(stored, temporary, metadata=header)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_tensors` wrote."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as archive:
            header = archive.metadata() or {}
            tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except Exception as error:
        raise InputError(f"{path} is not a readable safetensors file ({error})") from None
    if "meta" not in header:
        raise InputError(f"{path} was not written by fedspray: it has no description of its tensors")
    for name, owner in json.loads(header["alias"]).items():
        tensors[name] = tensors[owner]
    for name, count in json.loads(header["expanded"]).items():
        tensors[name] = tensors[name].expand(count, *tensors[name].shape[1:])
    return tensors, json.loads(header["meta"])


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of named tensors: the same weights give the same digest, wherever they are stored."""
    result = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        result.update(f"{name}:{value.dtype}:{list(value.shape)};".encode())
        result.update(value.numpy().tobytes())
    return result.hexdigest()


class RecordFile:
    """The records of one seed, a JSON line for each round."""

    def __init__(self, path: Path, keep: int) -> None:
        """Opens the file and keeps its first ``keep`` records: those that a checkpoint knows of."""
        kept = path.read_text().splitlines(keepends=True)[:keep] if path.exists() else []
        write_text(path, "".join(kept))
        self._path = path
        self.records: list[dict[str, Any]] = [json.loads(line) for line in kept]
        self._stream = path.open("a")

    def add(self, record: dict[str, Any]) -> None:
        """Appends one record."""
        self.records.append(record)
        with disk_full_at(self._path):
            self._stream.write(json.dumps(record, allow_nan=False) + "\n")
            self._stream.flush()

    def flush(self) -> None:
        """Makes sure that the records are on disk."""
        with disk_full_at(self._path):
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Flushes and closes the file."""
        with disk_full_at(self._path), self._stream:
            self.flush()


def check_new(path: Path, what: str = "", *, resumable: bool = False) -> None:
    """Refuses a folder that holds anything, or cannot be made.

    ``what`` is the flag that names it, and ``resumable`` says that ``--resume`` continues what is there.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        otherwise = ", or continue it with --resume" if resumable else ""
        raise InputError(f"{path} exists already and is not empty: choose a new folder{otherwise}")
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        why = "may not be written to" if nearest.is_dir() else "is not a folder"
        raise InputError(f"{f'{what} ' if what else ''}{path} cannot be made: {nearest} {why}")


def new_folder(path: Path, *, resumable: bool = False) -> Path:
    """Creates a folder; refuses one that holds anything."""
    check_new(path, resumable=resumable)
    path.mkdir(parents=True, exist_ok=True)
    return path


def versions(packages: Iterable[str] = ("fedspray", "torch", "torch-geometric", "numpy", "scipy")) -> dict[str, str]:
    """Versions of what the result depends on."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _shares_storage(value: Tensor) -> bool:
    return value.untyped_storage().nbytes() != value.numel() * value.element_size()
