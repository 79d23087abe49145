"""How the cost of a round grows: series of cases that differ in one size only, and their exponents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from statistics import linear_regression
from typing import Any

from fedspray.files import Json

_SIZES = {"nodes": "clients", "clients": "nodes"}
"""What grows, and what stays the same meanwhile."""


def find_series(cases: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Every series of at least two sizes among the cases, smallest size first."""
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for grows, stays in _SIZES.items():
        for case in cases:
            seconds = case["ours"]["cpu_seconds"]
            if case["dataset"] == "banks" and seconds is not None:
                key = (grows, case["backbone"], case["algorithm"], case[stays])
                found.setdefault(key, {})[case[grows]] = seconds
    return [_describe(key, dict(sorted(points.items()))) for key, points in found.items() if len(points) > 1]


def exponent(points: Mapping[int, float]) -> float:
    """The least-squares slope of log(cost) over log(size)."""
    return linear_regression([*map(log, points)], [*map(log, points.values())]).slope


def _describe(key: tuple[Any, ...], points: Mapping[int, float]) -> Json:
    grows, backbone, algorithm, at = key
    costs = list(points.values())
    return {
        "grows": grows,
        "stays": _SIZES[grows],
        "at": at,
        "backbone": backbone,
        "algorithm": algorithm,
        "sizes": list(points),
        "cpu_seconds": costs,
        "exponent": exponent(points),
        "growth": costs[-1] / costs[0],
    }
