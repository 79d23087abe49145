"""One setting over a list of values: the rows of a study, once for each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedspray.data.graph import repeated
from fedspray.errors import InputError
from fedspray.experiment import Data, data_knobs
from fedspray.files import Json
from fedspray.runs.settings import check_meaning
from fedspray.studies.cells import Row
from fedspray.studies.comparison import figures
from fedspray.studies.statistics import COMPARED
from fedspray.studies.study import Study

_NAMED = ("dataset", "partitioner", "partition_dir")
"""Keys that a study lists instead of varying."""


def sweep_rows(study: Study, setting: str, values: Sequence[Any]) -> list[tuple[Any, Row]]:
    """Every value with every row of the study; ``setting`` is any of the algorithm, backbone, rounds or data."""
    if len(values) < 2:
        raise InputError(f"{setting} has {len(values)} value(s), but a sweep needs at least 2")
    if any(setting in given for _, given in study.flags):
        raise InputError(f"{setting} is both set by a flag and varied: do only one")
    for row in study.rows():
        check_meaning(row.run.algorithm, [setting], row.run.backbone)
    found = []
    for value in values:
        for row in study.rows():
            changed = _with_data(row, setting, value) if setting in data_knobs() else row.with_values({setting: value})
            changed.check()
            shown = changed.data.to_json()[setting] if setting in data_knobs() else changed.settings[setting]
            found.append((shown, changed))
    read = [shown for shown, _ in found[:: len(study.rows())]]
    twice = repeated(read)
    if twice is not None:
        raise InputError(f"{setting} has the value {twice} twice, but each may appear once")
    return found


def summarise_sweep(setting: str, rows: Sequence[tuple[Any, Row]]) -> Json:
    """The figures of every value as one JSON object, made from the rows of the comparison."""
    return {
        "setting": setting,
        "metrics": list(COMPARED),
        "rows": [{"value": value, **figures(row)} for value, row in rows],
    }


def _with_data(row: Row, setting: str, value: Any) -> Row:
    if setting in _NAMED:
        others = ", ".join(name for name in data_knobs() if name not in _NAMED)
        raise InputError(f"{setting} cannot be swept: choose any setting, or {others}")
    data = Data.of(**{**row.data.to_json(), setting: data_knobs()[setting].read(value)})
    return replace(row, data=data, label=f"{setting}={value}")
