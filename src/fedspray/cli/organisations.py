"""Shared by the commands for federations between organisations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, ParamSpec, TypeVar

from rich.console import Console

from fedspray.cli.flags import argument, flag
from fedspray.cli.output import Output
from fedspray.errors import InputError
from fedspray.files import private_files

ProjectFolder = Annotated[Path, argument("The project's folder.", "PROJECT")]
SiteName = Annotated[str, argument("One of its sites.", "SITE")]
Kit = Annotated[Path, argument("The unpacked start-up kit.", "KIT")]
Foreground = Annotated[bool, flag("Run in the foreground instead of starting a process: for systemd.")]
Grace = Annotated[float, flag("Seconds a round waits for late sites once enough have trained.", "S")]
ServiceFolder = Annotated[Path, flag("Where the files are written.", "DIR", name="--out")]
ServiceUser = Annotated[str, flag("With systemd: the user the processes run as, who must own the folder.", "NAME")]
Kind = Literal["systemd", "compose", "kubernetes"]
ServiceKind = Annotated[Kind, flag("What runs it: systemd, compose or kubernetes.", "KIND")]
HINTS: dict[Kind, str] = {
    "systemd": "copy to /etc/systemd/system, then: systemctl daemon-reload && systemctl enable --now {names}",
    "compose": "put the release's wheel and requirements-site.txt beside it, then: docker compose up --build --detach",
    "kubernetes": "build the image and push it to your registry, name it in {names}, then: kubectl apply -f {names}",
}

NEEDED = ("nvflare", "grpc", "google", "msgpack", "yaml", "psutil")
"""What the processes of a federation import beside the package's own requirements."""

P = ParamSpec("P")
R = TypeVar("R")


def organisational(command: Callable[P, R]) -> Callable[P, R]:
    """A command that needs NVFlare and writes private files."""

    @wraps(command)
    def privately(*args: P.args, **kwargs: P.kwargs) -> R:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise InputError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: a site or a server "
                "installs requirements-site.txt, a researcher the extra [deploy] (see docs/deployment.md)"
            )
        with private_files():
            return command(*args, **kwargs)

    return privately


def warn_of_end(output: Output, *kits: Path) -> None:
    """Warns of certificates that end within 30 days."""
    from fedspray.deploy.provisioning.certificates import warning_of

    for kit in kits:
        if (warning := warning_of(kit)) is not None:
            output.note(f"warning: {warning}")


def write_service(output: Output, folder: Path, kind: Kind, made: Mapping[str, str]) -> None:
    """Writes what a supervisor reads into a folder, and says what comes next."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text)
        output.note(f"wrote {folder / name}")
    output.note(HINTS[kind].format(names=" ".join(name for name in made if name != "Dockerfile")))


def confirm(question: str, otherwise: str) -> None:
    """Refuses to go on unless somebody at a terminal says yes; ``otherwise`` is what did not happen then."""
    if not sys.stdin.isatty():
        raise InputError(f"{otherwise}: there is no terminal to ask on; review it, then pass --yes")
    if ask(f"{question} [y/N]", "n").lower() not in ("y", "yes"):
        raise InputError(otherwise)


def ask(question: str, default: str | None = None) -> str:
    """Asks on standard error and returns the typed answer; Ctrl-D ends the command like Ctrl-C."""
    while True:
        try:
            answer = Console(stderr=True).input(f"{question}: ", markup=False).strip() or default
        except EOFError:
            raise KeyboardInterrupt from None
        if answer:
            return answer
