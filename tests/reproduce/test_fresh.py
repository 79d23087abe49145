"""What fresh seeds say, and how soon methods hold an accuracy, from figures made up for the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedspray.experiment import Data
from fedspray.federate import build_federation
from fedspray.studies.cells import Cell
from fedspray.studies.results import CellResult
from reproduction.access import AUTHORS, Access, Found
from reproduction.fresh import first_held, fresh, reach
from reproduction.lines import PartResult
from reproduction.trained import Order, experiments_folder

FIGURES = {"fedspray2": (0.90, 0.70), "local": (0.87, 0.50), "fedlit": (0.85, 0.71)}


class Known(Access):
    """Finds everything, on the authors' clients."""

    def find(self, data: Data, *, features: bool = True) -> Found:
        return Found(data, AUTHORS, build_federation("banks", nodes=100))


def pretend(title: str, cells: Sequence[Cell]) -> list[Cell]:
    """Three methods have all five seeds with GCN; accuracies rise by one point in a round to where they end.

    Seeds of FedSpray 2 are 0.1 points apart. 20 rounds, two clients, 1 MB each way for both together in a round.
    """
    ended = []
    for cell in cells:
        result = None
        if cell.method in FIGURES and cell.backbone == "gcn":
            shift = (cell.seed - 12) * 0.001 if cell.method == "fedspray2" else 0.0
            values = dict(zip(("overall", "minority"), (value + shift for value in FIGURES[cell.method]), strict=True))
            curves = {name: [value - 0.01 * (19 - r) for r in range(20)] for name, value in values.items()}
            sent = {"bytes_up": 0 if cell.method == "local" else 20_000_000, "bytes_down": 0}
            metrics: dict[str, Any] = {
                **values,
                **sent,
                "rounds": 20,
                "cpu_seconds": 40.0,
                "clients": {"a": {}, "b": {}},
            }
            result = CellResult({"metrics": metrics, "curves": {"test": curves}})
        ended.append(replace(cell, result=result))
    return ended


def made(part: Callable[[Order], PartResult]) -> PartResult:
    order = Order(run_cells=pretend, access=Known([]), experiments=experiments_folder(), datasets=["pubmed"])
    return part(order)


def test_fedspray2_is_set_against_each_method_on_common_seeds() -> None:
    result = made(fresh)
    assert result.findings == [
        "fedspray2 is at or above every method with finished seeds in 1 of 2 figures; "
        "elsewhere behind, pubmed gcn minority: fedlit by 1.00 points.",
        "15 of 300 cells are finished.",
    ]
    assert result.results_csv is not None
    rows = [line.split(",") for line in result.results_csv.splitlines()]
    local = next(row for row in rows if row[1:4] == ["gcn", "local", "overall"])
    # Differences 3 + (-0.2 … 0.2): t = 3 / (0.158 / √5) = 42.4, p = 1.85e-6; Holm over four tests: the third largest.
    assert local[4:9] == ["87.0000", "0.0000", "5", "3.0000", "5"]
    assert float(local[9]) == pytest.approx(1.85e-6, rel=0.01)
    assert float(local[9]) < float(local[10]) <= 4 * float(local[9]) * 1.001


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([0.9] * 5, 1),
        ([0.9] * 4, None),
        ([0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9], 5),
        ([0.9, None, 0.9, 0.9, 0.9, 0.9], None),
    ],
)
def test_a_level_is_held_for_five_rounds(curve: list[float | None], expected: int | None) -> None:
    assert first_held(curve, 0.9) == expected


@pytest.mark.slow
def test_rounds_bytes_and_seconds_to_a_level() -> None:
    result = made(reach)
    assert result.results_csv is not None
    rows = {tuple(line.split(",")[1:5]): line.split(",")[5:] for line in result.results_csv.splitlines()[1:]}
    # Local ends with 50% on minority nodes. FedSpray 2 begins at 51% with its middle seed: held from the first round,
    # at 20 MB / 20 rounds / 2 clients = 0.5 MB and 2 CPU seconds.
    assert rows["gcn", "fedspray2", "local", "minority"] == ["5", "5", "1", "0.50", "2.0"]
    # FedLit ends below Local's 87%.
    assert rows["gcn", "fedlit", "local", "overall"] == ["0", "5", "", "", ""]
    # Its 87% is reached in the last round only by Local itself, which is not five rounds in a row.
    assert rows["gcn", "local", "local", "overall"][0] == "0"
    # The paper prints 87.71% for FedSpray: the middle seed of FedSpray 2 is at 87.71 in round 18, and then holds it in
    # three rounds only; 62.12% on minority nodes in round 13, 0.5 MB a round.
    assert rows["gcn", "fedspray2", "published", "overall"][0] == "0"
    assert rows["gcn", "fedspray2", "published", "minority"] == ["5", "5", "13", "6.50", "26.0"]
    assert list(result.pictures) == ["reach-pubmed-gcn.png"]
