"""Help pages: cyclopts' own, with a command's metavars and examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve
from cyclopts import App
from cyclopts.argument import Argument
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions

from fedspray.errors import unknown


class Page(DefaultFormatter):
    """Names an argument by its metavar."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Prints one box."""
        entries = [
            evolve(entry, positional_label=entry.metavar) if entry.positional_label else entry
            for entry in panel.entries
        ]
        super().__call__(console, options, evolve(panel, entries=entries))


def show_help(app: App, words: Sequence[str], first: Sequence[str] = ()) -> None:
    """Prints the help of the command or group named by ``words``; ``first`` are the examples of the top page."""
    chain, apps, others = app.parse_commands(words)
    shown = apps[-1]
    if others and shown.default_command is None:
        raise unknown("command", others[0], command_names(shown))
    for position, command in enumerate(shown.resolved_commands().values()):  # in the order of registration
        command.sort_key = position
    shown.usage = usage(app, chain)
    lines = examples(shown) if chain else first
    title = "Example" if len(lines) == 1 else "Examples"
    shown.help_epilogue = "\n\n".join([title, *lines]) if lines else ""
    app.help_print(words, console=Console(markup=False, emoji=False, highlight=False))


def usage(app: App, chain: Sequence[str]) -> str:
    """``fedspray predict --model FILE [OPTIONS]``."""
    _, apps, _ = app.parse_commands(chain)
    if apps[-1].default_command is None:
        return " ".join([*app.name, *chain, "COMMAND", "[OPTIONS]"])
    return " ".join([*app.name, *chain, *_words(apps[-1])])


def command_names(group: App) -> list[str]:
    """The commands of a group."""
    return [name for name in group if not name.startswith("-")]


def examples(command: App) -> Sequence[str]:
    """What `flags.examples` says about a command."""
    found: Sequence[str] = getattr(command.default_command, "examples", ())
    return found


def arguments(command: App) -> list[Argument]:
    """The flags and arguments of a command, one for each line of its help page."""
    return [each for each in command.assemble_argument_collection() if each.show]


def _words(command: App) -> Iterator[str]:
    shown = arguments(command)
    for each in shown:
        if each.required and each.index is None:
            yield f"{each.name} {each.parameter.metavar}"
    yield "[OPTIONS]"
    for each in shown:
        if each.index is not None:
            metavar: Any = each.parameter.metavar
            yield metavar if each.required else f"[{metavar}]"
