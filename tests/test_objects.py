"""Objects and classes are names with settings."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import ragged_federation

import fedspray as fs
from fedspray.objects import Chosen
from fedspray.studies import cells
from fedspray.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class Slow(fs.FedAvg):
    """FedAvg whose server moves only a part of the way."""

    pace: float = fs.setting(0.5, "share of the way")

    def server_update(self, server: Any, message: fs.Message, client_ids: Any) -> Any:
        there = super().server_update(server, message, client_ids)
        gnn = {name: torch.lerp(server.gnn[name], value, self.pace) for name, value in there.gnn.items()}
        return type(there)(gnn)


@dataclass(frozen=True)
class Wide(fs.MLP):
    """An MLP under another name."""


class Network(torch.nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.Linear(hidden, outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.layers(x)


def models(*given: Any, **settings: Any) -> tuple[Any, Any]:
    result = fs.run(ragged_federation(), *given, rounds=2, **settings)
    return result.summary()["models"], result.header


@pytest.mark.parametrize(
    ("by_object", "by_name"),
    [
        (([fs.FedSpray(distill_weight=2)], {"backbone": fs.GCN(hidden=8)}),
         {"algorithm": "fedspray", "distill_weight": 2, "hidden": 8}),
        (([fs.FedSpray], {"backbone": fs.SAGE, "hidden": 8}),
         {"algorithm": "fedspray", "backbone": "sage", "hidden": 8}),
        (([fs.Local(backbone=fs.GAT(heads=2, hidden=8))], {}),
         {"algorithm": "local", "backbone": "gat", "heads": 2, "hidden": 8}),
        (([fs.SCAFFOLD(sgd_lr=0.05)], {}), {"algorithm": "scaffold", "sgd_lr": 0.05}),
        (([fs.FedSprayPlus()], {"backbone": "mlp"}), {"algorithm": "fedspray-plus", "backbone": "mlp"}),
        ((["local"], {"backbone_of": {"client_02": fs.SGC}}),
         {"algorithm": "local", "backbone_of": {"client_02": "sgc"}}),
        (([Slow(pace=0.25)], {"hidden": 8}), {"algorithm": "test_objects:Slow", "pace": 0.25, "hidden": 8}),
        (([Slow(pace=1.0)], {"hidden": 8}), {"algorithm": "test_objects:Slow", "pace": 1, "hidden": 8}),
        (([fs.Local()], {"backbone": Network}), {"algorithm": "local", "backbone": "test_objects:Network"}),
        (([fs.Local()], {"backbone": fs.ModuleBackbone(target="test_objects:Network", hidden=8)}),
         {"algorithm": "local", "backbone": "test_objects:Network", "hidden": 8}),
        (([fs.Local()], {"backbone": Wide(hidden=8)}),
         {"algorithm": "local", "backbone": "test_objects:Wide", "hidden": 8}),
    ],
)  # fmt: skip
def test_an_object_gives_the_bits_of_its_name_and_settings(by_object: Any, by_name: dict[str, Any]) -> None:
    given, settings = by_object
    assert models(*given, **settings) == models(**by_name)


def test_the_backbones_of_ones_own_are_what_they_say() -> None:
    assert models("local", backbone=Wide(hidden=8))[0] != models("local", backbone=fs.GCN(hidden=8))[0]
    network = fs.run(ragged_federation(), fs.Local(), backbone=Wide(hidden=8), rounds=1).models["client_00"]
    assert isinstance(network.algorithm.backbone, Wide)


def test_what_is_said_at_the_call_wins() -> None:
    own = fs.FedAvg(local_epochs=2, backbone=fs.SAGE(hidden=16, dropout=0.5))
    assert Chosen.of(own) == Chosen("fedavg", "sage", {"local_epochs": 2, "hidden": 16, "dropout": 0.5})
    assert Chosen.of(own, fs.SAGE(hidden=8)) == Chosen("fedavg", "sage", {"local_epochs": 2, "hidden": 8})
    assert Chosen.of(own, "gcn") == Chosen("fedavg", "gcn", {"local_epochs": 2})
    assert Chosen.of(own, values={"hidden": 4, "local_epochs": 5}).values == {
        "local_epochs": 5,
        "hidden": 4,
        "dropout": 0.5,
    }
    assert Chosen.of(fs.FedAvg()) == Chosen.of(fs.FedAvg) == Chosen.of("fedavg") == Chosen("fedavg", "gcn", {})


def test_a_backbone_object_is_stronger_than_a_preset_also_where_it_is_as_usual() -> None:
    presets = fs.GCFL.presets["published"]
    changed = {name: value for name, value in presets.items() if name in fs.GCN.__dataclass_fields__}
    assert changed
    method = Chosen.of(fs.GCFL, fs.GCN(), preset="published")
    assert {name: method.values[name] for name in changed} == {name: getattr(fs.GCN(), name) for name in changed}
    with pytest.raises(fs.InputError, match="preset is 'published'"):
        Chosen.of(fs.GCFL(), preset="published")


def test_cells_have_the_same_keys(tmp_path: Path) -> None:
    federation = fs.build_federation("banks", nodes=200)
    methods = [fs.Local(), fs.FedSpray(distill_weight=2.0, backbone=fs.GCN(hidden=8)), "fedavg"]
    fs.compare(federation, methods, rounds=1, seeds=2, bootstrap=0, hidden=8, out=tmp_path)
    made = sorted(file.name for file in (tmp_path / "cells").glob("*.json"))
    content = {"nodes": 200, "rounds": 1, "set": {"hidden": 8}, "compare": {
        "seeds": 2, "algorithms": ["local", {"algorithm": "fedspray", "set": {"distill_weight": 2.0}}, "fedavg"],
    }}  # fmt: skip
    plan = Study.from_values(content, "here")
    by_name = [cell for row in plan.rows() for cell in row.cells()]
    assert made == sorted(f"{cell.name(cell.key())}.json" for cell in by_name)
    assert len(made) == 6


def test_a_run_folder_describes_an_object_by_name(tmp_path: Path) -> None:
    fs.run(ragged_federation(), fs.FedSpray(distill_weight=2), backbone=fs.SAGE(hidden=8), rounds=1, out=tmp_path / "a")
    run = json.loads((tmp_path / "a" / "settings.json").read_text())["run"]
    assert (run["algorithm"], run["backbone"]) == ("fedspray", "sage")
    assert run["values"] == {"distill_weight": 2, "hidden": 8, "rounds": 1}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"algorithm": fs.GCN()}, "the algorithm is a GCN"),
        ({"algorithm": fs.GCN}, "class GCN"),
        ({"algorithm": 3}, "the algorithm is 3, but"),
        ({"backbone": Network(1, 2, 3)}, "the backbone is a Network"),
        ({"backbone": lambda *sizes: Network(*sizes)}, r"a function, .* built as Class\(in, hidden, out\)"),
        ({"algorithm": "local", "backbone_of": {"client_00": fs.GCN(hidden=4)}}, "share the settings"),
    ],
)
def test_other_things_get_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(fs.InputError, match=sentence):
        fs.run(ragged_federation(), rounds=1, **given)


def test_a_class_that_cannot_be_found_again_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Slow(fs.FedAvg):
        pass

    with pytest.raises(fs.InputError, match="module or notebook"):
        fs.run(ragged_federation(), Slow(), rounds=1)


SESSION = """
import sys, warnings
from dataclasses import dataclass
import fedspray as fs
from fedspray.testing import ragged_federation

