"""Shared by the commands for federations between organisations."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

from rich.console import Console

from fedspray.cli.flags import flag
from fedspray.cli.output import Output
from fedspray.errors import InputError

Foreground = Annotated[bool, flag("Run in the foreground instead of starting a process: for systemd.")]
Grace = Annotated[float, flag("Seconds a round waits for late sites once enough have trained.", "S")]


ServiceFolder = Annotated[Path, flag("Where the units are written.", "DIR", name="--out")]
ServiceUser = Annotated[str, flag("The user the processes run as, who must own the folder.", "NAME")]

P = ParamSpec("P")
R = TypeVar("R")


def organisational(command: Callable[P, R]) -> Callable[P, R]:
    """A command that needs NVFlare and writes private files."""

    @wraps(command)
    def privately(*args: P.args, **kwargs: P.kwargs) -> R:
        if importlib.util.find_spec("nvflare") is None:
            raise InputError(
                "NVFlare is not installed: install fedspray with its extra, [deploy] (pip install 'fedspray[deploy]')"
            )
        from fedspray.files import private_files

        with private_files():
            return command(*args, **kwargs)

    return privately


def warn_of_end(output: Output, *kits: Path) -> None:
    """Warns of certificates that end within 30 days."""
    from fedspray.deploy.provisioning.certificates import warning_of

    for kit in kits:
        if (warning := warning_of(kit)) is not None:
            output.note(f"warning: {warning}")


def write_units(output: Output, folder: Path, units: Mapping[str, str]) -> None:
    """Writes units into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in units.items():
        (folder / name).write_text(text)
        output.note(f"wrote {folder / name}")
    names = " ".join(units)
    output.note(f"copy to /etc/systemd/system, then: systemctl daemon-reload && systemctl enable --now {names}")


def ask(question: str, default: str | None = None) -> str:
    """Asks on standard error and returns the typed answer; Ctrl-D ends the command like Ctrl-C."""
    while True:
        try:
            answer = Console(stderr=True).input(f"{question}: ", markup=False).strip() or default
        except EOFError:
            raise KeyboardInterrupt from None
        if answer:
            return answer
