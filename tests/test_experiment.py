"""Every knob is declared once, and is a flag, a key and an argument."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from fedspray import algorithms, backbones, datasets, experiment
from fedspray.datasets.banks import Banks
from fedspray.errors import InputError
from fedspray.experiment import DATA, Data, Experiment, RoundSettings, RunSettings, data_knobs, knobs
from fedspray.federate import build_federation, open_data
from fedspray.runs.settings import resolve


@pytest.fixture
def fresh() -> Iterator[None]:
    """Knobs are collected again inside and after the test."""
    knobs.cache_clear()
    yield
    knobs.cache_clear()


def test_a_command_lists_its_flags_without_torch_and_numpy() -> None:
    code = "import sys; from fedspray.experiment import knobs; knobs(); print(*{'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_knob_has_what_a_flag_needs() -> None:
    for name, knob in knobs().items():
        assert knob.name == name
        assert knob.help.endswith((".", "…")), name
        assert knob.metavar or knob.kind == "bool", name
        assert knob.type is not None


def test_a_name_means_one_thing() -> None:
    """A setting of an algorithm or backbone is not called like a knob of the data: a sweep could mean either."""
    owners = [*map(algorithms.find, algorithms.names()), *map(backbones.find, backbones.names()), RoundSettings]
    assert {each.name for owner in owners for each in fields(owner)} & set(data_knobs()) == set()


def test_flat_values_become_parts_and_flat_json() -> None:
    values: dict[str, Any] = {
        **{"dataset": "banks", "nodes": "200", "degree": 5, "partition_seed": 3, "rounds": 4, "seeds": 2},
        **{"algorithm": "fedavg", "set": {"lr": 0.1}, "backbone_of": {"bank_00": "mlp"}, "keep_split": True},
    }
    found = Experiment.from_values(values, "here")
    assert found.data == Data(dataset="banks", partition_seed=3, own={"nodes": 200, "degree": 5.0})
    assert found.run == RunSettings(
        algorithm="fedavg",
        values={"lr": 0.1, "rounds": 4},
        backbone_of={"bank_00": "mlp"},
        keep_split=True,
        seeds=(0, 1),
    )
    assert Data.of(**found.data.to_json()) == found.data


@pytest.mark.parametrize(
    ("values", "algorithm"),
    [({}, "fedspray2"), ({"preset": "paper"}, "fedspray"), ({"preset": "paper", "algorithm": "apfl"}, "apfl")],
)
def test_what_is_run_where_no_algorithm_is_named(values: dict[str, Any], algorithm: str) -> None:
    """A preset alone is the paper's FedSpray: published settings are for the method that they were published for."""
    found = Experiment.from_values(values, "here").run
    assert found.algorithm == algorithm
    assert replace(found, preset=None).algorithm == algorithm  # what is chosen stays


def test_an_empty_name_of_an_algorithm_is_not_the_default() -> None:
    with pytest.raises(InputError, match="unknown algorithm ''"):
        resolve(Experiment.from_values({"algorithm": ""}, "here").run)


def test_all_settings_of_banks_can_be_reached() -> None:
    given: dict[str, Any] = {
        "clients": 2,
        "nodes": 90,
        "features": 5,
        "classes": 3,
        "degree": 4.0,
        "majority_neighbour_share": 0.7,
    }
    given |= {"minority_ratio": 0.5, "separation": 1.5}
    federation = open_data(Experiment.from_values({"dataset": "banks", **given}, "here").data)
    assert federation.fingerprint() == build_federation("banks", **given).fingerprint()
    assert federation.fingerprint() == build_federation(Banks(2, 90, 5, 3, 4.0, 0.7, 0.5, 1.5)).fingerprint()
    assert {f"num_{name}" if f"num_{name}" in federation.settings else name for name in given} <= set(
        federation.settings
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"datset": "banks"}, "unknown key 'datset'.*you mean 'dataset'"),
        ({"seed": 1, "seeds": 2}, "seed is 1 and seeds is 2"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"participation": 0}, "participation is 0.0"),
        ({"dtype": "banana"}, "dtype is 'banana'"),
        ({"rounds": 2, "set": {"rounds": 3}}, "rounds is given"),
        ({"set": 3}, "set is 3"),
        ({"nodes": 1.5}, "nodes is 1.5"),
        ({"compare": {}}, "takes one experiment"),
    ],
)
def test_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Experiment.from_values(values, "here")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("alpha", "int", "alpha of mine"),
        ("rounds", "int", "knob of both"),
    ],
)
def test_a_plugin_cannot_take_a_name_that_means_something_else(
    name: str, kind: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = type("Mine", (), {"__annotations__": {name: kind}, name: field(default=1, metadata={"help": "x"})})
    monkeypatch.setattr(datasets, "generators", lambda: {"mine": dataclass(mine)})
    with pytest.raises(TypeError, match=sentence):
        knobs()


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lists").mkdir()
    Path("mine.npz").touch()
    data = Data.of(dataset="mine.npz", partition_dir="lists").located()
    assert data == Data.of(dataset=str(tmp_path / "mine.npz"), partition_dir=str(tmp_path / "lists"))
    assert experiment.knobs()["partition_dir"].part == DATA
