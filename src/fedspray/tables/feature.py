"""`Feature`: what one column of a schema means, or several that are treated alike: an entry of ``[[features]]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from fedspray.errors import InputError, unknown
from fedspray.tables import toml

_NUMERIC = ("scale", "mean", "sd", "low", "high", "missing", "flag")
KINDS: dict[str, tuple[str, ...]] = {
    "numeric": _NUMERIC,
    "date": ("time_format", "reference", "parts", *_NUMERIC),
    "category": ("vocabulary", "other", "missing", "flag", "at_least"),
    "set": ("vocabulary", "other", "separator", "at_least"),
    "text": ("width",),
    "drop": (),
}
"""What a column may be, and the keys that go with it."""

SCALES = ("none", "standard", "log", "range")
PARTS = ("years", "month", "weekday", "hour")
REFUSE = "refuse"


@dataclass(frozen=True)
class Feature:
    """What one column means, or several that are treated alike; `KINDS` says which keys go with which kind."""

    columns: tuple[str, ...]
    """Names, or patterns with ``*``."""
    kind: str
    name: str | None = None
    """What all organisations call it, if the column is called otherwise here."""
    scale: str = "none"
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    missing: str | float | None = None
    flag: bool = False
    """Whether a further column says that the value is missing."""
    time_format: str | None = None
    reference: str | None = None
    parts: tuple[str, ...] = ("years",)
    vocabulary: tuple[str, ...] | None = None
    other: bool = True
    separator: str | None = None
    at_least: int = 1
    width: int = 64

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of feature", self.kind, KINDS)
        given = (f.name for f in fields(self)[3:] if getattr(self, f.name) != f.default)
        wrong = next((key for key in given if key not in KINDS[self.kind]), None)
        if wrong is not None:
            allowed = ", ".join(KINDS[self.kind]) or "no further keys"
            raise InputError(f"{wrong} is given, but kind {self.kind!r} takes only {allowed}")
        if not self.columns:
            raise InputError("columns is empty, but at least one is needed")
        if self.name is not None and (len(self.columns) > 1 or "*" in self.columns[0]):
            raise InputError(f"name {self.name!r} is for one column, but columns has several")
        self._check_values()

    def _check_values(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        if self.scale != "range" and (self.low is not None or self.high is not None):
            raise InputError(f"low and high go with scale 'range', not with {self.scale!r}")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InputError(f"low is {self.low} and high {self.high}, but low must be below high")
        if self.sd is not None and not self.sd > 0:
            raise InputError(f"sd is {self.sd}, but must be above 0")
        allowed = (REFUSE, "zeros") if self.kind == "category" else (REFUSE, "mean")
        if isinstance(self.missing, str) and self.missing not in allowed:
            raise InputError(f"missing is {self.missing!r}, but must be {' or '.join(map(repr, allowed))} or a number")
        if self.kind == "category" and isinstance(self.missing, float):
            raise InputError(f"missing is {self.missing}, but for a category must be {' or '.join(map(repr, allowed))}")
        toml.check_moment("reference", self.reference)
        part = next((part for part in self.parts if part not in PARTS), None)
        if part is not None:
            raise unknown("part of a date", part, PARTS)
        if self.vocabulary is not None and len(set(self.vocabulary)) < len(self.vocabulary):
            raise InputError("vocabulary lists a value twice")
        if self.vocabulary == () and not self.other:
            raise InputError("vocabulary is empty and other is false, so the feature has no column")
        if not 1 <= self.width <= 1_000_000:
            raise InputError(f"width is {self.width}, but must be from 1 to 1,000,000")

    @property
    def title(self) -> str:
        """What all organisations call it."""
        return self.name or self.columns[0]


def natural(name: str) -> tuple[object, ...]:
    """Sorts w2 before w10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,99})", name))
