"""Files of a run, each written whole or not at all and sealed (`fedspray.files`).

::

    RUN/settings.json             written first: everything needed to start again
    RUN/federation.json           client statistics
    RUN/result.json               the result, when all seeds are done
    RUN/seed-0/rounds.jsonl       one record per round
    RUN/seed-0/checkpoint.safetensors   while the seed is running; checkpoint-before.safetensors: the one before it
    RUN/seed-0/events.out.tfevents.*    for TensorBoard
    RUN/seed-0/models/<client>/   the personal models: see `fedspray.runs.models`
    RUN/seed-0/shared.safetensors       what all clients have in common, for a newcomer: see `fedspray.runs.adapt`
    RUN/seed-0/nodes.json         every labelled node: tested, and correctly predicted
    RUN/seed-0/proxies.safetensors      class proxies before and after alignment, if any
    RUN/seed-0/result.json        when the seed is done
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspray import files
from fedspray.errors import InputError, disk_full_at

if TYPE_CHECKING:  # the main process of a site reads and writes text alone, and starts without PyTorch
    from torch import Tensor

CHECKPOINT = "checkpoint.safetensors"
OLDER_CHECKPOINT = "checkpoint-before.safetensors"
RECORDS = "rounds.jsonl"
FEDERATION = "federation.json"
CURVES = ("loss", "overall", "minority")
"""Metrics of each part whose course is shown."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Writes tensors and JSON as one safetensors file, in one step.

    Duplicate tensors are written once, and so are rows expanded to many clients, so a
    checkpoint is no larger than its content.
    """
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    alias: dict[str, str] = {}
    expanded: dict[str, int] = {}
    owners: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
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
        storage = value.untyped_storage()
        whole = storage.nbytes() == value.numel() * value.element_size() and storage.data_ptr() not in storages
        stored[name] = value.contiguous() if whole else value.contiguous().clone()
        storages.add(storage.data_ptr())
    header = {"meta": json.dumps(dict(meta)), "alias": json.dumps(alias), "expanded": json.dumps(expanded)}
    with files.replacement(path) as temporary:
        save_file(stored, temporary, metadata=_sealed_header(header, stored))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_tensors` wrote; refuses a changed file."""
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
    if set(header) != {"meta", "alias", "expanded"}:  # files of older versions have only these, and no seal
        plain = {name: header.get(name, "") for name in ("meta", "alias", "expanded")}
        if header != _sealed_header(plain, tensors):
            raise InputError(f"{path} is damaged: it was changed after it was written")
    for name, owner in json.loads(header["alias"]).items():
        tensors[name] = tensors[owner]
    for name, count in json.loads(header["expanded"]).items():
        tensors[name] = tensors[name].expand(count, *tensors[name].shape[1:])
    return tensors, json.loads(header["meta"])


def _sealed_header(header: dict[str, str], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    sealed = files.seal({**header, "tensors": digest(tensors)})
    return {**header, "seal": sealed["seal"]}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of named tensors: the same weights give the same digest."""
    result = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        result.update(f"{name}:{value.dtype}:{list(value.shape)};".encode())
        result.update(value.numpy().tobytes())
    return result.hexdigest()


class RecordFile:
    """The records of one seed, one JSON line per round, as a sealed chain."""

    def __init__(self, path: Path, keep: int) -> None:
        """Opens the file and keeps its first ``keep`` records: those of the checkpoint."""
        lines, self.records = files.read_chain(path, keep)
        files.write_text(path, "".join(f"{line}\n" for line in lines))
        self._path = path
        self._seal = json.loads(lines[-1]).get("seal", "") if lines else ""
        self._stream = path.open("a")

    def add(self, record: dict[str, Any]) -> None:
        """Appends one record."""
        self.records.append(record)
        sealed = files.seal(record, self._seal)
        self._seal = sealed["seal"]
        with disk_full_at(self._path):
            self._stream.write(json.dumps(sealed, allow_nan=False) + "\n")
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


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Writes the checkpoint of a seed; keeps the previous one."""
    current, newer = folder / CHECKPOINT, folder / ".newer.tmp"
    write_tensors(newer, tensors, meta)
    if current.exists():
        current.replace(folder / OLDER_CHECKPOINT)
    newer.replace(current)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The last checkpoint of a seed, or the one before it if the last is damaged; None without any."""
    found = [folder / name for name in (CHECKPOINT, OLDER_CHECKPOINT) if (folder / name).exists()]
    for path in found:
        try:
            return read_tensors(path)
        except InputError as error:
            if path == found[-1]:
                raise InputError(f"{error}: remove {folder} to run it again from the start") from None
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
    return {}, None


def drop_checkpoints(folder: Path) -> None:
    """Removes the checkpoints of a finished seed."""
    for name in (CHECKPOINT, OLDER_CHECKPOINT):
        (folder / name).unlink(missing_ok=True)


def versions(packages: Iterable[str] = ("fedspray", "torch", "torch-geometric", "numpy", "scipy")) -> dict[str, str]:
    """Versions of what the result depends on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):  # a site has no torch-geometric
            found[name] = version(name)
    return found
