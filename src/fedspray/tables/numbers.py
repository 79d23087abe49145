"""Features that are numbers: numeric columns and dates, fetched, scaled, and with what becomes of missing values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.feature import Feature
from fedspray.tables.statistics import Moments

REFERENCE = "2000-01-01"
"""Dates become years since then, unless the schema says otherwise."""
YEAR = 365.25 * 86_400
AT_ONCE = 64
"""Columns that are fetched together."""

NUMBERS = ("numeric", "date")
"""Kinds of features that are numbers."""

Block = Any
"""[N, k]: NDArray[np.float32], or sp.csr_array."""


def moment(column: str, time_format: str | None = None) -> str:
    """SQL: a column as a time stamp, or NULL."""
    text = quoted(column)
    if time_format in ("unix", "unix_ms"):
        scale = 1e6 if time_format == "unix" else 1e3
        return f"make_timestamp(TRY_CAST(TRY_CAST({text} AS DOUBLE) * {scale} AS BIGINT))"
    if time_format is not None:
        return f"try_strptime({text}, {literal(time_format)})"
    return f"TRY_CAST({text} AS TIMESTAMP)"


def fetch_numbers(database: Database, features: Sequence[Feature]) -> Iterator[NDArray[np.float64]]:
    """[N] for each feature: its values (dates as seconds since 1970), NaN where they are missing."""
    for start in range(0, len(features), AT_ONCE):
        some = features[start : start + AT_ONCE]
        chosen = ", ".join(f"CAST({_as_number(f)} AS DOUBLE) AS c{i}" for i, f in enumerate(some))
        found = database.run(f"SELECT {chosen} FROM nodes ORDER BY _pos").fetchnumpy()
        for i in range(len(some)):
            yield np.ma.filled(np.ma.asarray(found[f"c{i}"], np.float64), np.nan)


def _as_number(feature: Feature) -> str:
    column = feature.columns[0]
    if feature.kind == "date":
        return f"epoch({moment(column, feature.time_format)})"
    return f"TRY_CAST({quoted(column)} AS DOUBLE)"


def number_moments(database: Database, features: Sequence[Feature]) -> dict[str, Moments]:
    """Moments of the numeric features, on the scale that they ask for."""
    asked = [feature for feature in features if feature.kind in NUMBERS]
    pairs = zip(asked, fetch_numbers(database, asked), strict=True)
    return {feature.title: Moments.of(_shaped(feature, values[~np.isnan(values)])) for feature, values in pairs}


def number_columns(feature: Feature, values: NDArray[np.float64]) -> tuple[Block, list[str], Feature]:
    """A number, or the years of a date, scaled; months, weekdays and hours as points on a circle."""
    blocks: list[Block] = []
    names: list[str] = []
    known = feature
    for part in feature.parts:  # of a number: years alone
        if part == "years":
            block, titles, known = _scaled(feature, values)
            blocks.append(block)
            names += titles
        else:
            blocks.append(_circle(values, part))
            names += [f"{feature.title} {part} {wave}" for wave in ("sin", "cos")]
    return np.concatenate(blocks, axis=1), names, known


def _scaled(feature: Feature, values: NDArray[np.float64]) -> tuple[Block, list[str], Feature]:
    absent = np.isnan(values)
    known = _resolved(feature, values[~absent])
    shaped = _shaped(feature, np.where(absent, 0.0, values))
    if isinstance(feature.missing, float):
        shaped[absent] = _shaped(feature, np.array([feature.missing]))[0]
    elif known.mean is not None:
        shaped[absent] = known.mean
    if known.scale in ("standard", "log"):
        shaped = (shaped - (known.mean or 0.0)) / (known.sd or 1.0)
    elif known.scale == "range":
        shaped = (shaped - (known.low or 0.0)) / ((known.high or 0.0) - (known.low or 0.0))
    columns = [shaped, absent.astype(np.float64)] if feature.flag else [shaped]
    names = [feature.title, *([f"{feature.title} is missing"] if feature.flag else [])]
    return np.stack(columns, axis=1).astype(np.float32), names, known


def _shaped(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """On the scale on which means are taken: dates in years, logarithms where asked for."""
    if feature.kind == "date":
        start = np.datetime64(feature.reference or REFERENCE, "s").astype(np.int64)
        values = (values - float(start)) / YEAR
    return np.sign(values) * np.log1p(np.abs(values)) if feature.scale == "log" else np.array(values, np.float64)


def _resolved(feature: Feature, present: NDArray[np.float64]) -> Feature:
    shaped = _shaped(feature, present)
    scaled = feature.scale in ("standard", "log")
    changes: dict[str, Any] = {}
    if feature.mean is None and (scaled or feature.missing in (None, "mean")):
        changes["mean"] = Moments.of(shaped).mean
    if feature.sd is None and scaled:
        changes["sd"] = Moments.of(shaped).sd
    if feature.scale == "range":
        low, high = (float(shaped.min()), float(shaped.max())) if len(shaped) else (0.0, 1.0)
        low = low if feature.low is None else feature.low
        high = high if feature.high is None else feature.high
        changes |= {"low": low, "high": high if high > low else low + 1.0}
    return replace(feature, **changes)


def _circle(seconds: NDArray[np.float64], part: str) -> NDArray[np.float32]:
    """[N, 2]: the place in the year, the week or the day as a point on a circle; 0, 0 where it is missing."""
    absent = np.isnan(seconds)
    stamps = np.where(absent, 0.0, seconds).astype("datetime64[s]")
    days = stamps.astype("datetime64[D]")
    if part == "month":
        share = (stamps.astype("datetime64[M]").astype(np.int64) % 12) / 12
    elif part == "weekday":
        share = ((days.astype(np.int64) + 3) % 7) / 7  # 1 January 1970 was a Thursday
    else:
        share = (stamps - days).astype(np.float64) / 86_400
    points = np.stack([np.sin(2 * np.pi * share), np.cos(2 * np.pi * share)], axis=1)
    points[absent] = 0.0
    return points.astype(np.float32)
