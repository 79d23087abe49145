"""Checks of a study's values from files and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedspray.data.graph import repeated
from fedspray.display import cut
from fedspray.errors import InputError, unknown
from fedspray.experiment import MOST_SEEDS


def check_keys(content: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuses an unknown key and lists the known ones."""
    for key in content:
        if key not in known:
            raise InputError(f"{where}: {unknown('key', str(key), known)}")


def check_table(value: Any, where: str) -> Mapping[str, Any]:
    """Refuses what is not a table of names and values."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is {value!r}, but must be a table of names and values")
    return value


def check_list(value: Any, where: str, what: str) -> list[Any]:
    """Refuses what is not a list with something in it."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{where} is {value!r}, but must be a list of {what}")
    return value


def check_seeds(value: Any, where: str, first: int = 0) -> tuple[int, ...]:
    """A list of seeds, or how many, from ``first`` on."""
    if is_whole(value) and value > MOST_SEEDS:
        raise InputError(f"{where} is {cut(str(value), 30)}, but must be at most {MOST_SEEDS:,}")
    listed = list(range(first, first + value)) if is_whole(value) else value
    if not isinstance(listed, list) or not listed or not all(is_whole(s) and s >= 0 for s in listed):
        raise InputError(f"{where} is {value!r}, but must be a number above 0 or a list of seeds")
    twice = repeated(listed)
    if twice is not None:
        raise InputError(f"{where} names {twice} twice, but each seed may appear once")
    return tuple(listed)


def is_whole(value: Any) -> bool:
    """Whether it is an int, and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool)
