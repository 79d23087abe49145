"""Commands whose code lies beside the package in the project's repository, and is not part of an installation."""

from __future__ import annotations

import sys
from pathlib import Path

from fedspray.errors import InputError

_FOLDERS = {"bench": "benchmarks", "reproduce": "reproduction"}


def commands() -> dict[str, str]:
    """The ``module:function`` of each, which can then be imported; none where the repository is not here."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "src" / "fedspray").is_dir() and all((root / each).is_dir() for each in _FOLDERS.values()):
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return {name: f"{folder}.command:{name}" for name, folder in _FOLDERS.items()}
    return {}


def check_here(command: str) -> None:
    """Refuses a command of the repository where that is not here."""
    if command in _FOLDERS and not commands():
        raise InputError(
            f"fedspray {command} is in the folder {_FOLDERS[command]} of the project's repository, which an "
            "installation does not contain: clone the repository and run the command in it"
        )
