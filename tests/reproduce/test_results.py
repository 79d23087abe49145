"""The committed Table 2: its form, and that its pages say what it says."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from fedspray.experiment import Experiment
from fedspray.studies.study import Study
from reproduction.published import results

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "results" / "table2.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
DATASETS = list(dict.fromkeys(row["dataset"] for row in ROWS))
"""In the order of the page."""


def test_columns() -> None:
    assert list(ROWS[0]) == ["dataset", "algorithm", "backbone", "metric", "mean", "std", "seeds", "settings"]
    assert all(0 < float(row["mean"]) < 100 and 0 < float(row["std"]) < 20 for row in ROWS)


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_row_of_a_data_set_is_there_with_five_seeds(dataset: str) -> None:
    published = {(r.algorithm, r.backbone, r.metric) for r in results("table2") if r.dataset == dataset}
    plus = {("fedspray-plus", backbone, metric) for _, backbone, metric in published}
    ours = [(r["algorithm"], r["backbone"], r["metric"]) for r in ROWS if r["dataset"] == dataset]
    assert sorted(ours) == sorted(published | plus)
    assert {row["seeds"] for row in ROWS if row["dataset"] == dataset} == {"5"}


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_named_file_runs_the_row(dataset: str) -> None:
    (name,) = {row["settings"] for row in ROWS if row["dataset"] == dataset}
    plan = Study.from_values(Experiment.read_values(ROOT / "experiments" / name), name)
    planned = {(row.method, row.backbone) for row in plan.rows()}
    assert {(row["algorithm"], row["backbone"]) for row in ROWS if row["dataset"] == dataset} == planned


def test_the_page_shows_the_figures_of_the_table() -> None:
    text = (ROOT / "results" / "table2.md").read_text()
    shown = re.findall(r"^\| (\w+) \| ([\w-]+) \|[^|]*\| ([\d.]+) ± ([\d.]+) \|[^|]*\| 5 \|$", text, flags=re.MULTILINE)
    by_metric = [row for metric in ("overall", "minority") for row in ROWS if row["metric"] == metric]
    by_metric.sort(key=lambda row: DATASETS.index(row["dataset"]))
    assert len(shown) == len(ROWS)
    for (backbone, algorithm, mean, std), row in zip(shown, by_metric, strict=True):
        assert (backbone, algorithm) == (row["backbone"], row["algorithm"])
        assert float(mean) == pytest.approx(float(row["mean"]), abs=0.0051)
        assert float(std) == pytest.approx(float(row["std"]), abs=0.0051)
