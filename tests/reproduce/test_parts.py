"""Parts made of runs, for real: small studies on `banks`."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from fedspray.errors import InputError
from fedspray.experiment import Data
from fedspray.studies.grid import Grid
from reproduction.access import AUTHORS, Access, Found, NotFound
from reproduction.parts import PARTS
from reproduction.trained import QUICK_NOTE, Order

STUDY = """
dataset = "banks"
nodes = 300
rounds = 3
seeds = 2

[compare]
algorithms = {algorithms}
backbones = ["gcn"]
"""
METHODS = '["local", "fedspray", "fedspray-plus"]'


class Theirs(Access):
    """Says of all clients that they are the authors'."""

    def find(self, data: Data, *, features: bool = True) -> Found | NotFound:
        found = super().find(data, features=features)
        return replace(found, split=AUTHORS) if isinstance(found, Found) else found


def make(
    tmp_path: Path,
    part: str,
    algorithms: str = METHODS,
    *,
    run: bool = True,
    quick: bool = False,
    access: Access | None = None,
) -> Order:
    (tmp_path / f"{part}-banks.toml").write_text(STUDY.format(algorithms=algorithms))
    cells = tmp_path / "cells"
    return Order(
        run_cells=lambda title, wanted: Grid(wanted, cells).run() if run else Grid(wanted, cells).stored(),
        access=access or Access([tmp_path]),
        experiments=tmp_path,
        quick=quick,
    )


def test_a_table_of_runs(tmp_path: Path) -> None:
    order = make(tmp_path, "table2")
    result = PARTS["table2"](order)
    assert [(line.labels["algorithm"], line.quantity) for line in result.lines[:2]] == [
        ("local", "overall"),
        ("local", "minority"),
    ]
    assert {(line.seeds, line.status, line.published) for line in result.lines} == {(2, "done", None)}
    assert result.results_csv is not None
    rows = list(csv.DictReader(result.results_csv.splitlines()))
    assert list(rows[0]) == ["dataset", "algorithm", "backbone", "metric", "mean", "std", "seeds", "settings"]
    assert len(rows) == 6
    assert rows[0]["settings"] == "table2-banks.toml"
    values = [cell.result.metrics["overall"] for cell in result.cells[:2] if cell.result is not None]
    assert float(rows[0]["mean"]) == pytest.approx(50 * sum(values), abs=1e-3)
    assert float(rows[0]["std"]) == pytest.approx(100 * abs(values[0] - values[1]) / 2**0.5, abs=1e-3)

    stored = PARTS["table2"](make(tmp_path, "table2", run=False))
    assert [line.ours for line in stored.lines] == [line.ours for line in result.lines]
    assert all(cell.result is not None for cell in stored.cells)


def test_partial_results_count_their_seeds_and_nothing_is_run(tmp_path: Path) -> None:
    PARTS["table2"](make(tmp_path, "table2", '["local"]'))
    next((tmp_path / "cells").glob("*seed1*.json")).unlink()
    result = PARTS["table2"](make(tmp_path, "table2", '["local", "fedavg"]', run=False))
    assert [(line.seeds, line.status) for line in result.lines] == [(1, "partly")] * 2 + [(0, "not run")] * 2
    assert [entry.reason for entry in result.missing] == ["1 of 4 cells are finished."]
    assert result.results_csv is not None
    assert len(result.results_csv.splitlines()) == 3


def test_a_failed_cell_is_said(tmp_path: Path) -> None:
    bad = '[{ name = "bad", algorithm = "fedavg", set = { lr = 1e30 } }]'
    result = PARTS["table2"](make(tmp_path, "table2", bad))
    assert {line.status for line in result.lines} == {"failed"}
    assert result.results_csv is None


def test_quick_shortens_and_writes_no_results(tmp_path: Path) -> None:
    result = PARTS["table2"](make(tmp_path, "table2", '["local"]', quick=True))
    assert {line.seeds for line in result.lines} == {1}
    assert result.results_csv is None
    assert QUICK_NOTE in result.sheets[-1].note


def test_a_sweep_has_a_picture_with_the_values_in_order(tmp_path: Path) -> None:
    methods = (
        "["
        + ", ".join(
            f'{{ name = "s{v}", algorithm = "fedspray", set = {{ distill_weight = {v} }} }}' for v in (0.1, 5, 50)
        )
        + "]"
    )
    result = PARTS["figure-lambda"](make(tmp_path, "figure-lambda", methods))
    assert [line.labels["distill_weight"] for line in result.lines] == [0.1, 0.1, 5.0, 5.0, 50.0, 50.0]
    assert result.pictures["figure-lambda.png"].startswith(b"\x89PNG")
    assert result.results_csv is not None
    assert result.results_csv.splitlines()[0].endswith(",settings,distill_weight")


def test_figure_2_compares_clients(tmp_path: Path) -> None:
    order = make(tmp_path, "figure2", '["fedavg"]')
    file = tmp_path / "figure2-banks.toml"
    file.write_text(file.read_text().replace('["gcn"]', '["mlp", "gcn"]'))
    result = PARTS["figure2"](order)
    assert len([line for line in result.lines if "client" in line.labels]) == 8
    assert result.findings == []  # these are not the paper's clients
    assert result.pictures["figure2.png"].startswith(b"\x89PNG")


def test_cost_is_bytes_and_time_per_client_and_round(tmp_path: Path) -> None:
    methods = '["fedavg", { name = "D = 8", algorithm = "fedspray", set = { proxy_dim = 8 } }]'
    result = PARTS["cost"](make(tmp_path, "cost", methods))
    kilobytes = {(x.labels["algorithm"], x.quantity): x.ours for x in result.lines}
    gnn = 32 * 64 + 64 + 64 * 2 + 2  # F = 32, hidden 64, C = 2
    assert kilobytes["fedavg", "kB up"] == pytest.approx(4 * (gnn + 1) / 1000)  # and the training nodes
    assert kilobytes["fedavg", "kB down"] == pytest.approx(4 * gnn / 1000)
    encoder = 32 * 8 + 8 + 2 * (8 * 2 + 2)
    assert kilobytes["fedspray", "kB down"] == pytest.approx(4 * (encoder + 2 * 8) / 1000)
    assert kilobytes["fedspray", "kB up"] == pytest.approx(4 * (encoder + 2 * 8 + 2 + 1) / 1000)
    assert result.findings == []  # these are not the paper's clients
    assert PARTS["cost"](make(tmp_path, "cost", methods, quick=True, access=Theirs([]))).findings == []
    theirs = PARTS["cost"](make(tmp_path, "cost", methods, access=Theirs([])))
    assert [sentence.partition(" times")[0] for sentence in theirs.findings] == ["banks, D = 8: 0.14"]
    next((tmp_path / "cells").glob("*fedavg*seed1*.json")).unlink()
    assert PARTS["cost"](make(tmp_path, "cost", methods, run=False, access=Theirs([]))).findings == []


@pytest.mark.slow
def test_proposition_1_has_three_federations_and_a_picture(tmp_path: Path) -> None:
    result = PARTS["proposition1"](make(tmp_path, "table2", quick=True))
    assert len(result.lines) == 9
    assert {line.status for line in result.lines} == {"quick"}
    assert result.lines[1].published == pytest.approx(1.9)
    assert result.pictures["proposition1.png"].startswith(b"\x89PNG")
    assert ["does not agree" in sentence for sentence in result.findings[:3]] == [False, False, True]


def test_a_part_without_studies_is_refused(tmp_path: Path) -> None:
    order = make(tmp_path, "table2")
    with pytest.raises(InputError, match="table3"):
        PARTS["table3"](order)
