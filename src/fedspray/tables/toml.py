"""Values of a TOML file: read with a check and a sentence each, and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from fedspray.errors import InputError, unknown


def check_known(content: Mapping[str, object], allowed: tuple[str, ...], where: str) -> None:
    """Refuses a key that is not known."""
    wrong = next((key for key in content if key not in allowed), None)
    if wrong is not None:
        raise InputError(f"{where}: {unknown('key', wrong, allowed)}")


def text(value: object, where: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} is {value!r}, but must be text")
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """A text, or a list of texts; whole numbers and booleans stand for their text."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(word, str | int) for word in listed):
        raise InputError(f"{where} is {value!r}, but must be a list of texts")
    return tuple(word if isinstance(word, str) else json.dumps(word) for word in listed)


def words(value: object, where: str) -> tuple[str, ...]:
    """A list of texts, or the whole numbers from ``"0..9"``."""
    if not isinstance(value, str):
        return texts(value, where)
    found = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", value)
    if not found or not 0 <= int(found[2]) - int(found[1]) < 10_000_000:
        raise InputError(f"{where} is {value!r}, but must be a list of texts or a range such as '0..9'")
    return tuple(str(number) for number in range(int(found[1]), int(found[2]) + 1))


def number(value: object, where: str) -> float:
    """A finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
        raise InputError(f"{where} is {value!r}, but must be a finite number")
    return float(value)


def whole(value: object, where: str) -> int:
    """A whole number of 0 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{where} is {value!r}, but must be a whole number of 0 or more")
    return value


def flag(value: object, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InputError(f"{where} is {value!r}, but must be true or false")
    return value


def moment(value: object, where: str) -> str:
    """A text, or TOML's own date or time as text."""
    return value.isoformat() if hasattr(value, "isoformat") else text(value, where)


def check_moment(key: str, value: str | None) -> None:
    """Refuses what is no day or moment."""
    try:
        datetime.fromisoformat(value or "2000-01-01")
    except ValueError:
        raise InputError(f"{key} is {value!r}, but must be a day such as 2024-12-31") from None


# ---- writing ----------------------------------------------------------------------------------


def lines_of(section: Any) -> Iterator[str]:
    """``key = value`` for every field of a section that is not as usual."""
    for f in fields(section):
        value = getattr(section, f.name)
        if value is not None and value != f.default:
            span = _span(value) if f.name == "vocabulary" else None
            yield f"{f.name} = {toml(span or value)}"


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, tuple):
        return toml(value[0]) if len(value) == 1 and "*" in value[0] else f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _span(words: tuple[str, ...]) -> str | None:
    """``0..9`` for ten numbers in a row."""
    if len(words) < 4 or not words[0].isdecimal():
        return None
    numbers = range(int(words[0]), int(words[0]) + len(words))
    return f"{words[0]}..{words[-1]}" if words == tuple(map(str, numbers)) else None


def comment(text: str | None) -> list[str]:
    """Lines of a comment."""
    return [f"# {line}" for line in text.splitlines()] if text else []
