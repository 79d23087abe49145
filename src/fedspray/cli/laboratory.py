"""Commands whose code is in the project's repository but not in the installed package."""

from __future__ import annotations

import sys
from pathlib import Path

from fedspray.errors import InputError

_FOLDERS = {"bench": "benchmarks", "reproduce": "reproduction"}


def commands() -> dict[str, str]:
    """The ``module:function`` of each, made importable; empty outside the repository."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "src" / "fedspray").is_dir() and all((root / each).is_dir() for each in _FOLDERS.values()):
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return {name: f"{folder}.command:{name}" for name, folder in _FOLDERS.items()}
    return {}


def check_here(command: str) -> None:
    """Refuses a repository command outside the repository."""
    if command in _FOLDERS and not commands():
        raise InputError(
            f"fedspray {command} is in the folder {_FOLDERS[command]} of the project's repository, not in the "
            "installed package: clone the repository and run the command there"
        )
