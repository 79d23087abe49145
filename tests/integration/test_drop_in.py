"""A new algorithm is one file: dropped beside the user's data, it has everything that a built-in one has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from fedspray import build_federation
from fedspray.cli.main import run_command
from fedspray.report.tables import comparison_table

FEDSPRAY = str(Path(sys.executable).with_name("fedspray"))

CLIPPED = '''"""Clipped FedAvg: no client moves the average by more than a given length.

    θ_k ← θ + Δ_k · min(1, c / ‖Δ_k‖)        with Δ_k = θ_k - θ after local training

Travels up beside what FedAvg sends: ‖Δ_k‖ before clipping.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import fedspray as fs


@dataclass(frozen=True, kw_only=True)
class Clipped(fs.FedAvg):
    """FedAvg of clipped updates."""

    summary: ClassVar[str] = "FedAvg of updates that are at most [this] long"
    citation: ClassVar[str] = "none"
    uplink: ClassVar[dict[str, str]] = {**fs.FedAvg.uplink, "length": "length of the update before clipping"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"tight": {"max_length": 0.01}}

    max_length: float = fs.setting(1.0, "longest update that counts in full (c), in [0, inf)")

    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int):
        """FedAvg's steps, then the update is shortened."""
        client, uplink = super().client_update(client, message, batch, seed)
        updates = {name: value - message[f"gnn.{name}"] for name, value in fs.part_of(uplink, "gnn").items()}
        uplink["length"] = torch.cat([value.flatten(1) for value in updates.values()], dim=1).norm(dim=1)
        for k in (uplink["length"] > self.max_length).nonzero()[:, 0].tolist():
            for name, update in updates.items():
                uplink[f"gnn.{name}"][k] = message[f"gnn.{name}"][k] + update[k] * self.max_length / uplink["length"][k]
        return client, uplink

    def diagnostics(self, server: Any, message: fs.Message) -> dict[str, Any]:
        """The lengths."""
        return {"length": message["length"].tolist()}
'''

NAME = "lab.clipped:Clipped"
BANKS = ["--dataset", "banks", "--nodes", "400", "--rounds", "4", "--set", "hidden=8"]
WEIGHTS = 32 * 8 + 8 + 8 * 2 + 2
"""Of a GCN from 32 features over 8 units to 2 classes."""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder with a package of the user's own, which is all that there is."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    (tmp_path / "lab" / "clipped.py").write_text(CLIPPED)
    return tmp_path


def fedspray(folder: Path, *arguments: str) -> str:
    """What the installed command prints, called in ``folder``."""
    done = subprocess.run([FEDSPRAY, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(table: str) -> list[list[str]]:
    """The rows of a printed table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]


def test_its_settings_are_listed_like_any_others(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(lab)
    assert run_command(["algorithms", NAME]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{NAME}: FedAvg of updates that are at most [this] long (none)" in printed
    assert "max_length 1.0 longest" in printed
    assert "preset tight: max_length=0.01" in printed


def test_bad_values_get_a_sentence(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(lab)
    assert run_command(["run", *BANKS, "--algorithm", NAME, "--out", "never", "--set", "max_length=long"]) == 2
    assert capsys.readouterr().err == "error: max_length is 'long', but must be a number\n"
    assert not (lab / "never").exists()


def test_it_runs_beside_fedavg_with_tables_and_bytes(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(lab)
    tables, results = {}, {}
    for out, arguments in {
        "fedavg": ["--algorithm", "fedavg"],
        "clipped": ["--algorithm", NAME, "--set", "max_length=0.1"],
        "loose": ["--algorithm", NAME, "--set", "max_length=1e9"],
    }.items():
        assert run_command(["run", *BANKS, "--out", out, *arguments]) == 0
        tables[out], results[out] = capsys.readouterr().out, json.loads((lab / out / "result.json").read_text())
    assert f"banks, {NAME}, gcn: test accuracy in %" in " ".join(tables["clipped"].split())
    for out, table in tables.items():
        (row,), (seed,) = cells(table), results[out]["seeds"]
        sent = 4 * (WEIGHTS + 1 + (out != "fedavg"))  # weights, n_k and the length, float32
        assert seed["bytes_up"] == sent * 4 * 4  # 4 clients, 4 rounds
        assert seed["bytes_down"] == 4 * WEIGHTS * 4 * 5  # and once more, to evaluate the last model
        assert row[:3] == ["0", str(seed["best_round"]), f"{100 * seed['overall']:.2f}"]
        assert row[-1] == f"{sent / 1000:.1f}"
    assert results["loose"]["models"] == results["fedavg"]["models"]  # nothing is clipped
    assert results["clipped"]["models"] != results["fedavg"]["models"]
    assert results["clipped"]["settings"]["max_length"] == 0.1
    records = [json.loads(line) for line in (lab / "clipped" / "seed-0" / "rounds.jsonl").read_text().splitlines()]
    assert all(len(record["diagnostics"]["length"]) == 4 for record in records)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(comparison_table([results["fedavg"], results["clipped"]]))
    compared = cells(capture.get())
    assert [row[0] for row in compared] == ["fedavg", NAME]
    assert [row[1] for row in compared] == [cells(tables[out])[0][2] for out in ("fedavg", "clipped")]
    (lab / "begun").mkdir()  # a run that was cut off right after it began
    (lab / "clipped" / "settings.json").rename(lab / "begun" / "settings.json")
    assert run_command(["run", "--resume", "begun"]) == 0
    assert cells(capsys.readouterr().out) == cells(tables["clipped"])
    assert json.loads((lab / "begun" / "result.json").read_text())["models"] == results["clipped"]["models"]


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_bits_and_predicts(lab: Path) -> None:
    arguments = ["run", *BANKS[:4], "--rounds", "60", "--algorithm", NAME, "--preset", "tight"]
    fedspray(lab, *arguments, "--out", "whole")
    process = subprocess.Popen([FEDSPRAY, *arguments, "--checkpoint-every", "1", "--out", "killed"], cwd=lab)
    checkpoint, deadline = lab / "killed" / "seed-0" / "checkpoint.safetensors", time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None and not checkpoint.exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert checkpoint.exists()
    assert not (lab / "killed" / "result.json").exists(), "the run ended before it could be killed: make it longer"
    fedspray(lab, "run", "--resume", "killed")
    whole, killed = (json.loads((lab / out / "result.json").read_text()) for out in ("whole", "killed"))
    assert killed["settings"]["max_length"] == 0.01
    assert killed["models"] == whole["models"]
    assert killed["overall"] == whole["overall"]
    build_federation("banks", nodes=400).clients[1].graph.to_npz(lab / "graph.npz")
    model = "killed/seed-0/models/bank_01"
    fedspray(lab, "predict", "--model", model, "--graph", "graph.npz", "--out", "predictions.csv")
    assert len((lab / "predictions.csv").read_text().splitlines()) == 1 + 100
