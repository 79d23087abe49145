from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedspray.studies.cells import Cell, Row
from fedspray.studies.comparison import summarise
from fedspray.studies.results import CellResult
from fedspray.studies.study import Study

NAMES = ("overall_client_mean", "minority_client_mean", "macro_f1", "auc", "best_round")
COSTS = {"bytes_up": 2_000_000, "bytes_down": 4_000_000, "seconds": 2.0, "cpu_seconds": 3.0}


def result(seed: int, overall: float, minority: float, client: float) -> CellResult:
    clients = {
        "a": {"overall": overall + client, "minority": minority + client},
        "b": {"overall": overall - client, "minority": None},
    }
    metrics = {"overall": overall, "minority": minority, "clients": clients, **dict.fromkeys(NAMES, 0.5), **COSTS}
    metrics["failures"] = 0
    return CellResult({"seed": seed, "metrics": metrics})


def entry(row: Row, figures: list[tuple[float, float]], client: float = 0.0, failed: int = 0) -> Row:
    cells = row.with_seeds(range(len(figures) + failed)).cells()
    done = [
        replace(c, path=Path(f"{c.seed}.json"), result=result(c.seed, *f, client))
        for c, f in zip(cells, figures, strict=False)
    ]
    return replace(row, ended=(*done, *(replace(c, failure="no") for c in cells[len(figures) :])))


def three_rows() -> list[Row]:
    return Study.from_values({"compare": {"algorithms": ["local", "fedavg", "fedspray"]}}, "x").rows()


def find(rows: list[dict[str, Any]], **where: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row[key] == value for key, value in where.items())]
    return row


def test_figures_and_tests_by_hand() -> None:
    local, fedavg, fedspray = three_rows()
    ours = [(0.80, 0.50), (0.82, 0.52), (0.81, 0.55), (0.79, 0.50), (0.83, 0.53)]
    local_gains = [-0.01, -0.02, -0.03, -0.04, -0.05]
    fedavg_gains = [0.02, -0.01, 0.03, 0.0, 0.01]
    entries = [
        entry(local, [(o + g, m) for (o, m), g in zip(ours, local_gains, strict=True)]),
        entry(fedavg, [(o + g, m - 0.1) for (o, m), g in zip(ours, fedavg_gains, strict=True)], client=0.3),
        entry(fedspray, ours, failed=1),
    ]
    summary = summarise(entries, "fedspray", draws=0)
    row = find(summary["rows"], method="fedspray")
    assert row["overall"]["mean"] == pytest.approx(0.81)
    assert row["overall"]["std"] == pytest.approx(0.0158114, abs=1e-6)  # √(0.001 / 4)
    assert row["seeds"] == [0, 1, 2, 3, 4]
    assert (row["bytes_up"], row["cpu_seconds"]) == (2_000_000, 3.0)

    test = find(summary["tests"], method="local", metric="overall")
    other = find(summary["tests"], method="fedavg", metric="overall")
    assert test["difference"] == pytest.approx(-0.03)
    assert test["t_p"] == pytest.approx(stats.ttest_1samp(local_gains, 0).pvalue)
    assert other["t_p"] == pytest.approx(stats.ttest_1samp(fedavg_gains, 0).pvalue)
    assert test["t_p"] < other["t_p"]
    assert test["t_p_holm"] == pytest.approx(2 * test["t_p"])
    assert other["t_p_holm"] == pytest.approx(other["t_p"])
    assert (test["wilcoxon_p"], test["pairs"], test["low"]) == (None, 5, None)
    assert find(summary["tests"], method="local", metric="minority")["t_p"] == 1.0

    tally = find(summary["win_tie_loss"], method="fedavg", metric="overall")
    assert tally["clients"] == {"win": 1, "tie": 0, "loss": 1}  # client a gains 0.3, client b loses it
    assert tally["tables"] == {"win": 1, "tie": 0, "loss": 0}  # 0.01 on average
    tally = find(summary["win_tie_loss"], method="local", metric="minority")
    assert tally["clients"] == {"win": 0, "tie": 1, "loss": 0}  # client b has no minority node
    (failure,) = summary["failures"]
    assert (failure["method"], failure["seed"], failure["reason"]) == ("fedspray", 5, "no")


def test_only_seeds_that_both_have_are_paired() -> None:
    local, _, fedspray = three_rows()
    entries = [entry(local, [(0.5, 0.5)] * 3), entry(fedspray, [(0.6, 0.5)] * 2)]
    summary = summarise(entries, "fedspray", draws=0)
    test = find(summary["tests"], metric="overall")
    assert (test["pairs"], test["t_p"]) == (2, None)
    assert test["difference"] == pytest.approx(-0.1)


def test_a_reference_without_a_finished_cell_leaves_the_figures() -> None:
    local, _, fedspray = three_rows()
    summary = summarise([entry(local, [(0.5, 0.4)]), entry(fedspray, [], failed=1)], "fedspray", draws=100)
    assert summary["tests"] == []
    assert find(summary["rows"], method="fedspray")["overall"] == {"mean": None, "std": None, "values": []}
    assert find(summary["rows"], method="local")["overall"]["mean"] == 0.5


def test_cells_are_named() -> None:
    cell: Cell = three_rows()[0].with_values({"lr": 0.1}).with_seeds([4]).cells()[0]
    assert str(cell) == "banks, local, gcn, lr=0.1, seed 4"


def test_seeds_in_which_a_client_is_missing_are_not_compared() -> None:
    """Without its hardest client a method would look better than one that has all of them."""
    local, fedavg, fedspray = three_rows()
    entries = [entry(local, [(0.8, 0.5)]), entry(fedavg, [(0.9, 0.6)] * 2), entry(fedspray, [(0.8, 0.5)] * 2)]
    lacking = entries[1].results[1].metrics
    del lacking["clients"]["b"]
    lacking["failures"] = 7
    summary = summarise(entries, "fedspray", draws=0)
    assert find(summary["tests"], method="fedavg", metric="overall")["pairs"] == 1
    assert [row["client_failures"] for row in summary["rows"]] == [0, 7, 0]
