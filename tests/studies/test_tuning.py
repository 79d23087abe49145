from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedspray.errors import InputError
from fedspray.studies.cells import Cell
from fedspray.studies.results import CellResult
from fedspray.studies.study import Study
from fedspray.studies.tuning import Search, chosen_toml, criterion_score, grid_points, tune_rows


def outcome(cell: Cell, overall: float, minority: float, failures: int = 0) -> Cell:
    val = {"overall": overall, "minority": minority, "balanced": 0.5, "loss": 1.0}
    metrics = {"val": val, "best_round": 1, "failures": failures}
    return replace(cell, result=CellResult({"seed": cell.seed, "metrics": metrics}))


def test_grid_points_are_all_combinations() -> None:
    assert grid_points({"a": [1, 2], "b": [3, 4]}) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]


def test_a_larger_grid_is_thinned_out_always_the_same_way() -> None:
    plan = Search(trials=3, grid={"fedspray": {"lr": [1, 2, 3, 4, 5, 6]}})
    points = plan.points("fedspray")
    assert len(points) == 3
    assert points == plan.points("fedspray")
    assert points == sorted(points, key=lambda point: float(point["lr"]))
    assert len(Search(trials=2, shared={"lr": [1, 2, 3, 4]}).shared_points()) == 2


def test_scores() -> None:
    validation = {"overall": 0.9, "minority": 0.5, "balanced": 0.6, "loss": 0.3}
    assert criterion_score("mean", validation) == pytest.approx(0.7)
    assert criterion_score("loss", validation) == -0.3
    assert criterion_score("minority", validation) == 0.5
    assert criterion_score("mean", {**validation, "minority": None}) == 0.9
    assert criterion_score("mean", dict.fromkeys(validation)) is None


def test_shared_settings_are_the_best_on_average_and_then_each_method_has_its_own() -> None:
    plan = Study.from_values(
        {
            "compare": {
                "algorithms": ["fedavg", "fedspray"],
                "seeds": 2,
                "tune": {
                    "seeds": [7, 8],
                    "rounds": 20,
                    "untuned": ["fedavg"],
                    "shared": {"lr": [0.1, 0.2, 0.3]},
                    "grid": {"fedspray": {"distill_weight": [1, 2]}},
                },
            }
        },
        "x",
    )
    asked: list[Cell] = []
    # fedavg likes 0.1 best, fedspray 0.3; the mean of both is largest at 0.2.
    likes = {"fedavg": {0.1: 0.9, 0.2: 0.8, 0.3: 0.1}, "fedspray": {0.1: 0.1, 0.2: 0.8, 0.3: 0.85}}

    def answer(title: str, cells: Sequence[Cell]) -> list[Cell]:
        asked.extend(cells)
        return [
            outcome(c, likes[c.method][c.settings["lr"]], 0.5 + 0.01 * c.settings.get("distill_weight", 0))
            for c in cells
        ]

    assert plan.search is not None
    rows, records = tune_rows(plan.rows(), plan.search, answer)
    assert all(cell.validation_only and cell.seed in (7, 8) for cell in asked)
    assert {cell.settings["rounds"] for cell in asked} == {20}
    assert {row.settings["rounds"] for row in rows} == {300}
    assert [row.settings["lr"] for row in rows] == [0.2, 0.2]
    assert rows[1].settings["distill_weight"] == 2.0
    shared, own = records
    assert (shared["methods"], shared["chosen"], shared["num_trials"]) == (["fedavg", "fedspray"], {"lr": 0.2}, 3)
    assert (own["methods"], own["chosen"], own["num_trials"]) == (["fedspray"], {"distill_weight": 2.0}, 2)
    assert [trial["values"] for trial in own["trials"]] == [{"distill_weight": 1.0}, {"distill_weight": 2.0}]
    # (0.8 + 0.52) / 2, the same for both seeds
    assert own["trials"][1]["score"] == pytest.approx(0.66)
    assert len(own["trials"][1]["runs"]) == 2
    assert _keys(records) & {"test", "auc", "clients", "by_homophily"} == set()


def test_a_trial_that_failed_is_not_chosen() -> None:
    plan = Study.from_values({"compare": {"tune": {"grid": {"fedspray2": {"distill_weight": [1, 2]}}}}}, "x")

    def answer(title: str, cells: Sequence[Cell]) -> list[Cell]:
        return [outcome(cells[0], 0.1, 0.1), replace(cells[1], failure="no client trained")]

    assert plan.search is not None
    (row,), (record,) = tune_rows(plan.rows(), plan.search, answer)
    assert row.settings["distill_weight"] == 1.0
    assert record["trials"][1]["score"] is None
    assert record["trials"][1]["runs"][0]["failure"] == "no client trained"


def _keys(content: Any) -> set[str]:
    if isinstance(content, dict):
        return set(content) | set().union(*map(_keys, content.values()))
    return set().union(*map(_keys, content)) if isinstance(content, list) else set()


def searching(tune: dict[str, Any], algorithms: Sequence[str] = ("fedspray",)) -> Study:
    return Study.from_values({"compare": {"algorithms": list(algorithms), "tune": tune}}, "x")


def test_a_trial_in_which_a_client_failed_has_no_score() -> None:
    """Its figures lack the nodes of that client, and the hardest client fails first."""
    plan = searching({"grid": {"fedspray": {"lr": [0.1, 0.2]}}})
    assert plan.search is not None

    def answer(title: str, cells: Sequence[Cell]) -> list[Cell]:
        return [outcome(c, 0.9 if c.settings["lr"] == 0.2 else 0.5, 0.5, int(c.settings["lr"] == 0.2)) for c in cells]

    _, (record,) = tune_rows(plan.rows(), plan.search, answer)
    assert record["chosen"] == {"lr": 0.1}
    assert [trial["runs"][0]["client_failures"] for trial in record["trials"]] == [0, 1]


def test_a_point_is_tried_once() -> None:
    plan = searching({"grid": {"fedspray": {"lr": [0.1, "0.10", 0.2]}}})
    assert plan.search is not None
    with pytest.raises(InputError, match=r"fedspray, gcn: lr = 0.1 is tried twice"):
        tune_rows(plan.rows(), plan.search, lambda title, cells: pytest.fail("a cell was run"))


def test_what_one_method_chose_alone_and_with_others_is_one_table() -> None:
    plan = searching({"shared": {"lr": [0.1, 0.2]}, "grid": {"fedspray": {"distill_weight": [1, 2]}}})
    assert plan.search is not None
    _, records = tune_rows(plan.rows(), plan.search, lambda title, cells: [outcome(c, 0.5, 0.5) for c in cells])
    chosen = tomllib.loads(chosen_toml(records))["compare"]["set"]
    assert chosen == {"banks/gcn/fedspray": {"lr": 0.1, "distill_weight": 1.0}}


def test_a_setting_is_searched_or_set_by_a_flag() -> None:
    values = {"compare": {"algorithms": ["fedavg", "fedspray"], "tune": {"grid": {"fedspray": {"lr": [0.1, 0.2]}}}}}
    values["compare"]["tune"]["untuned"] = ["fedavg"]  # type: ignore[index]
    Study.from_values(values, "x", {"fedavg": {"lr": "0.3"}})
    for owner in ("", "fedspray", "gcn"):
        with pytest.raises(InputError, match="fedspray: do only"):
            Study.from_values(values, "x", {owner: {"lr": "0.3"}})
