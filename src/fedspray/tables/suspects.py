"""Columns that are not what the schema takes them for: seen before they are scaled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedspray.data.traps import Trap, gives_away, looks_like_time
from fedspray.tables.database import Database, quoted
from fedspray.tables.feature import Feature
from fedspray.tables.numbers import fetch_numbers
from fedspray.tables.rows import fetch


def column_traps(database: Database, features: Sequence[Feature], labels: NDArray[np.int64] | None) -> Iterator[Trap]:
    """Numbers that are moments in time, and categories that the label follows from."""
    scaled = [feature for feature in features if feature.kind == "numeric" and feature.scale != "none"]
    for feature, values in zip(scaled, fetch_numbers(database, scaled), strict=True):
        if looks_like_time(values):
            yield Trap(
                "time", f'column {feature.columns[0]!r} looks like time stamps, but is numeric: use kind = "date"'
            )
    for feature in features:
        if feature.kind == "category" and labels is not None:
            codes = fetch(database, f"dense_rank() OVER (ORDER BY {quoted(feature.columns[0])})")
            if 10 * len(np.unique(codes)) <= len(codes) and gives_away(codes, labels):
                yield Trap("leak", f"column {feature.columns[0]!r} gives the label away: is it known in time?")
