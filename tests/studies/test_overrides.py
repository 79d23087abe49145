"""What flags change about the file of a study."""

from __future__ import annotations

from typing import Any

import pytest

from fedspray.errors import InputError
from fedspray.studies.overrides import with_flags
from fedspray.studies.study import Study

FILE: dict[str, Any] = {
    "dataset": "pubmed",
    "partition_dir": "partitions/PubMed",
    "compare": {
        "algorithms": ["local", "fedavg", {"name": "strong", "algorithm": "fedspray", "set": {"distill_weight": 5}}],
        "reference": "strong",
        "set": {"pubmed/strong": {"lr": 0.5}, "fedavg": {"lr": 0.1}},
        "tune": {"untuned": ["local", "fedavg"], "grid": {"strong": {"confidence": [0.5, 0.7]}}},
    },
}


def changed(lists: dict[str, Any], flags: dict[str, Any] | None = None, file: dict[str, Any] = FILE) -> Study:
    return Study.from_values(with_flags(file, lists, flags or {}, "x.toml"), "x.toml")


def test_a_reference_and_rules_go_with_a_method_that_is_left_out() -> None:
    plan = changed({"algorithms": ["local", "fedavg"]})
    assert plan.reference == "local"
    assert [owners for owners, _ in plan.rules] == [("fedavg",)]
    assert plan.search is not None
    assert plan.search.grid == {}
    assert changed({"algorithms": ["strong"]}).reference == "strong"


def test_rules_for_the_data_set_of_the_file_go_with_it() -> None:
    plan = changed({"datasets": ["physics"]}, {"partition_dir": "partitions/Physics"})
    assert list(plan.datasets) == ["physics"]
    assert plan.datasets["physics"].own["partition_dir"] == "partitions/Physics"
    assert [owners for owners, _ in plan.rules] == [("strong",), ("fedavg",)]


def test_node_lists_of_one_graph_do_not_cut_another() -> None:
    sentence = (
        r"x.toml: partition_dir is 'partitions/PubMed', node lists of pubmed, but --dataset is physics: "
        r"pass its own with --partition-dir"
    )
    with pytest.raises(InputError, match=sentence):
        changed({"datasets": ["physics"]})
    changed({"datasets": ["pubmed"]})


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("reference", {"a": 1}, "unknown reference"),
        ("reference", ["local"], "unknown reference"),
        ("tune", {"untuned": [["local"]]}, r"untuned is \[\['local'\]\]"),
        ("datasets", 3, "--dataset is banks"),
    ],
)
def test_values_of_other_kinds_are_refused_with_flags_too(key: str, value: Any, sentence: str) -> None:
    file = {**FILE, "compare": {**FILE["compare"], key: value}}
    with pytest.raises(InputError, match=sentence):
        changed({"algorithms": ["fedavg"], "datasets": ["pubmed" if key != "datasets" else "banks"]}, file=file)


def test_files_have_the_name_of_their_stem() -> None:
    file = {"compare": {"datasets": ["data/g.npz", "banks"], "set": {"g": {"lr": 0.1}, "banks": {"lr": 0.2}}}}
    assert [owners for owners, _ in changed({"datasets": ["banks"]}, file=file).rules] == [("banks",)]
    for name in ("g", "data/g.npz"):
        chosen = with_flags(file, {"datasets": [name]}, {}, "x")["compare"]
        assert (chosen["datasets"], chosen["set"]) == (["data/g.npz"], {"g": {"lr": 0.1}})


def test_flags_about_data_are_stronger_than_entries() -> None:
    file = {"compare": {"datasets": ["banks", {"name": "big", "dataset": "banks", "nodes": 4000, "clients": 8}]}}
    plan = changed({}, {"nodes": 500}, file)
    assert [(d.own["nodes"], d.clients) for d in plan.datasets.values()] == [(500, None), (500, 8)]


def test_a_method_with_a_preset_and_no_algorithm_is_the_papers() -> None:
    named = {"name": "as published", "preset": "paper"}
    (method,) = changed({}, file={"compare": {"algorithms": [named]}}).methods.values()
    assert method.algorithm == "fedspray"
    with pytest.raises(InputError, match="apfl 'paper'"):
        changed({}, file={"algorithm": "apfl", "compare": {"algorithms": [named]}})


def test_a_name_that_is_another_algorithms_is_refused() -> None:
    with pytest.raises(InputError, match="'apfl' runs 'fedspray'"):
        changed({}, file={"compare": {"algorithms": [{"name": "apfl", "preset": "published"}]}})
