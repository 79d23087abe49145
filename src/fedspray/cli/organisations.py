"""What the commands of federations between organisations share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar

from rich.console import Console

from fedspray.cli.flags import flag
from fedspray.errors import InputError

Foreground = Annotated[bool, flag("Become the process instead of starting one: for systemd.")]
Grace = Annotated[float, flag("Seconds that a round waits for late sites once enough trained.", "S")]


P = ParamSpec("P")
R = TypeVar("R")


def organisational(command: Callable[P, R]) -> Callable[P, R]:
    """A command that needs NVFlare, and whose files are for their owner alone."""

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
    """What is typed in answer to a question on standard error; Ctrl-D ends the command like Ctrl-C."""
    while True:
        try:
            answer = Console(stderr=True).input(f"{question}: ", markup=False).strip() or default
        except EOFError:
            raise KeyboardInterrupt from None
        if answer:
            return answer
