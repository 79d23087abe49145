"""Shared by the commands for federations between organisations."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar

from rich.console import Console

from fedspray.cli.flags import flag
from fedspray.errors import InputError

Foreground = Annotated[bool, flag("Run in the foreground instead of starting a process: for systemd.")]
Grace = Annotated[float, flag("Seconds a round waits for late sites once enough have trained.", "S")]


P = ParamSpec("P")
R = TypeVar("R")


def organisational(command: Callable[P, R]) -> Callable[P, R]:
    """A command that needs NVFlare and writes private files."""

    @wraps(command)
    def privately(*args: P.args, **kwargs: P.kwargs) -> R:
        if importlib.util.find_spec("nvflare") is None:
            raise InputError(
                "NVFlare is not installed: install fedspray with its extra, [deploy] (see docs/deployment.md)"
            )
        from fedspray.files import private_files

        with private_files():
            return command(*args, **kwargs)

    return privately


def ask(question: str, default: str | None = None) -> str:
    """Asks on standard error and returns the typed answer; Ctrl-D ends the command like Ctrl-C."""
    while True:
        try:
            answer = Console(stderr=True).input(f"{question}: ", markup=False).strip() or default
        except EOFError:
            raise KeyboardInterrupt from None
        if answer:
            return answer
