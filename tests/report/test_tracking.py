"""Runs in MLflow and Weights & Biases, read back from what the tools themselves wrote, without a network."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toys import ragged_federation

import fedspray as fs
from fedspray.cli.main import run_command
from fedspray.errors import InputError
from fedspray.report import tracking

mlflow_only = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny")
wandb_only = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
SMALL = ["run", "--dataset", "banks", "--nodes", "200", "--rounds", "3", "--algorithm", "fedavg"]


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    from mlflow import MlflowClient

    return MlflowClient()


def runs_of(client: Any) -> list[Any]:
    experiment = client.get_experiment_by_name("ours")
    return sorted(client.search_runs([experiment.experiment_id]), key=lambda run: str(run.info.run_name))


@pytest.mark.slow
@mlflow_only
def test_mlflow_has_fields_rounds_and_the_report(mlflow_client: Any) -> None:
    result = fs.run(ragged_federation(), "fedavg", rounds=3, seeds=2, hidden=8, track="mlflow")
    first, second = runs_of(mlflow_client)
    assert [run.info.status for run in (first, second)] == ["FINISHED"] * 2
    assert second.data.params["seed"] == "1"
    settings = {name: str(value) for name, value in result.header["settings"].items()}
    assert settings.items() <= first.data.params.items()
    assert first.data.params["algorithm"] == "fedavg"
    assert first.data.params["data.num_clients"] == "3"
    for run, seed in zip((first, second), result.seeds, strict=True):
        for name in ("val/loss", "test/minority"):
            part, figure = name.split("/")
            history = mlflow_client.get_metric_history(run.info.run_id, name)
            assert [(m.step, m.value) for m in history] == [(r["round"], r[part][figure]) for r in seed.records]
        assert run.data.metrics["result/overall"] == seed.metrics["overall"]
        (artefact,) = mlflow_client.list_artifacts(run.info.run_id)
        assert (artefact.path, artefact.file_size > 10**6) == ("report.html", True)


@pytest.mark.slow
@mlflow_only
def test_a_run_that_stops_has_failed_there_and_goes_on_as_another(
    mlflow_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(fs.Callback):
        def on_record(self, seed: int, record: dict[str, Any]) -> None:
            if record["round"] == 2:
                raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fs.run(ragged_federation(), "fedavg", rounds=4, hidden=8, out=folder, callbacks=[Stop()], track="mlflow")
    (only,) = runs_of(mlflow_client)
    assert only.info.status == "FAILED"
    assert [m.step for m in mlflow_client.get_metric_history(only.info.run_id, "val/loss")] == [1]


@pytest.mark.slow
@mlflow_only
def test_the_command_tracks_too_and_training_survives_the_tool(
    mlflow_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*SMALL, "--track", "mlflow", "--out", str(tmp_path / "one"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (run,) = runs_of(mlflow_client)
    assert run.data.metrics["result/minority"] == summary["minority"]["mean"]

    def broken(*_: Any) -> None:
        raise OSError("no connection")

    monkeypatch.setattr(tracking._MLflow, "log", broken)
    with pytest.warns(UserWarning, match="mlflow failed, .*no connection") as warned:
        assert run_command([*SMALL, "--track", "mlflow", "--out", str(tmp_path / "two"), "--json"]) == 0
    assert len(warned) == 1
    assert json.loads(capsys.readouterr().out)["models" if "models" in summary else "minority"] is not None


@pytest.mark.slow
@wandb_only
def test_wandb_offline_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path), "PROJECT": "ours"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    result = fs.run(ragged_federation(), "fedavg", rounds=3, seeds=2, hidden=8, track="wandb")
    logs = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(logs) == 2
    read = [written(log) for log in logs]
    for content, seed in zip(sorted(read, key=lambda each: each["config"]["seed"]), result.seeds, strict=True):
        assert content["project"] == "ours"
        assert content["config"].items() >= {"seed": seed.seed, "algorithm": "fedavg", "hidden": 8}.items()
        history = [(row["_step"], row["val/loss"]) for row in content["history"]]
        assert history == [(r["round"], r["val"]["loss"]) for r in seed.records]
        assert content["summary"]["result/overall"] == seed.metrics["overall"]
        assert content["artefacts"] == ["report.html"]


def messages(log: Path) -> Iterator[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB, in which long records are split."""
    data, place, whole = log.read_bytes(), 7, b""
    while place < len(data):
        left = 2**15 - place % 2**15
        if left < 7:  # too short for another header
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a full one, or the last part
            yield whole
            whole = b""


def written(log: Path) -> dict[str, Any]:
    """What a file of Weights & Biases holds."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "artefacts": []}
    for data in messages(log):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["project"] = record.run.project
            found["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":  # parameters may also come after the run's own record
            found["config"] |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "history":
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found["history"].append(row)
        elif kind == "summary":
            found["summary"] |= {
                item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update
            }
        elif kind == "artifact":
            found["artefacts"] += [entry.path for entry in record.artifact.manifest.contents]
    return found


def test_a_tool_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"'comet'.*mlflow.*wandb"):
        fs.run(ragged_federation(), "fedavg", rounds=1, track="comet", out=tmp_path / "run")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"fedspray\[wandb\]"):
        fs.run(ragged_federation(), "fedavg", rounds=1, track="wandb", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
