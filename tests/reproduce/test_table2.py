"""What Table 2 says, from figures made up for the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedspray.experiment import Data
from fedspray.federate import build_federation
from fedspray.studies.cells import Cell
from fedspray.studies.results import CellResult
from reproduction.access import AUTHORS, LOUVAIN, Access, Found
from reproduction.lines import DONE, FAILED, PARTLY, QUICK, Line, PartResult
from reproduction.parts import table3
from reproduction.table2 import table2
from reproduction.trained import Order, experiments_folder

RIVALS = ("fedavg", "apfl", "gcfl", "fedstar", "fedlit")
FIGURES = {
    **{(name, backbone): (0.5, 0.05) for name in RIVALS for backbone in ("gcn", "sgc")},
    ("local", "gcn"): (0.80, 0.70),
    ("fedspray", "gcn"): (0.875, 0.65),
    ("fedspray-plus", "gcn"): (0.88, 0.66),
    ("fedspray-plus", "sgc"): (0.87, 0.595),
    ("fedspray", "sgc"): (0.88, 0.595),
    ("local", "sgc"): (0.88, 0.10),
    ("fedspray", "sage"): (0.99, 0.99),
    ("local", "sage"): (0.88, 0.10),
}
"""Mean of overall and minority accuracy; seeds are 0.001 apart."""


class Known(Access):
    """Finds everything, on the authors' clients."""

    def find(self, data: Data, *, features: bool = True) -> Found:
        return Found(data, AUTHORS, build_federation("banks", nodes=100))


def pretend(title: str, cells: Sequence[Cell]) -> list[Cell]:
    ended = []
    for cell in cells:
        means = FIGURES.get((cell.method, cell.backbone))
        if (cell.method, cell.backbone, cell.seed) == ("fedspray", "sage", 4):
            means = None  # four seeds of five: not to be judged yet
        result = None
        if means is not None:
            shift = (cell.seed - 2) * (0.001 if cell.method == "fedspray" else 0.002)
            result = CellResult({"metrics": {"overall": means[0] + shift, "minority": means[1] + shift}})
        ended.append(replace(cell, result=result))
    return ended


@pytest.fixture(scope="module")
def result() -> PartResult:
    order = Order(run_cells=pretend, access=Known([]), experiments=experiments_folder(), datasets=["pubmed"])
    return table2(order)


def test_nearness_is_counted_in_published_deviations(result: PartResult) -> None:
    # Published: GCN 87.71 ± 0.65 and 62.12 ± 2.73, SGC 87.13 ± 1.41 and 59.23 ± 1.25; ours 87.5, 65, 88, 59.5.
    assert result.findings[0] == (
        "FedSpray: 3 of 4 figures are within one published standard deviation, 1 above and 0 below; "
        "3 are at or above the published mean, all but pubmed gcn overall −0.21 (std 0.65)."
    )
    assert result.findings[1] == "Higher by more than one standard deviation: pubmed gcn minority +2.88 (std 2.73)."


def test_the_best_on_minority_nodes_is_named(result: PartResult) -> None:
    # On GCN Local has 70% against 65%, on SGC FedSpray is ahead; FedSpray+ is not one of the paper's methods.
    assert "the best of the paper's 7 methods in 1 of the 2 pairs of data set and backbone" in result.findings[2]
    assert result.findings[2].endswith(
        "elsewhere another one is (overall / minority): pubmed gcn: local 80.00 / 70.00 against 87.50 / 65.00."
    )


def test_the_gain_of_fedspray_plus_is_paired_over_seeds(result: PartResult) -> None:
    assert result.findings[3] == (
        "FedSpray+ (ours) is at or above the published FedSpray in 3 of 4 figures, "
        "all but pubmed sgc overall −0.13 (std 1.41)."
    )
    # Differences by seed: 0.5 + (-0.2, -0.1, 0, 0.1, 0.2) points, so t = 0.5 / (0.158 / √5) = 7.07, p = 0.0021.
    # On minority nodes 1 + the same: t = 14.1, p = 0.00015, as with SGC's overall -1. Holm: these two times 4 (and 3,
    # but never below the one before), the next times 2, and the last, 0 + the same, as it is.
    assert result.findings[4].endswith(
        "pubmed gcn overall +0.50, p = 0.0042; pubmed gcn minority +1.00, p = 0.00058; "
        "pubmed sgc overall −1.00, p = 0.00058; pubmed sgc minority 0, p = 1."
    )


def test_rows_are_written_with_their_sample_deviation(result: PartResult) -> None:
    assert result.results_csv is not None
    lines = result.results_csv.splitlines()
    assert len(lines) == 1 + len(FIGURES) * 2
    # 100 · 0.001 · √((4 + 1 + 0 + 1 + 4) / 4)
    assert "pubmed,fedspray,gcn,overall,87.5000,0.1581,5,table2-pubmed.toml" in lines


def test_rows_that_were_not_run_are_in_the_table_without_figures(result: PartResult) -> None:
    open_lines = [line for line in result.lines if line.status == "not run"]
    assert len(open_lines) == (24 - len(FIGURES)) * 2
    assert {line.ours for line in open_lines} == {None}
    assert result.missing[0].reason == f"{5 * len(FIGURES) - 1} of 120 cells are finished."


def test_only_finished_rows_on_the_authors_clients_are_judged() -> None:
    line = Line(dataset="pubmed", quantity="overall", ours=1.0, split=AUTHORS, status=DONE)
    assert line.conclusive
    assert not replace(line, split=LOUVAIN).conclusive
    assert not any(replace(line, status=status).conclusive for status in (QUICK, PARTLY, FAILED))


def test_the_ablation_is_judged_where_both_rows_are_finished() -> None:
    def some(title: str, cells: Sequence[Cell]) -> list[Cell]:
        short = {"fedspray-no-proxies": 4}  # seed 4 is missing on Physics
        return [
            replace(c, result=None if c.dataset == "physics" and short.get(c.method) == c.seed else _result(c))
            for c in cells
        ]

    def _result(cell: Cell) -> CellResult:
        value = 0.88 if cell.method == "fedspray" else 0.875
        return CellResult({"metrics": {"overall": value, "minority": value}})

    # Published: 87.71 and 62.12 with proxies, 77.11 and 42.01 without.
    result = table3(Order(run_cells=some, access=Known([]), experiments=experiments_folder()))
    assert result.findings == [
        "pubmed, overall: without proxies −0.50 points; published −10.60.",
        "pubmed, minority: without proxies −0.50 points; published −20.11.",
    ]
