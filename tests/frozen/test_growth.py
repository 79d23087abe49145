"""What is added later leaves what is stored as it is: a setting, a name that becomes another's preset, a metric."""

from __future__ import annotations

import json
from dataclasses import make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import frozen
import pytest
from test_frozen import FROZEN, STORED

import fedspray
from fedspray import algorithms
from fedspray.algorithms.fedspray import FedSpray
from fedspray.backbones.base import setting
from fedspray.evaluation import metrics
from fedspray.experiment import Data, RoundSettings, RunSettings
from fedspray.report.comparisons import comparison_csv
from fedspray.report.html import write_report
from fedspray.runs import settings
from fedspray.runs.settings import deciding, resolve
from fedspray.studies import tuning
from fedspray.studies.cells import Cell, Row
from fedspray.studies.comparison import summarise
from fedspray.studies.grid import Grid, run_rows

SOURCE = Data.of(dataset="banks", nodes=200).located()


def row(algorithm: str, **values: Any) -> Row:
    run = RunSettings(algorithm=algorithm, values={"rounds": 3, **values})
    return Row(dataset="banks", method=algorithm, data=SOURCE, run=run)


def cell(algorithm: str, **values: Any) -> Cell:
    (found,) = row(algorithm, **values).cells()
    return found


def grown(owner: type[Any], name: str, default: float, **more: Any) -> type[Any]:
    """A class with one setting more."""
    new = (name, float, setting(default, "added later", **more))
    return make_dataclass(owner.__name__, [new], bases=(owner,), frozen=True, kw_only=True)


def add_settings(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """All algorithms get ``momentum``, all runs ``patience``."""
    find = algorithms.find
    monkeypatch.setattr(algorithms, "find", cache(lambda name: grown(find(name), "momentum", 0.0, **more)))
    monkeypatch.setattr(settings, "RoundSettings", grown(RoundSettings, "patience", 0.0, **more))


@pytest.mark.parametrize("study", ["table2-pubmed", "rivals-physics", "tune-lr-physics"])
def test_a_later_setting_leaves_all_keys(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_settings(monkeypatch, neutral=0.0)
    assert frozen.keys_on_banks(study, monkeypatch.setattr) == FROZEN["keys_on_banks"][study]


def test_a_later_setting_leaves_stored_cells_and_tells_new_ones_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_settings(monkeypatch, neutral=0.0)
    for file in STORED:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    known = [cell("fedavg"), cell("fedspray"), cell("fedavg", momentum=0, patience=0)]
    assert [outcome.result is not None for outcome in Grid(known, tmp_path).stored()] == [True, True, True]
    other = [cell("fedavg", momentum=0.5), cell("fedavg", patience=2), cell("fedavg", momentum=0.5, patience=2)]
    assert len({each.key() for each in (cell("fedavg"), *other)}) == 4
    assert known[0].settings["momentum"] == 0.0  # results and models name all settings


def test_a_setting_that_forgets_its_neutral_value_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add_settings(monkeypatch)
    assert frozen.keys_on_banks("table2-pubmed", monkeypatch.setattr) != FROZEN["keys_on_banks"]["table2-pubmed"]


def test_the_neutral_value_outlives_defaults() -> None:
    """Of the class itself and of one derived from it that says nothing about it."""
    late = grown(algorithms.find("fedavg"), "momentum", 0.9, neutral=0.0)
    derived = grown(late, "momentum", 0.7)
    (backbone,) = {resolve(RunSettings()).algorithm.backbone}
    for owner, default in ((late, 0.9), (derived, 0.7)):
        assert deciding(owner(backbone=backbone))["momentum"] == default
        assert "momentum" not in deciding(owner(backbone=backbone, momentum=0.0))


def test_cells_of_a_name_that_became_a_preset_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old,) = Grid([cell("fedspray-plus")], tmp_path).run()
    preset = replace(cell("fedspray"), run=replace(cell("fedspray").run, preset="plus"))
    monkeypatch.setattr(FedSpray, "presets", {**FedSpray.presets, "plus": {"blend": "auto"}})
    assert Grid([preset], tmp_path).num_stored == 0
    monkeypatch.setattr(FedSpray, "formerly", {"fedspray-plus": {"blend": "auto"}})
    grid = Grid([preset, cell("fedspray", blend="auto"), cell("fedspray"), cell("fedspray", blend=0.3)], tmp_path)
    assert [outcome.path == old.path for outcome in grid.stored()] == [True, True, False, False]
    assert grid.num_stored == 1
    (new,) = Grid([preset], tmp_path / "elsewhere").run()  # a new cell has the new name
    assert new.result is not None
    assert new.result.content["algorithm"] == "fedspray"
    assert old.result is not None
    assert new.result.metrics["clients"] == old.result.metrics["clients"]


def test_a_metric_is_declared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in results, tables, pages and choices, moves nothing, and old cells are read without it."""
    federation = frozen.banks()
    before = frozen.digests(federation, {"algorithm": "fedavg"})
    monkeypatch.setitem(metrics.METRICS, "error", metrics.METRICS["overall"])  # replaced at once, removed at the end

    @metrics.metric("error rate", "share of wrong predictions", smaller_is_better=True, headline=True)
    def error(counts: metrics.PartCounts) -> float | None:
        value = metrics.overall(counts)
        return None if value is None else 1 - value

    assert frozen.digests(federation, {"algorithm": "fedavg"}) == before
    result = fedspray.run(federation, algorithm="fedavg", rounds=3, selection="error", out=tmp_path / "run")
    summary = result.summary()
    assert summary["error"]["mean"] == pytest.approx(1 - summary["overall"]["mean"])
    assert summary["seeds"][0]["val"]["error"] == pytest.approx(1 - summary["seeds"][0]["val"]["overall"])
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert ">error rate</th>" in (tmp_path / "page.html").read_text()
    assert tuning.criterion_score("error", {"error": 0.2}) == -0.2
    for file in STORED:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rows = run_rows("", [row("fedavg"), row("fedspray")], lambda title, cells: Grid(cells, tmp_path).stored())
    summary = summarise(rows, "fedspray")
    assert [r["error"]["mean"] for r in summary["rows"]] == [None, None]
    assert ",error," not in comparison_csv(summary, "")


def test_results_without_a_later_metric_are_read(tmp_path: Path) -> None:
    for file in STORED:
        content = json.loads(file.read_text())
        for name in ("auc", "macro_f1", "overall_client_mean", "minority_client_mean"):
            del content["metrics"][name]
        (tmp_path / file.name).write_text(json.dumps(content))
    rows = run_rows("", [row("fedavg"), row("fedspray")], lambda title, cells: Grid(cells, tmp_path).stored())
    summary = summarise(rows, "fedspray")
    assert [r["auc"] for r in summary["rows"]] == [{"mean": None, "std": None, "values": [None]}] * 2
    assert all(r["overall"]["mean"] is not None for r in summary["rows"])
    assert [test["pairs"] for test in summary["tests"]] == [1, 1]
