from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import ragged_federation

import fedspray
from fedspray import algorithms
from fedspray.api import run
from fedspray.errors import InputError
from fedspray.experiment import DTYPES, Experiment, RunSettings
from fedspray.knob import parse
from fedspray.runs.models import PersonalModel
from fedspray.runs.run import carry_out
from fedspray.runs.settings import check_meaning, resolve


def test_a_name_finds_its_owner() -> None:
    settings = RunSettings(values={"distill_weight": "2", "hidden": "16", "rounds": 7, "reset_optimizer": "true"})
    found = resolve(settings)
    algorithm, values = found.algorithm, found.values
    assert (values["distill_weight"], values["hidden"], values["rounds"]) == (2.0, 16, 7)
    assert values["reset_optimizer"] is True
    assert algorithm.backbone.hidden == 16


def test_presets_are_sets_of_settings_and_values_override_them() -> None:
    values = resolve(RunSettings(preset="released", values={"distill_weight": 3})).values
    assert values["init"] == "uniform01"
    assert values["node_proxy_start"] == "kept"
    assert values["rounds"] == 500
    assert values["distill_weight"] == 3.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "fedsprai"}, "unknown algorithm 'fedsprai'"),
        ({"values": {"distil_weight": 1}}, "unknown setting 'distil_weight'"),
        ({"values": {"distill_weight": "much"}}, "distill_weight is 'much'"),
        ({"values": {"distill_weight": "inf"}}, "distill_weight is 'inf'"),
        ({"values": {"lr": float("nan")}}, "lr is nan"),
        ({"values": {"hidden": 2.5}}, "hidden is 2.5"),
        ({"values": {"reset_optimizer": "maybe"}}, "reset_optimizer is 'maybe'"),
        ({"algorithm": "local", "values": {"gnn_start": "x"}}, "gnn_start is 'x'"),
        ({"algorithm": "collections:OrderedDict"}, "algorithm 'collections:OrderedDict' is not derived from Algorithm"),
        ({"preset": "papier"}, "unknown preset of fedspray 'papier'"),
    ],
)
def test_bad_settings_get_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(RunSettings(**settings))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [((), "seeds is empty"), ((0, 0), "may be given"), ((-1,), "seeds contain -1"), ((0.5,), "contain 0.5")],
)
def test_bad_seeds_are_refused(seeds: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        RunSettings(seeds=seeds)


@pytest.mark.parametrize("name", ["hidden", "dropout"])
def test_settings_that_a_backbone_ignores_change_nothing_and_are_refused(name: str) -> None:
    """SGC has no hidden layer; FedLit takes the width of its own network from the same setting."""
    value = {"hidden": 4, "dropout": 0.5}[name]
    models = [
        carry_out(ragged_federation(), RunSettings(algorithm="fedavg", backbone="sgc", values=values), None)
        .seeds[0]
        .metrics["models"]
        for values in ({"rounds": 2}, {"rounds": 2, name: value})
    ]
    assert models[0] == models[1]
    with pytest.raises(InputError, match=f"{name} is set"):
        check_meaning("fedavg", [name], "sgc")
    check_meaning("fedavg", [name], "gcn")
    check_meaning("fedlit", ["hidden"], "sgc")
    with pytest.raises(InputError, match="dropout is set"):
        check_meaning("fedlit", ["dropout"], "sgc")


@pytest.mark.parametrize("algorithm", ["scaffold", "fedlit", "fedstar"])
def test_settings_without_meaning_change_nothing_and_are_refused(algorithm: str) -> None:
    given: dict[str, Any] = {"lr": 0.5, "adam_eps": 0.1, "reset_optimizer": True, "init": "uniform01"}
    ignored = algorithms.find(algorithm).ignores
    assert ignored
    values = {name: given[name] for name in ignored}
    settings = RunSettings(algorithm=algorithm, values={"rounds": 2, "hidden": 4})
    usual = carry_out(ragged_federation(), settings, None).summary()
    with_values = replace(settings, values={**settings.values, **values})
    changed = carry_out(ragged_federation(), with_values, None).summary()
    assert changed["overall"] == usual["overall"]
    assert changed["seeds"][0]["clients"] == usual["seeds"][0]["clients"]
    for name in ignored:
        with pytest.raises(InputError, match=f"{algorithm} ignores {name}"):
            check_meaning(algorithm, [name])
        with pytest.raises(InputError, match=f"{algorithm} ignores {name}"):
            fedspray.run(ragged_federation(), algorithm=algorithm, **{name: given[name]})


def test_clients_may_choose_their_backbone_where_no_gnn_is_shared() -> None:
    federation = ragged_federation()
    settings = RunSettings(backbone="gcn", backbone_of={"client_01": "sage"}, values={"hidden": 16})
    algorithms = resolve(settings).for_clients(federation.roster)
    assert [type(algorithm.backbone).__name__ for algorithm in algorithms] == ["GCN", "SAGE", "GCN"]
    assert algorithms[1].backbone.hidden == 16


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"algorithm": "fedavg", "backbone_of": {"client_01": "sage"}},
            "fedavg averages the clients' GNNs, so all need the same backbone",
        ),
        ({"values": {"min_clients": 4}}, "min_clients is 4"),
        ({"backbone_of": {"client_9": "sage"}}, "unknown client 'client_9'"),
    ],
)
def test_backbones_of_clients_are_refused_by_name(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(RunSettings(**settings)).for_clients(ragged_federation().roster)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [("auto", "float | str", "auto"), ("0.2", "float | str", 0.2), ("none", "int | None", None), (3, "int", 3)],
)
def test_values_are_read_by_their_type(value: Any, kind: str, expected: Any) -> None:
    assert parse("x", value, kind) == expected


