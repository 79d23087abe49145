"""How objects print: one short line, and a table in a notebook.

A line or table holds names, counts and settings, never a node's values: sessions are logged and notebooks shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from html import escape
from typing import Any

LONGEST = 500
"""Characters of a line."""


def line(kind: object, *parts: object) -> str:
    """``Graph(1,500 nodes, 2 classes)``; empty parts are left out, long ones are cut."""
    text = ", ".join(cut(str(part)) for part in parts if part not in ("", None))
    return cut(f"{type(kind).__name__}({text})", LONGEST)


def count(number: int, what: str, many: str | None = None) -> str:
    """``1 client``, ``1,500 nodes``."""
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


def cut(text: str, longest: int = 120) -> str:
    """The text, cut to at most this many characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def changed(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values are not the defaults."""
    found = {}
    for f in fields(settings):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if (value := getattr(settings, f.name)) != default:
            found[f.name] = value
    return found


def settings_line(self: Any) -> str:
    """The ``repr`` of a dataclass of settings: those that are not the defaults."""
    return line(self, *(f"{name}={value!r}" for name, value in changed(self).items()))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> str:
    """An HTML table; everything is escaped."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(value))}</{tag}>" for value in values) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    small = f"<small>{escape(note)}</small>" if note else ""
    caption = f'<caption style="text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}<thead>{cells('th', columns)}</thead><tbody>{body}</tbody></table>{small}"


def percent(value: float | None) -> str:
    """``87.65``, or n/a."""
    return "n/a" if value is None else f"{100 * value:.2f}"


def percent_spread(value: Mapping[str, float | None]) -> str:
    """``87.65 ± 0.31``."""
    if value["std"] is None:
        return percent(value["mean"])
    return f"{percent(value['mean'])} ± {percent(value['std'])}"
