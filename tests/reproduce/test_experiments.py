"""The studies in `experiments` and the published figures fit together."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedspray import datasets
from fedspray.experiment import Experiment
from fedspray.studies.cells import Row
from fedspray.studies.study import Study
from reproduction.published import read_rows, results
from reproduction.sota import TUNED
from reproduction.trained import experiments_folder

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*.toml"))
PROTOCOL = [file for file in FILES if file.name.startswith("sota-")]
UNSEEN = [file for file in FILES if file.name.startswith("unseen-")]
SEVERAL = [file for file in FILES if "sota-" in file.name or file in UNSEEN]
"""Studies on more than one data set."""
TRAINED = ("figure2", "table2", "figure-lambda", "figure-dim", "table3", "table5", "noise", "gat", "auc")


@cache
def plan_of(file: Path) -> Study:
    return Study.from_values(Experiment.read_values(file), file.name)


@cache
def rows_of(file: Path) -> list[Row]:
    return plan_of(file).rows()


def test_the_command_takes_these_files() -> None:
    assert experiments_folder() == ROOT / "experiments"


@pytest.mark.parametrize("file", [file for file in FILES if file not in SEVERAL], ids=lambda file: file.stem)
def test_every_study_is_a_plan_on_the_data_set_of_its_name(file: Path) -> None:
    plan = plan_of(file)
    (dataset,) = plan.datasets
    assert file.stem.endswith(f"-{dataset}")
    assert dataset in datasets.names()
    assert plan.datasets[dataset].own["partition_dir"] == f"partitions/{read_folder(dataset)}"


def test_unseen_data_are_none_that_settings_were_chosen_on() -> None:
    found = [name for file in UNSEEN for name in plan_of(file).datasets]
    assert len(found) == len(set(found)) == 7
    assert set(found) <= set(datasets.names()) - {"pubmed", "physics"}


@pytest.mark.parametrize("file", PROTOCOL, ids=lambda file: file.stem)
def test_fed_pubs_protocol(file: Path) -> None:
    """METIS, 20/40/40 on the whole graph, both steps of preparation; 100 rounds of two epochs, 128 hidden units."""
    plan, clients = plan_of(file), int(file.stem.split("-")[-1])
    trained = {name: {row.settings[name] for row in plan.rows()} for name in ("rounds", "local_epochs", "hidden")}
    assert trained == {"rounds": {100}, "local_epochs": {2}, "hidden": {128}}
    assert {row.settings["lr"] for row in plan.rows()} <= {0.01, 0.03, 0.1}
    assert {row.settings["init"] for row in plan.rows()} == {"glorot"}
    for name, data in plan.datasets.items():
        if "published" in file.stem:
            assert data.dataset == f"topfgl/{read_folder(name)}/{clients}"
            assert plan.base.run.keep_split
        else:
            assert (data.dataset, data.partitioner, data.clients) == (name, "metis", clients)
            assert (data.split, data.split_scope) == ("20/40/40", "graph")
            assert data.prepare == "largest-component,normalise-rows"
            assert not plan.base.run.keep_split


def test_ten_and_twenty_clients_train_alike() -> None:
    studies = [tomllib.loads(file.read_text()) for file in PROTOCOL]
    assert len(studies) == 4
    for ten in [file for file in PROTOCOL if file.stem.endswith("-10")]:
        sizes, same = (
            {(row.dataset, row.method): row.settings["lr"] for row in rows_of(file) if row.method != TUNED}
            for file in (ten, ten.with_stem(ten.stem.replace("-10", "-20")))
        )
        assert sizes == same
    for key in ("rounds", "local_epochs", "seeds", "set"):
        assert all(study[key] == studies[0][key] for study in studies), key
    methods = [[each for each in study["compare"]["algorithms"] if "name" not in each] for study in studies]
    assert all(each == methods[0] for each in methods)


def read_folder(dataset: str) -> str:
    written = {"pubmed": "PubMed", "wikics": "WikiCS", "citeseer": "CiteSeer"}
    return written.get(dataset, dataset.capitalize())


@pytest.mark.parametrize("part", TRAINED)
def test_every_published_row_has_a_study(part: str) -> None:
    rows = [row for file in FILES if file.name.startswith(f"{part}-") for row in rows_of(file)]
    for published in results(part):
        fits = [
            row
            for row in rows
            if (row.dataset, row.run.algorithm, row.backbone)
            == (published.dataset, published.algorithm, published.backbone)
            and all(row.settings[name] == value for name, value in published.settings.items())
        ]
        assert len(fits) == 1, published


@pytest.mark.parametrize("part", TRAINED)
def test_reported_rows_are_the_papers_in_length(part: str) -> None:
    for file in FILES:
        if file.name.startswith(f"{part}-"):
            plan = plan_of(file)
            assert plan.seeds == (0, 1, 2, 3, 4)
            assert {row.settings["rounds"] for row in plan.rows()} == {300}


@pytest.mark.parametrize("dataset", ["pubmed", "physics", "wikics", "flickr"])
def test_table_2_shares_step_size_decay_and_start_per_backbone(dataset: str) -> None:
    rows = rows_of(ROOT / "experiments" / f"table2-{dataset}.toml")
    assert len(rows) == 24
    for backbone in ("gcn", "sgc", "sage"):
        for name in ("lr", "weight_decay", "init", "hidden", "local_epochs"):
            assert len({row.settings[name] for row in rows if row.backbone == backbone}) == 1, name


@pytest.mark.parametrize(
    ("part", "about"),
    [
        ("figure2", None),
        ("figure-lambda", "distill_weight"),
        ("figure-dim", "proxy_dim"),
        ("table3", "use_proxies"),
        ("table5", "local_epochs"),
        ("noise", "proxy_noise"),
        ("auc", None),
    ],
)
def test_other_parts_have_the_settings_of_table_2(part: str, about: str | None) -> None:
    """But for what they are about: whoever changes a setting of a row of Table 2 changes it there too."""
    for file in FILES:
        if not file.name.startswith(f"{part}-"):
            continue
        for row in rows_of(file):
            name = "fedspray" if row.run.algorithm == "fedspray-no-proxies" else row.run.algorithm
            table = rows_of(ROOT / "experiments" / f"table2-{row.dataset}.toml")
            same = [r for r in table if (r.method, r.backbone) == (name, row.backbone)]
            for reported in same:
                pairs = {k: (v, reported.settings[k]) for k, v in row.settings.items() if k != about}
                assert {k: pair for k, pair in pairs.items() if pair[0] != pair[1]} == {}, file.name


@pytest.mark.parametrize("dataset", ["pubmed", "physics", "wikics", "flickr"])
def test_searches_are_fair_and_on_other_seeds(dataset: str) -> None:
    search = plan_of(ROOT / "experiments" / f"tune-{dataset}.toml").search
    assert search is not None
    assert min(search.seeds) >= 100
    assert {len(search.points(method)) for method in search.grid} == {3}
    defaults = {row.method: row.settings for row in rows_of(ROOT / "experiments" / f"tune-{dataset}.toml")}
    for method in search.grid:  # on a tie the first point wins
        assert all(defaults[method][name] == value for name, value in search.points(method)[0].items())
    shared = tomllib.loads((ROOT / "experiments" / f"tune-{dataset}.toml").read_text())["compare"]["set"]
    reported = tomllib.loads((ROOT / "experiments" / f"table2-{dataset}.toml").read_text())["compare"]["set"]
    assert shared["sgc"] == reported["sgc"]


def unapplied(search: dict[str, Any], rows: list[Row]) -> list[str]:
    """What a search chose but the rows do not have."""
    everyone = len(search["methods"]) > 1  # shared settings are for all methods
    places = (search["dataset"], search["backbone"])
    fits = [r for r in rows if (r.dataset, r.backbone) == places and (everyone or r.method in search["methods"])]
    return [
        f"{row.method}, {row.backbone}: {name} is {row.settings[name]!r}, chosen was {value!r}"
        for row in fits
        for name, value in search["chosen"].items()
        if row.settings[name] != value
    ]


def test_what_a_search_chose_is_in_the_study_that_reports_it() -> None:
    for file in sorted((ROOT / "results").glob("tune-*/search.json")):
        name = file.parent.name.removeprefix("tune-")
        for search in json.loads(file.read_text())["searches"]:
            if name.startswith("sota-lr-"):
                study = name.replace("lr-", "")
            elif name.startswith("sota-"):
                study, search["methods"] = name, [TUNED]
            elif name.startswith("options-"):
                study = name
            else:
                study = f"table2-{search['dataset']}"
            assert unapplied(search, rows_of(ROOT / "experiments" / f"{study}.toml")) == []


def test_a_choice_that_was_not_applied_is_noticed() -> None:
    rows = rows_of(ROOT / "experiments" / "table2-pubmed.toml")
    search = {"dataset": "pubmed", "backbone": "gcn", "methods": ["fedspray"], "chosen": {"distill_weight": 77.0}}
    assert [text.split(",")[0] for text in unapplied(search, rows)] == ["fedspray"]
    shared = {"dataset": "pubmed", "backbone": "sgc", "methods": ["local", "fedavg"], "chosen": {"lr": 77.0}}
    assert len(unapplied(shared, rows)) == 8


def test_published_files_have_the_paper_in_full() -> None:
    assert len(results("table2")) == 4 * 7 * 3 * 2
    assert {row.std is not None for row in results("table2")} == {True}
    assert len(read_rows("table1")) == 7
    assert [row["dataset"] for row in read_rows("table4")] == ["pubmed", "wikics", "physics", "flickr"]
    (fedspray,) = [
        r
        for r in results("table2")
        if (r.dataset, r.algorithm, r.backbone, r.metric) == ("pubmed", "fedspray", "gcn", "minority")
    ]
    assert (fedspray.mean, fedspray.std) == (62.12, 2.73)
