from __future__ import annotations

from typing import Any

import pytest

from fedspray.errors import InputError
from fedspray.studies.study import Study
from fedspray.studies.sweep import sweep_rows


def plan(compare: dict[str, Any], **values: Any) -> Study:
    return Study.from_values({**values, "compare": compare}, "plan.toml")


def test_rows_are_every_data_set_backbone_and_method() -> None:
    found = plan({"datasets": ["banks", "pubmed"], "algorithms": ["local", "fedspray"], "backbones": ["gcn", "mlp"]})
    rows = [(row.dataset, row.backbone, row.method) for row in found.rows()]
    assert rows == [(d, b, m) for d in ("banks", "pubmed") for b in ("gcn", "mlp") for m in ("local", "fedspray")]
    assert found.reference == "fedspray"


def test_an_experiment_without_lists_is_a_plan_of_one_row() -> None:
    (row,) = plan({}, dataset="banks", nodes=300, algorithm="fedavg", seeds=3, set={"lr": 0.02}).rows()
    assert (row.dataset, row.method, row.data.own["nodes"]) == ("banks", "fedavg", 300)
    assert row.settings["lr"] == 0.02
    assert plan({}, seeds=3).seeds == (0, 1, 2)
    assert plan({"seeds": [4, 9]}).seeds == (4, 9)


def test_settings_belong_to_their_owners_and_the_more_specific_win() -> None:
    compare = {
        "algorithms": ["fedavg", "fedspray", {"name": "weak", "algorithm": "fedspray", "set": {"distill_weight": 0}}],
        "backbones": ["gcn", "sage"],
        "set": {"sage/banks": {"lr": 0.03}, "sage": {"lr": 0.02}, "fedspray": {"distill_weight": 7}},
    }
    rows = {(row.method, row.backbone): row.settings for row in plan(compare, set={"lr": 0.01}).rows()}
    assert rows["fedavg", "gcn"]["lr"] == 0.01
    assert rows["fedavg", "sage"]["lr"] == 0.03
    assert rows["fedspray", "gcn"]["distill_weight"] == 7
    assert rows["weak", "gcn"]["distill_weight"] == 0
    stronger = Study.from_values({"compare": compare}, "x", {"": {"lr": "0.5"}, "gcn": {"lr": "0.6"}})
    assert [row.settings["lr"] for row in stronger.rows()] == [0.6] * 3 + [0.5] * 3


def test_data_sets_have_their_own_keys() -> None:
    found = plan({"datasets": ["banks", {"name": "large", "dataset": "banks", "nodes": 900}]}, nodes=300)
    assert [(row.dataset, row.data.own["nodes"]) for row in found.rows()] == [("banks", 300), ("large", 900)]


def test_names_may_have_a_slash_if_they_stay_clear() -> None:
    methods = [{"name": "w/o proxies", "algorithm": "fedspray"}, "fedspray"]
    rules = {"banks/gcn/w/o proxies": {"lr": 0.5}, "w/o proxies / banks": {"hidden": 16}}
    first, second = (row.settings for row in plan({"algorithms": methods, "set": rules}).rows())
    assert (first["lr"], first["hidden"]) == (0.5, 16)
    assert (second["lr"], second["hidden"]) == (0.003, 64)


