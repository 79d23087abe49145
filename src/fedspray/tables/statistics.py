"""Statistics that sites add up without showing a row: counts, sums and squares of numbers, counts of categories.

A site's contribution is a JSON file that its engineer reads before it leaves. What fewer than `minimum` rows hold is
not in it: neither a category's name, nor the sum of a column. Smallest and largest values are somebody's own, so they
are never part of it. Squares are taken around the site's own mean: adding them up stays exact for numbers with a large
mean, such as time stamps, and says the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray.data.graph import repeated
from fedspray.errors import InputError
from fedspray.tables.feature import Feature, natural
from fedspray.tables.schema import Schema

FORMAT = 1
MINIMUM = 10
"""Rows that must share a category, or have a number, before anything is said of it."""


@dataclass(frozen=True)
class Moments:
    """Of the numbers in a column."""

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    """Of the distances from the mean, added up."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """From the numbers themselves."""
        if not len(values):
            return cls()
        total = math.fsum(values)
        return cls(len(values), total, math.fsum((values - total / len(values)) ** 2))

    def __add__(self, other: Moments) -> Moments:
        if not self.count or not other.count:
            return self if self.count else other
        between = self.mean - other.mean
        both = self.count + other.count
        shift = between * between * self.count * other.count / both
        return Moments(both, self.sum + other.sum, math.fsum((self.squares, other.squares, shift)))

    @property
    def mean(self) -> float:
        """0 without any number."""
        return self.sum / self.count if self.count else 0.0

    @property
    def sd(self) -> float:
        """The standard deviation; 1 where there is none, so that nothing is divided by 0."""
        variance = self.squares / self.count if self.count else 0.0
        return math.sqrt(variance) if variance > 0 else 1.0


@dataclass(frozen=True)
class Contribution:
    """What one site says of its tables."""

    site: str
    minimum: int
    numbers: Mapping[str, Moments]
    """By the feature's title; on the scale that the schema asks for (the logarithm, say)."""
    words: Mapping[str, Mapping[str, int]]
    """Rows with each category, by the feature's title."""
    classes: Mapping[str, int]
    withheld: Mapping[str, int]
    """How many categories (or numbers) of a feature have too few rows and stay; 0 is left out."""

    @classmethod
    def made(
        cls,
        site: str,
        minimum: int,
        numbers: Mapping[str, Moments],
        words: Mapping[str, Mapping[str, int]],
        classes: Mapping[str, int],
    ) -> Contribution:
        """Keeps back what fewer than ``minimum`` rows hold."""
        if minimum < 2:
            raise InputError(f"minimum is {minimum}, but must be 2 or more: a count of one describes a single person")
        kept = {title: {w: n for w, n in found.items() if n >= minimum} for title, found in words.items()}
        held = {title: len(found) - len(kept[title]) for title, found in words.items()}
        held |= {title: 1 for title, found in numbers.items() if found.count < minimum}
        return cls(
            site,
            minimum,
            {title: found for title, found in numbers.items() if found.count >= minimum},
            kept,
            {name: n for name, n in classes.items() if n >= minimum},
            {title: n for title, n in held.items() if n},
        )

    def to_json(self) -> str:
        """Everything that leaves, for a person to read and a ledger to keep."""
        content = {**vars(self), "format": FORMAT, "numbers": {title: vars(n) for title, n in self.numbers.items()}}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Contribution:
        """Reads what `to_json` gave; a file from another organisation is checked field by field."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
                raise InputError(f"it is not a contribution of format {FORMAT}")
            numbers = {title: Moments(**_checked(entry)) for title, entry in content.pop("numbers").items()}
            made = cls(numbers=numbers, **content)
            for counts in (made.classes, made.withheld, *made.words.values()):
                for number in counts.values():
                    _counted(number)
            return made
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} is not a site's statistics: {error}") from None


def merge(schema: Schema, contributions: Sequence[Contribution]) -> Schema:
    """The schema with the scales, vocabularies and classes of all sites together."""
    if not contributions:
        raise InputError("no statistics are given, but at least one site's are needed")
    twice = repeated(site.site for site in contributions)
    if twice is not None:
        raise InputError(f"site {twice!r} contributes twice, but each site may contribute once")
    features = tuple(_agreed(feature, contributions) for feature in schema.features)
    classes = schema.nodes.classes
    if classes is None and schema.nodes.label is not None:
        classes = _together(site.classes for site in contributions) or None
    return replace(schema, features=features, nodes=replace(schema.nodes, classes=classes))


def _agreed(feature: Feature, contributions: Sequence[Contribution]) -> Feature:
    title = feature.title
    if feature.kind in ("numeric", "date"):
        total = sum((site.numbers[title] for site in contributions if title in site.numbers), Moments())
        if not total.count:
            return feature
        return replace(feature, mean=total.mean, sd=total.sd if feature.scale in ("standard", "log") else None)
    if feature.kind in ("category", "set") and feature.vocabulary is None:
        return replace(feature, vocabulary=_together(site.words.get(title, {}) for site in contributions))
    return feature


def _together(counts: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(chain.from_iterable(counts)), key=natural))


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    _counted(entry["count"])
    if not all(isinstance(entry[key], int | float) and math.isfinite(entry[key]) for key in ("sum", "squares")):
        raise ValueError(f"{entry} are not finite numbers")
    if entry["squares"] < 0:
        raise ValueError(f"squares is {entry['squares']}, but must be 0 or more")
    return entry


def _counted(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