def test_a_setting_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the value of one of them would not be in the key of a cell, and another cell would be found."""
    (tmp_path / "twice.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedspray.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(FedAvg):\n"
        "    dropout: float = 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="setting of Mine"):
        resolve(RunSettings(algorithm="twice:Mine"))


def test_annotations_may_be_types_or_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's file need not begin with ``from __future__ import annotations``."""
    body = (
        "from dataclasses import dataclass\n"
        "from fedspray.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(FedAvg):\n"
        "    share: float = 0.5\n"
        "    limit: int | None = 3\n"
        "    levels: tuple[int, ...] = ()\n"
    )
    (tmp_path / "typed.py").write_text(body)
    (tmp_path / "texts.py").write_text(f"from __future__ import annotations\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("typed", "texts"):
        found = resolve(RunSettings(algorithm=f"{module}:Mine", values={"share": "1", "limit": "none"})).values
        assert (found["share"], found["limit"]) == (1.0, None)
        with pytest.raises(InputError, match="levels is '1 2'"):
            resolve(RunSettings(algorithm=f"{module}:Mine", values={"levels": "1 2"}))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("distil_weight", "distill_weight"),
        ("learning_rate", "lr"),
        ("Hidden-Channels", "hidden"),
        ("num_rounds", "rounds"),
        ("epochs", "local_epochs"),
        ("seed", "seeds"),
        ("model", "backbone"),
        ("algoritm", "algorithm"),
        ("cuda", None),
    ],
)
def test_an_unknown_setting_is_met_with_what_is_meant_or_with_nothing(given: str, meant: str | None) -> None:
    with pytest.raises(InputError, match=f"unknown setting '{given}'") as caught:
        resolve(RunSettings(values={given: 1}))
    _, asks, name = str(caught.value).partition("did you mean ")
    assert (bool(asks), name) == (meant is not None, f"'{meant}'?" if meant else "")


@pytest.mark.parametrize("values", [{"rounds": "5"}, {"lr": "0.1"}, {"blend": "0.3"}, {"reset_optimizer": "true"}])
def test_a_number_in_quotation_marks_is_refused_in_python(values: dict[str, Any]) -> None:
    resolve(RunSettings(values=values))  # the command line hands over texts
    with pytest.raises(InputError, match=r"is the text '.*'"):
        run(ragged_federation(), algorithm="fedspray", **values)


def test_double_precision_from_python_file_and_command_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dtype is 'banana'"):
        run(ragged_federation(), rounds=1, dtype="banana")
    with pytest.raises(InputError, match="dtype is 'banana'"):
        Experiment.from_values({"dtype": "banana"}, "file")
    assert Experiment.from_values({"dtype": "float64"}, "file").run.dtype == "float64"
    single, double = (run(ragged_federation(), rounds=2, dtype=dtype, out=tmp_path / dtype) for dtype in DTYPES)
    sent = [result.seeds[0].metrics["bytes_up"] for result in (single, double)]
    assert sent[0] < sent[1] <= 2 * sent[0]
    name, model = next(iter(double.models.items()))
    assert {value.dtype for value in model.snapshot.message.values() if value.is_floating_point()} == {torch.float64}
    loaded = PersonalModel.load(tmp_path / "float64" / "seed-0" / "models" / f"{name}.safetensors")
    graph = ragged_federation().clients[0].graph
    assert np.array_equal(loaded.predict(graph), model.predict(graph))
