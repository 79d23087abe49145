"""What a run gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspray.evaluation.metrics import METRICS
from fedspray.runs.models import PersonalModel

if TYPE_CHECKING:
    import pandas as pd

Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class SeedResult:
    """The result of one seed."""

    seed: int
    metrics: Json
    """Everything about the reported round, as JSON."""
    records: list[Json]
    """One record for each round."""
    models: Mapping[str, PersonalModel]
    """Each client's personal model of the reported round."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """The results of all seeds of a run."""

    header: Json
    """Data set, algorithm, backbone and all settings."""
    seeds: list[SeedResult] = field(default_factory=list)

    @property
    def models(self) -> Mapping[str, PersonalModel]:
        """The personal models of the first seed, by client."""
        return self.seeds[0].models

    def summary(self) -> Json:
        """The run as one JSON object: what ``fedspray run --json`` prints and ``result.json`` holds."""
        rows = [{"seed": result.seed, **result.metrics} for result in self.seeds]
        return {
            **self.header,
            "seeds": rows,
            **{name: spread([row.get(name) for row in rows]) for name in METRICS},
            "models": rows[0]["models"],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per seed and round: losses, accuracies, bytes and seconds."""
        import pandas as pd

        rows = [
            {
                "seed": result.seed,
                "round": record["round"],
                **{f"{part}_{name}": record[part][name] for part in ("train", "val", "test") for name in _CURVES},
                **{name: record[name] for name in ("bytes_up", "bytes_down", "seconds", "cpu_seconds")},
            }
            for result in self.seeds
            for record in result.records
        ]
        return pd.DataFrame(rows)


def spread(values: list[float | None]) -> Json:
    """Mean and sample standard deviation over seeds; None where there is nothing, or one value, to spread."""
    known = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "std": float(np.std(known, ddof=1)) if len(known) > 1 else None,
    }


_CURVES = ("loss", "overall", "minority")
