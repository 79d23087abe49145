"""A file of JSON lines that only grows: each line is sealed together with the line before it.

The first sealed line covers everything before it, which older versions wrote without seals. A line that a crash cut off
stays where it is and is no part of the chain.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from fedspray import files
from fedspray.errors import InputError, disk_full_at
from fedspray.files import Json

BLOCK = 1 << 16
"""Bytes of the file's end that are read first, to find its last line."""


def append(file: Path, content: Json) -> str:
    """Adds a line, on disk when this returns, whichever other process adds one at the same time.

    Returns its head: the sha256 at its end, which covers all lines before it.
    """
    with disk_full_at(file), file.open("ab+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        sealed = files.seal(content, _last_seal(stream))
        begin = "" if _ends_well(stream) else "\n"
        stream.write(f"{begin}{json.dumps(sealed)}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())
    return _head(sealed["seal"])


def verify(file: Path, heads: Collection[str] = ()) -> Json:
    """Checks every line, and that each of ``heads``, of earlier last lines, is still there.

    Returns how many lines are sealed (`lines`), how many older ones are not (`unsealed`), the numbers of lines that a
    crash cut off (`cut_off`), and the last `head`. An `InputError` names the first line that is wrong.
    """
    data = file.read_bytes() if file.exists() else b""
    seals: list[str] = []
    unsealed, cut_off, broken = 0, list[int](), list[int]()
    place = 0
    for number, raw in enumerate(data.split(b"\n")[: data.count(b"\n") + (not data.endswith(b"\n"))], start=1):
        entry = _read(raw)
        if _seal_of(entry):
            before = seals[-1] if seals else _of_older(data[:place])
            sealed = files.seal({k: v for k, v in entry.items() if k != "seal"}, before)
            if sealed != entry or json.dumps(entry).encode() != raw:
                raise InputError(f"{file}, line {(*broken, number)[0]}, is wrong: it was changed, or lines are missing")
            seals.append(_seal_of(entry))
            cut_off, broken = cut_off + broken, []
        elif not seals:
            unsealed += bool(raw)
        elif entry:
            raise InputError(f"{file}, line {number}, is wrong: it has no seal, but the lines before it have one")
        elif raw:
            broken.append(number)
        place += len(raw) + 1
    for head in heads:
        if head not in map(_head, seals):
            raise InputError(f"{file} was cut: it ends after {len(seals)} sealed lines, but once had {head}")
    return {
        "lines": len(seals),
        "unsealed": unsealed,
        "cut_off": cut_off + broken,
        "head": _head(seals[-1]) if seals else None,
    }


def _last_seal(stream: BinaryIO) -> str:
    """The seal of the last sealed line; of a file without any, the hash of what is in it."""
    size, length = stream.seek(0, os.SEEK_END), BLOCK
    while True:
        stream.seek(max(0, size - length))
        data = stream.read(size)
        for raw in reversed(data.split(b"\n")[size > length :]):  # the first one may be incomplete
            if seal := _seal_of(_read(raw)):
                return seal
        if length >= size:
            return _of_older(data)
        length *= 4


def _of_older(data: bytes) -> str:
    if not data:
        return ""
    return hashlib.sha256(data if data.endswith(b"\n") else data + b"\n").hexdigest()


def _ends_well(stream: BinaryIO) -> bool:
    if stream.seek(0, os.SEEK_END) == 0:
        return True
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) == b"\n"


def _read(raw: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _head(seal: str) -> str:
    return seal.removeprefix("sha256:")


def _seal_of(entry: dict[str, Any]) -> str:
    return str(entry.get("seal", ""))
