"""How a flag or argument is declared: its help text and its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from cyclopts import App, Group, Parameter, Token

from fedspray.display import cut
from fedspray.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])


def _shown(default: Any) -> str | None:
    """A default as help shows it."""
    return None if default is None or default is False else str(default)


@cache
def panel(title: str) -> Group:
    """A box of a help page; boxes appear in the order of first use."""
    return Group.create_ordered(title)


ARGUMENTS, OPTIONS, COMMANDS = panel("Arguments"), panel("Options"), panel("Commands")


def group(name: str, text: str, commands: Mapping[str, str]) -> App:
    """A command with subcommands: the ``module:function`` of each by name, in help order."""
    made = App(
        name=name,
        help=text,
        help_flags=("--help", "-h"),
        version_flags=(),
        group_arguments=ARGUMENTS,
        group_parameters=OPTIONS,
        group_commands=COMMANDS,
    )
    for command, path in commands.items():
        made.command(path, name=command)
    return made


def flag(
    text: str,
    metavar: str | None = None,
    *,
    name: str | None = None,
    box: str = OPTIONS.name,
    default: str | None = None,
    complete: str | Sequence[str] = (),
) -> Parameter:
    """A flag.

    Args:
        text: its help text.
        metavar: the placeholder for its value.
        name: with its dashes, if it differs from the parameter's.
        box: of the help page.
        default: the default in words; otherwise the parameter's default is shown.
        complete: the values a shell completes: a list, or a package such as `datasets` or `algorithms`.
    """
    return Parameter(
        name=name,
        help=text,
        metavar=metavar,
        group=panel(box),
        show_default=default or _shown,
        completer=_completer(complete),
    )


def argument(text: str, metavar: str, *, many: bool = False, complete: str | Sequence[str] = ()) -> Parameter:
    """An argument without a flag; of ``many`` at least one must be given."""
    return Parameter(
        help=text,
        metavar=metavar,
        group=ARGUMENTS,
        required=many or None,
        completer=_completer(complete),
    )


def whole(least: int, most: int = 10**12) -> Parameter:
    """For whole numbers between two bounds."""

    def convert(kind: type, tokens: Sequence[Token]) -> int:
        (token,) = tokens
        try:
            value = int(token.value)  # cyclopts would take 2.5
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            bounds = f"from {least} to {most}" if most < 10**12 or value > most else f"at least {least}"
            raise InputError(f"{token.keyword} is {cut(repr(token.value))}, but must be a whole number, {bounds}")
        return value

    return Parameter(converter=convert)


def _completer(values: str | Sequence[str]) -> Callable[[Any], Iterable[str]] | None:
    def propose(context: Any) -> Iterable[str]:
        if not isinstance(values, str):
            return values
        from fedspray import datasets, plugins

        return datasets.names() if values == "datasets" else plugins.names(f"fedspray.{values}")

    return propose if values else None


Count = Annotated[int, whole(1)]
Cores = Annotated[int, whole(1, 4096)]
"""Threads or processes at a time."""
AsJson = Annotated[
    bool, flag("Print one JSON object on standard output; everything else goes to standard error.", name="--json")
]


def examples(*lines: str) -> Callable[[Command], Command]:
    """Command lines for the end of a command's help."""

    def keep(command: Command) -> Command:
        command.examples = lines  # type: ignore[attr-defined]
        return command

    return keep
