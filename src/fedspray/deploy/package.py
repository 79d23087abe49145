"""The files of this package as they are installed: their hashes go into an agreement.

Two machines that installed the same wheel, or a checkout of the same commit, have the same hashes. This finds drift
and mistakes. It does not find malice: anyone who changes a machine's code can change this check too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from fedspray.errors import InputError

DIGITS = 16
"""Of each file's sha256."""


def installed_files(package: Path | None = None) -> dict[str, str]:
    """The beginning of every file's sha256, by its path in the package; without caches and hidden files.

    Those of this package are read once: what this process runs does not change with its files.
    """
    return dict(_own_files()) if package is None else _hashes(package)


@cache
def _own_files() -> dict[str, str]:
    return _hashes(Path(__file__).parents[1])


def _hashes(root: Path) -> dict[str, str]:
    found = {}
    for folder, inner, names in os.walk(root, followlinks=True):  # a checkout links to a folder that a wheel holds
        inner[:] = [name for name in inner if name != "__pycache__" and not name.startswith(".")]
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            found[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
    return {name: found[name] for name in sorted(found)}


def module_hashes(modules: Iterable[str]) -> dict[str, str]:
    """The beginning of the sha256 of every module's file, found without importing it."""
    return {name: hashlib.sha256(_module_file(name).read_bytes()).hexdigest()[:DIGITS] for name in sorted({*modules})}


def _module_file(name: str) -> Path:
    spec, places = None, None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        places = None if spec is None else spec.submodule_search_locations or []
        if spec is None:
            break
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise InputError(f"the module {name!r} is not installed here as a file of Python, but a link is in it")
    return Path(spec.origin)


def digest(files: Mapping[str, str]) -> str:
    """sha256 of all of it."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs, a few words for each file."""
    return [
        f"{path} is {'missing' if path not in new else 'new' if path not in old else 'changed'}"
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path)
    ]


def shortened(differing: list[str], most: int = 5) -> str:
    """The first of many."""
    more = f" and {len(differing) - most} more" if len(differing) > most else ""
    return ", ".join(differing[:most]) + more
