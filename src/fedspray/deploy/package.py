"""The files of this package as they are installed: their hashes go into an agreement.

Two machines that installed the same wheel, or a checkout of the same commit, have the same hashes. This finds drift
and mistakes. It does not find malice: whoever changes the code of a machine can change this check too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

DIGITS = 16
"""Of each file's sha256."""


def installed_files(package: Path | None = None) -> dict[str, str]:
    """The beginning of every file's sha256, by its path in the package; without caches and hidden files."""
    root = Path(__file__).parents[1] if package is None else package
    walk = os.walk(root, followlinks=True)  # a checkout links to a folder that a wheel holds
    paths = sorted(Path(folder, name).relative_to(root) for folder, _, names in walk for name in names)
    return {
        path.as_posix(): hashlib.sha256((root / path).read_bytes()).hexdigest()[:DIGITS]
        for path in paths
        if not any(part == "__pycache__" or part.startswith(".") for part in path.parts)
    }


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
