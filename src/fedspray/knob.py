"""A knob: what can be set, how it is declared, and how a value is read and refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import reduce
from numbers import Integral, Real
from operator import ge, gt, le, lt, or_
from typing import Any

from fedspray.display import cut
from fedspray.errors import InputError

MOST_WHOLE, MOST_SEED = 10**12, 2**128
"""The largest whole number of a setting, and the largest seed."""


def knob(default: Any, text: str, **about: Any) -> Any:
    """A field that users can set.

    Args:
        default: its default.
        text: one line for ``--help`` and the documentation.
        about: ``metavar``; ``usual``, what None stands for, in a few words; ``part``, its panel of ``--help``; what is
            allowed: ``choices``; or ``least``, ``above``, ``most``, ``below``, and words beside numbers, ``also``; and
            ``neutral`` for a knob added later: its value in all results so far. With this value it is not part of a
            result's identity.
    """
    kept = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return field(**kept, metadata={"help": text, **about})


@dataclass(frozen=True)
class Knob:
    """An option: a flag, a key in TOML and an argument in Python."""

    name: str
    kind: str
    """Its type as text, such as ``int | None``."""
    help: str
    part: str
    default: Any = None
    metavar: str | None = None
    usual: str | None = None
    """What a default of None stands for."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] | None = None
    owners: tuple[str, ...] = ()
    """The data sets and partitioners it applies to; empty: all."""

    @property
    def flag(self) -> str:
        """As on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_table(self) -> bool:
        """Whether it holds names and values: ``[set]`` in TOML, ``--set NAME=VALUE`` as a flag."""
        return self.kind == TABLE

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return self.kind == LIST

    @property
    def type(self) -> Any:
        """As an annotation."""
        return reduce(or_, (_TYPES[part.strip()] for part in self.kind.split("|")))

    def read(self, value: Any, where: str = "") -> Any:
        """Checks a value from text (flags) or with a type (TOML, Python)."""
        if self.is_table:
            if not isinstance(value, Mapping):
                raise InputError(f"{where}{self.name} is {value!r}, but must be a table of names and values")
            return dict(value)
        if self.is_list:
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
                raise InputError(f"{where}{self.name} is {value!r}, but must be a list of texts")
            return tuple(value)
        found = parse(self.name, value, self.kind)
        refuse_outside(self.name, found, self.kind, vars(self))
        return found


TABLE = "Mapping[str, str]"
LIST = "tuple[str, ...]"
_TYPES: dict[str, Any] = {
    **{each.__name__: each for each in (int, float, str, bool)},
    "None": None,
    "Path": str,
    TABLE: dict[str, str],
    LIST: list[str],
}


def kind_of(each: Field[Any]) -> str:
    """A field's type as text; annotations that aren't evaluated are text already."""
    return each.type.__name__ if isinstance(each.type, type) else str(each.type)


def check(settings: Any, where: str = "") -> None:
    """Refuses a value outside its field's limits, or no number where there are limits."""
    for each in fields(settings):
        refuse_outside(f"{where}{each.name}", getattr(settings, each.name), kind_of(each), each.metadata)


LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", ge),
    "above": ("above", gt),
    "most": ("at most", le),
    "below": ("below", lt),
}


def refuse_outside(name: str, value: Any, kind: str, allowed: Mapping[str, Any]) -> None:
    """Refuses a value outside the limits in ``allowed``; ``kind`` is its type as text."""
    limits = {key: allowed[key] for key in LIMITS if allowed.get(key) is not None}
    choices, also = allowed.get("choices") or (), allowed.get("also") or ()
    if value is None or value in (*choices, *also) or not (limits or choices):
        return
    number, called = (Real, "a number") if "float" in kind else (Integral, "a whole number")
    if limits and isinstance(value, number) and all(LIMITS[key][1](value, limit) for key, limit in limits.items()):
        return
    bounds = " and ".join(f"{LIMITS[key][0]} {limit}" for key, limit in limits.items())
    if limits.keys() == {"least", "most"}:
        bounds = f"between {limits['least']} and {limits['most']}"
    if not isinstance(value, number):
        bounds = f"{called}, {bounds}"
    words = [*map(str, choices)]
    listed = " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
    wanted = listed or ", or ".join([bounds, *also])
    raise InputError(f"{name} is {value!r}, but must be {wanted}")


def parse(name: str, value: Any, kind: str) -> Any:
    """A setting's value, from text (command line) or from a typed value (TOML, Python)."""
    wanted = [part.strip() for part in kind.split("|")]
    text = str(value).strip()
    if "None" in wanted and (value is None or text.lower() == "none"):
        return None
    if "bool" in wanted and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number, convert in (("int", int), ("float", float)):
        if number in wanted and not isinstance(value, bool):
            try:
                found = convert(text)
            except ValueError:
                continue
            most = MOST_SEED if name in ("seed", "partition_seed") else MOST_WHOLE
            if isinstance(found, int) and abs(found) > most:
                raise InputError(f"{name} is {cut(text, 30)}, but must be at most {most:,}")
            if not math.isfinite(found):
                raise InputError(f"{name} is {cut(repr(value), 30)}, but must be a finite number")
            return found
    if ("str" in wanted or "Path" in wanted) and not isinstance(value, bool):
        return text
    allowed = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "None": "none",
        "str": "text",
        "Path": "a path",
    }
    known = " or ".join(allowed.get(part, part) for part in wanted)
    raise InputError(f"{name} is {cut(repr(value))}, but must be {known}")