@dataclass(frozen=True, kw_only=True)
class Mine(fs.FedAvg):
    pass

federation = ragged_federation()
quiet = fs.run(federation, Mine(local_epochs=2), rounds=1)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    kept = fs.run(federation, Mine(local_epochs=2), rounds=1, out="kept")
assert kept.summary()["models"] == quiet.summary()["models"]
assert kept.models["client_00"].digest() == fs.load("kept").models["client_00"].digest()
print(*[warning.message for warning in told], sep="|")
print(fs.compare(federation, [Mine(), "local"], rounds=1, bootstrap=0).table["method"].tolist())
try:
    fs.compare(federation, [Mine(), "local"], rounds=1, jobs=2)
except fs.InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_class_of_a_session_runs_there_and_says_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(SESSION)
    done = subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, methods, refused = done.stdout.splitlines()
    assert told.count("no other process can resume the run in kept") == 1
    assert "|" not in told
    assert methods == "['__main__:Mine', 'local']"
    assert refused.startswith("jobs is 2, but Mine is defined in this session")
    loaded = fs.load(tmp_path / "kept")  # another process, which does not know the class
    assert isinstance(loaded, fs.RunResult)
    assert loaded.overall.per_seed.keys() == {0}
    with pytest.raises(fs.InputError, match="'Mine' was defined"):
        loaded.models["client_00"]
    (tmp_path / "kept" / "result.json").unlink()
    with pytest.raises(fs.InputError, match="'Mine' was defined"):
        fs.resume(tmp_path / "kept", ragged_federation())


