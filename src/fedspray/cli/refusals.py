"""One-sentence errors for bad command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import requires
from typing import get_args

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.argument import Argument

from fedspray.cli.pages import command_names
from fedspray.errors import ELSEWHERE, InputError, near, unknown


def explain(error: CycloptsError) -> str:
    """The error, and which help page to read."""
    page = " ".join(["fedspray", *(error.command_chain or ())])
    return f"{_sentence(error)} (see '{page} --help')"


def missing(error: ModuleNotFoundError) -> str | None:
    """A library that a command needs, and the extra that brings it; None if it is none of ours."""
    name = (error.name or "").partition(".")[0]
    for line in requires("fedspray") or ():
        wanted = re.match(r"([\w.-]+)(?:.*extra == ['\"](\w+))?", line)
        if wanted and wanted[1].replace("-", "_").lower() == name.lower():
            extra = f"with its extra [{wanted[2]}]" if wanted[2] else "again"
            return f"{name} is not installed, but this needs it: install fedspray {extra}"
    return None


def _sentence(error: CycloptsError) -> str:
    if isinstance(error.__cause__, InputError):
        return str(error.__cause__)
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        return str(unknown("command", error.unused_tokens[0], command_names(error.app)))
    if isinstance(error, UnknownOptionError):
        return _unknown_option(error.token.keyword or error.token.value, error.argument_collection)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return _missing(error, error.argument)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} is an unexpected argument"
    if isinstance(error, CoercionError) and error.token is not None:
        choices = get_args(error.target_type)
        wanted = " or ".join(choices) if choices else "true or false" if error.target_type is bool else "a number"
        return f"{error.token.keyword} is {error.token.value!r}, but must be {wanted}"
    return str(error).removesuffix(".")


def _missing(error: MissingArgumentError, argument: Argument) -> str:
    if error.keyword is not None or argument.tokens:
        return f"{argument.name} needs a value"
    misspelt = next((word for word in error.unused_tokens or () if word.startswith("--")), None)
    if misspelt is not None and error.app is not None:
        return _unknown_option(misspelt, error.app.assemble_argument_collection())
    metavar = argument.parameter.metavar
    return f"{metavar if argument.index is not None else f'{argument.name} {metavar}'} is missing"


def _unknown_option(given: str, arguments: Iterable[Argument]) -> str:
    """Suggests the right option, even for another library's word or a setting."""
    from fedspray.experiment import knobs

    flags = {name.removeprefix("--") for each in arguments for name in each.names if name.startswith("--")}
    option = given.partition("=")[0]
    word = option.lstrip("-").replace("-", "_")
    setting, meant = ELSEWHERE.get(word, word), near(word, sorted(flags))
    if word in knobs():
        hint = ", which only other commands have"
    elif meant is not None:
        hint = f"; did you mean --{meant}?"
    elif "set" in flags and setting in ELSEWHERE.values() and setting not in knobs():
        hint = f"; did you mean --set {setting}=VALUE?"
    else:
        hint = "; set options of algorithms and backbones with --set NAME=VALUE" if "set" in flags else ""
    return f"unknown option {option}{hint}"