@pytest.mark.parametrize(
    ("compare", "sentence"),
    [
        (
            {"algorithms": [{"name": "fedavg/sage", "algorithm": "fedspray"}, "fedavg"], "backbones": ["gcn", "sage"]},
            "'fedavg/sage' names two things of this comparison",
        ),
        (
            {"algorithms": [{"algorithm": "scaffold", "set": {"lr": 5}}]},
            "scaffold ignores lr: it uses none of adam_eps, lr, reset_optimizer",
        ),
        ({"algorithms": ["scaffold"], "set": {"scaffold": {"lr": 5}}}, "scaffold ignores lr"),
        ({"algorithms": [{"name": "x\ny", "algorithm": "fedavg"}]}, "the name 'x\\ny' must not be empty or have line"),
        (
            {"algorithm": ["local"]},
            "plan.toml: [compare]: unknown key 'algorithm'",
        ),
        ({"algorithms": []}, "plan.toml: algorithms is []"),
        ({"algorithms": ["fedsprai"]}, "fedsprai, gcn: unknown algorithm 'fedsprai'"),
        ({"algorithms": ["local"], "reference": "x"}, "unknown reference 'x'"),
        ({"set": {"sage": {"lr": 1}}}, "unknown data set, method or backbone of this comparison 'sage'"),
        ({"seeds": [1, 1]}, "plan.toml: seeds names 1 twice"),
        ({"seeds": 0}, "plan.toml: seeds is 0"),
        ({"datasets": ["banks", "banks"]}, "plan.toml: two data sets are called 'banks'"),
        ({"algorithms": ["local", "local"]}, "plan.toml: two methods are called 'local'"),
        (
            {"algorithms": ["fedavg", "fedspray"], "set": {"fedavg": {"distill_weight": 1}}},
            "fedavg, gcn: unknown setting 'distill_weight'",
        ),
        ({"tune": {"seeds": [0]}}, "the tuning seed 0 is also reported"),
        ({"tune": {"criterion": "test"}}, "unknown criterion 'test'"),
        (
            {
                "algorithms": ["fedavg", "fedspray"],
                "tune": {"grid": {"fedspray": {"distill_weight": [1, 2]}, "fedavg": {"lr": [1]}}},
            },
            "every method must get the same number of trials",
        ),
        (
            {"algorithms": ["fedavg", "fedspray"], "tune": {"grid": {"fedspray": {"distill_weight": [1, 2]}}}},
            "every method must get the same number of trials",
        ),
        ({"tune": {"grid": 3}}, "plan.toml: [compare.tune.grid] is 3"),
        ({"tune": {"untuned": 3}}, "plan.toml: untuned is 3"),
        ({"tune": {"untuned": "fedspray"}}, "plan.toml: untuned is 'fedspray'"),
        ({"tune": {"criterion": ["mean"]}}, "unknown criterion \"['mean']\": choose one of"),
        ({"tune": {"trials": True}}, "trials is True"),
        (
            {"algorithms": [{"algorithm": "local", "preset": 3}]},
            "plan.toml: preset of local is 3",
        ),
        ({"tune": {"grid": {"fedspray2": {"lr": 0.1}}}}, "plan.toml: [compare.tune.grid.fedspray2]: lr is 0.1"),
    ],
)
def test_bad_plans_get_one_sentence(compare: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(compare)
    assert str(caught.value).startswith(sentence)


def test_a_sweep_is_every_row_with_every_value() -> None:
    rows = sweep_rows(plan({"backbones": ["gcn", "mlp"]}), "distill_weight", ["0", "2.5"])
    assert [(value, row.backbone) for value, row in rows] == [(0.0, "gcn"), (0.0, "mlp"), (2.5, "gcn"), (2.5, "mlp")]
    assert [row.settings["distill_weight"] for _, row in rows] == [0.0, 0.0, 2.5, 2.5]
    assert [row.data.own["nodes"] for _, row in sweep_rows(plan({}), "nodes", ["300", "600"])] == [300, 600]
    assert [row.settings["rounds"] for _, row in sweep_rows(plan({}, rounds=9), "rounds", [3, 4])] == [3, 4]


@pytest.mark.parametrize(
    ("setting", "values", "sentence"),
    [
        ("distill_weight", ["1"], "distill_weight has 1 value(s)"),
        (
            "distil_weight",
            ["1", "2"],
            "fedspray2, gcn: unknown setting 'distil_weight'",
        ),
        ("distill_weight", ["1", "much"], "fedspray2, gcn: distill_weight is 'much'"),
        ("partitioner", ["louvain", "metis"], "partitioner cannot be swept"),
        ("lr", ["0.01", "0.010"], "lr has the value 0.01 twice"),
    ],
)
def test_bad_sweeps_get_one_sentence(setting: str, values: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        sweep_rows(plan({}), setting, values)
    assert str(caught.value).startswith(sentence)


def test_what_a_flag_decides_is_not_swept() -> None:
    fixed = Study.from_values({}, "x", {"": {"lr": "0.3"}})
    with pytest.raises(InputError, match="varied: do only"):
        sweep_rows(fixed, "lr", ["0.01", "0.1"])


def test_settings_that_mean_nothing_to_a_method_are_not_swept() -> None:
    with pytest.raises(InputError, match="adam_eps, lr"):
        sweep_rows(plan({"algorithms": ["scaffold"]}), "lr", ["0.01", "0.1"])


def test_what_is_set_for_a_backbone_may_mean_nothing_to_one_of_its_methods() -> None:
    compare = {"algorithms": ["fedavg", "scaffold"], "backbones": ["gcn", "sgc"], "set": {"sgc": {"lr": 0.05}}}
    rows = Study.from_values({"compare": compare}, "x").rows()
    assert [row.run.values.get("lr") for row in rows] == [None, None, 0.05, 0.05]
    with pytest.raises(InputError, match="scaffold ignores lr"):
        Study.from_values({"compare": {**compare, "set": {"sgc/scaffold": {"lr": 0.05}}}}, "x")
