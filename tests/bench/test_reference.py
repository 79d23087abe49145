"""The reference of the benchmark and this package's engine are two ways to the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.cases import ALGORITHMS, BACKBONES
from benchmarks.players import load_reference
from fedspray import build_federation
from fedspray.data.federation import Federation
from fedspray.engine.local import LocalEngine
from fedspray.engine.rounds import run_rounds, start
from fedspray.errors import InputError
from fedspray.experiment import RoundSettings, RunSettings
from fedspray.nn import tree
from fedspray.nn.tree import Params
from fedspray.runs.settings import resolve

FILE = Path(__file__).parents[2] / "benchmarks" / "reference.py"
ROUNDS = 3


def play_both(
    federation: Federation, algorithm: str, backbone: str, dtype: torch.dtype
) -> tuple[list[dict[str, Any]], Params, list[dict[str, Any]], Any]:
    """Records and final weights of our engine, metrics and final state of the reference."""
    algorithms = resolve(RunSettings(algorithm=algorithm, backbone=backbone)).for_clients(federation.roster)
    engine = LocalEngine(federation, algorithms, 0, dtype=dtype)
    records: list[dict[str, Any]] = []
    progress = run_rounds(
        algorithms[0],
        engine,
        RoundSettings(rounds=ROUNDS),
        0,
        start(algorithms[0], federation.task, 0, dtype),
        on_record=records.append,
        on_round=lambda _: None,
    )
    last = engine.tensors(ROUNDS + 2)  # two exchanges without training follow the last round
    weights = {**tree.prefixed("client", last), **tree.flatten(progress.server)}
    reference: Any = load_reference(FILE)(federation, algorithms[0], 0, dtype)
    return records, weights, [reference.round() for _ in range(ROUNDS)], reference


def check_same(federation: Federation, algorithm: str, backbone: str, dtype: torch.dtype, tolerance: float) -> None:
    records, weights, metrics, reference = play_both(federation, algorithm, backbone, dtype)
    for record, other in zip(records, metrics, strict=True):
        for part in ("train", "val", "test"):
            shown = {name: record[part][name] for name in other[part]}
            assert shown == pytest.approx(other[part], rel=tolerance, abs=tolerance)
    for name, weight in reference_weights(algorithm, backbone, reference).items():
        torch.testing.assert_close(weights[name], weight, rtol=tolerance, atol=tolerance)


def reference_weights(algorithm: str, backbone: str, reference: Any) -> dict[str, Tensor]:
    """The first-layer weights of the reference, by the names that `play_both` gives to ours."""
    if algorithm == "fedavg":
        return {f"gnn.{name}": value for name, value in first_layer(backbone, reference.model).items()}
    own = [first_layer(backbone, client.model.state_dict()) for client in reference.clients]
    found = {f"client.worker0.state.gnn.{name}": torch.stack([each[name] for each in own]) for name in own[0]}
    return found | {
        "encoder.embedding.weight": reference.encoder["embedding.weight"].T,
        "encoder.fusion_head.bias": reference.encoder["fusion_head.bias"],
        "class_proxies": reference.class_proxies,
    }


def first_layer(backbone: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    if backbone == "gcn":
        return {"conv1.weight": state["conv1.lin.weight"].T}
    if backbone == "sgc":
        return {"linear.weight": state["conv.lin.weight"].T}
    return {"conv1.weight": torch.cat([state["conv1.lin_l.weight"].T, state["conv1.lin_r.weight"].T], dim=1)}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_metrics_and_weights_on_banks(algorithm: str, backbone: str) -> None:
    federation = build_federation("banks", nodes=330, clients=3)
    check_same(federation, algorithm, backbone, torch.float64, tolerance=1e-9)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "backbone"), [("fedspray", "sage"), ("fedavg", "gcn"), ("fedspray", "sgc")])
def test_same_metrics_and_weights_on_pubmed(
    real_data: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, backbone: str
) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    federation = build_federation("pubmed", partition_dir=real_data / "partitions" / "PubMed")
    check_same(federation, algorithm, backbone, torch.float32, tolerance=1e-3)


def test_a_file_without_build_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("")
    with pytest.raises(InputError, match="no function 'build'"):
        load_reference(file)


@pytest.mark.parametrize("name", ["missing.py", "notes.txt"])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("no Python")
    with pytest.raises(InputError, match=f"{name} is not a Python file"):
        load_reference(tmp_path / name)
