"""Published figures: small CSV files in ``published/``, with their sources in its README."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAPER = "Fu et al., Federated Graph Learning with Structure Proxy Alignment, KDD 2024"
ANSWERS = "public answers of the authors of FedSpray (Fu et al., KDD 2024) to the reviewers of their paper"

_FOLDER = Path(__file__).parent / "published"
_NAMES = ("dataset", "algorithm", "backbone", "metric", "mean", "std")


@dataclass(frozen=True)
class PublishedRow:
    """A published mean, in percent."""

    dataset: str
    algorithm: str
    backbone: str
    settings: Mapping[str, float]
    """Settings that the row is about, such as λ1."""
    metric: str
    mean: float
    std: float | None


def read_rows(part: str) -> list[dict[str, str]]:
    """The rows of a part's file as they are."""
    return list(csv.DictReader((_FOLDER / f"{part}.csv").read_text().splitlines()))


@cache
def results(part: str) -> tuple[PublishedRow, ...]:
    """The published results of a part that is made of runs; none where the paper only argues."""
    return tuple(_row(row) for row in read_rows(part)) if (_FOLDER / f"{part}.csv").is_file() else ()


def _row(row: Mapping[str, Any]) -> PublishedRow:
    return PublishedRow(
        dataset=row["dataset"],
        algorithm=row["algorithm"],
        backbone=row["backbone"],
        settings={name: float(value) for name, value in row.items() if name not in _NAMES},
        metric=row["metric"],
        mean=float(row["mean"]),
        std=float(row["std"]) if row["std"] else None,
    )