def test_without_a_source_every_definition_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(part: object) -> str:
        raise TypeError("<module '__main__'> is a built-in module")

    monkeypatch.setattr(cells.inspect, "getsource", unreadable)  # type: ignore[attr-defined]
    compared = fs.compare(ragged_federation(), [Slow()], rounds=1, bootstrap=0)
    assert compared.failures == []
    first = cells._source("test_objects:Slow")
    assert cells._source("test_objects:Slow") == first
    monkeypatch.setattr(sys.modules[__name__], "Slow", type("Slow", (Slow,), {}))
    assert cells._source("test_objects:Slow") != first


def test_a_federation_from_objects_is_that_of_the_names() -> None:
    by_name = fs.build_federation("banks", clients=3, nodes=300, partition_seed=4)
    by_object = fs.build_federation(fs.Banks(num_clients=3, num_nodes=300), partition_seed=4)
    assert by_object.fingerprint() == by_name.fingerprint()
    assert by_object.settings == by_name.settings
    denser = fs.build_federation(fs.Banks(num_clients=3, num_nodes=300, degree=12.0), partition_seed=4)
    assert fs.inspect(denser).total_edges > 1.5 * fs.inspect(by_name).total_edges


def test_partitioners_may_be_objects_and_classes(tmp_path: Path) -> None:
    whole = fs.build_federation("banks", clients=1, nodes=300).clients[0].graph
    whole.to_npz(tmp_path / "whole.npz")
    path = tmp_path / "whole.npz"
    by_name = fs.build_federation(path, partitioner="label-skew", clients=3, alpha=0.7)
    for partitioner, more in ((fs.LabelSkew(3, alpha=0.7), {}), (fs.LabelSkew, {"clients": 3, "alpha": 0.7})):
        found = fs.build_federation(path, partitioner=partitioner, **more)  # type: ignore[arg-type]
        assert (found.fingerprint(), found.settings) == (by_name.fingerprint(), by_name.settings)
    finer = fs.build_federation(path, partitioner=fs.Louvain(3, resolution=4.0))
    assert finer.settings["resolution"] == 4.0
    assert finer.fingerprint() != fs.build_federation(path, clients=3).fingerprint()
    wrong: Any
    for wrong in (
        {"partitioner": fs.Louvain(3), "clients": 2},
        {"partitioner": fs.GCN},
        {"partitioner": fs.Louvain(3), "alpha": 1.0},
    ):
        with pytest.raises(fs.InputError):
            fs.build_federation(path, **wrong)
    with pytest.raises(fs.InputError):
        fs.build_federation(fs.Banks(), clients=2)
