"""What two schemas disagree on: everything that gives the same row another feature or class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from fedspray.tables.feature import Feature
from fedspray.tables.schema import Schema

_LOCAL = ("columns", "name", "at_least", "separator", "time_format")
"""Keys of a feature that each organisation may set as its files need."""


@dataclass(frozen=True)
class Difference:
    """One thing on which two schemas disagree."""

    where: str
    what: str
    """Such as order, only first, only second, kind, scale, mean."""
    sentence: str


def compare(first: Schema, second: Schema) -> list[Difference]:
    """All differences that matter; where the files are, and what their columns are called, does not."""
    return [
        *_lists("classes", first.nodes.classes, second.nodes.classes),
        *_lists("class names", first.nodes.class_names, second.nodes.class_names),
        *_lists("structural features", first.nodes.structure or None, second.nodes.structure or None),
        *_values("edges", "direction", first.edges.direction, second.edges.direction),
        *_values("edges", "weight_scale", first.edges.weight_scale, second.edges.weight_scale),
        *_values("edges", "weighted", first.edges.weight is not None, second.edges.weight is not None),
        *_features(first, second),
    ]


def _features(first: Schema, second: Schema) -> Iterator[Difference]:
    left, right = (
        {name: f for f in schema.features if f.kind != "drop" for name in ([f.name] if f.name else f.columns)}
        for schema in (first, second)
    )
    yield from _lists("features", tuple(left), tuple(right))
    for title in left:
        if title in right:
            yield from _feature(title, left[title], right[title])


def _feature(title: str, first: Feature, second: Feature) -> Iterator[Difference]:
    where = f"feature {title!r}"
    if first.kind != second.kind:
        yield from _values(where, "kind", first.kind, second.kind)
        return
    for f in fields(Feature):
        one, two = getattr(first, f.name), getattr(second, f.name)
        if f.name in _LOCAL:
            continue
        if f.name == "vocabulary":
            yield from _lists(f"the vocabulary of {where}", one, two)
        else:
            yield from _values(where, f.name, one, two)


def _values(where: str, what: str, first: object, second: object) -> Iterator[Difference]:
    if first != second:
        yield Difference(
            where, what, f"{where}: {what} is {_shown(first)} in the first and {_shown(second)} in the second"
        )


def _lists(where: str, first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> Iterator[Difference]:
    if first == second:
        return
    if first is None or second is None:
        said = "first" if second is None else "second"
        yield Difference(where, f"only {said}", f"{where}: only the {said} schema lists them")
        return
    for said, mine, other in (("first", first, second), ("second", second, first)):
        alone = [word for word in mine if word not in set(other)]
        if alone:
            yield Difference(where, f"only {said}", f"{where}: only the {said} has {', '.join(map(repr, alone))}")
    shared = [[word for word in mine if word in set(other)] for mine, other in ((first, second), (second, first))]
    if shared[0] != shared[1]:
        place = next(i for i, (a, b) in enumerate(zip(*shared, strict=True)) if a != b)
        yield Difference(
            where,
            "order",
            f"{where}: the order differs, first at {shared[0][place]!r}, where the second has {shared[1][place]!r}",
        )


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)
