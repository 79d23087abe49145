from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedspray import files
from fedspray.cli.main import run_command
from fedspray.cli.run import _unused

SMALL = ["run", "--dataset", "banks", "--nodes", "400", "--rounds", "3"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run_command([*arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    summary: dict[str, Any] = json.loads(captured.out)
    return summary


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_command(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").strip()


def test_json_and_result_file_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    summary = run_json(capsys, *SMALL, "--seeds", "2", "--out", str(out))
    assert [row["seed"] for row in summary["seeds"]] == [0, 1]
    assert 0 <= summary["overall"]["mean"] <= 1
    assert files.read_json(out / "result.json") == summary


def test_the_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*SMALL, "--seed", "3", "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert "banks, fedspray2, gcn" in captured.out
    assert "saved in" in captured.err


def test_people_are_told_that_patience_ended_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rounds", "40", "--patience", "2", "--set", "lr=0.3", "--out", str(tmp_path / "run")]
    assert run_command(["run", "--dataset", "banks", "--nodes", "200", *flags]) == 0
    rounds = json.loads((tmp_path / "run" / "result.json").read_text())["seeds"][0]["rounds"]
    assert rounds < 40
    assert f"after {rounds} of 40 rounds" in " ".join(capsys.readouterr().err.split())


def test_a_toml_file_and_flags_that_override_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(
        'dataset = "banks"\nnodes = 400\nrounds = 5\nalgorithm = "local"\nseeds = 3\n\n[set]\nhidden = 8\nlr = 0.01\n'
    )
    out = str(tmp_path / "run")
    summary = run_json(capsys, "run", str(file), "--rounds", "2", "--seed", "4", "--set", "lr=0.02", "--out", out)
    assert summary["algorithm"] == "local"
    assert (summary["settings"]["rounds"], summary["settings"]["hidden"], summary["settings"]["lr"]) == (2, 8, 0.02)
    assert [row["seed"] for row in summary["seeds"]] == [4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "distil_weight=1"], "unknown setting 'distil_weight'"),
        (["--set", "seeds=2"], "seeds is not a setting"),
        (["--dtype", "banana"], "dtype is 'banana', but must be float32 or float64"),
        (["--set", "distill_weight"], "--set is 'distill_weight', but must be of the form NAME=VALUE"),
        (["--algorithm", "fedspry"], "unknown algorithm 'fedspry': choose one of"),
        (["--backbone", "gnn"], "unknown backbone 'gnn': choose one of gat, gcn"),
        (["--seed", "1", "--seeds", "2"], "seed is 1 and seeds is 2, but give only one of them"),
        (["--rounds", "0"], "rounds is 0, but must be at least 1"),
        (["--rounds", "5", "--set", "rounds=6"], "rounds is given twice"),
        (["--algorithm", "fedavg", "--backbone-of", "bank_00=sage"], "fedavg averages the clients' GNNs"),
        (["--preset", "published"], "unknown preset of fedspray 'published'"),
        (["--selection", "test"], "unknown selection rule 'test'"),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "run"
    command = [argument for argument in SMALL if argument not in ("--rounds", "3")]
    assert refused(capsys, *command, *arguments, "--out", str(out)).startswith(sentence)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dataset = banks", "not readable TOML"),
        ('datset = "banks"', "you mean 'dataset'?"),
        ('rounds = "many"', "rounds is 'many'"),
        ("set = 3", "set is 3"),
    ],
)
def test_bad_toml_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    assert sentence in refused(capsys, "run", str(file))


def test_an_existing_folder_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    assert "exists already" in refused(capsys, *SMALL, "--out", str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("run", "run-2", "run-3"):
        assert _unused(folder).name == name
        _unused(folder).mkdir()


def test_resume_takes_no_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    first = run_json(capsys, *SMALL, "--out", str(out))
    assert run_json(capsys, "run", "--resume", str(out)) == first
    assert "folder: remove rounds" in refused(capsys, "run", "--resume", str(out), "--rounds", "9")
    assert "not a run folder" in refused(capsys, "run", "--resume", str(tmp_path / "nowhere"))


def test_resume_before_the_first_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_json(capsys, *SMALL, "--out", str(tmp_path / "whole"))
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "settings.json").write_bytes((tmp_path / "whole" / "settings.json").read_bytes())
    again = run_json(capsys, "run", "--resume", str(begun))
    assert again["models"] == whole["models"]


@pytest.mark.slow
def test_ctrl_c_saves_and_stops_cleanly(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [str(Path(sys.executable).with_name("fedspray")), "run", "--dataset", "banks", "--rounds", "5000"]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal, wherever tests run
    )
    records = out / "seed-0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (records.exists() and records.stat().st_size > 0):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "fedspray run --resume" in err
    assert "Traceback" not in err
    assert len(records.read_text().splitlines()) >= 1
    assert not list(out.rglob("*.tmp"))


def test_predict_with_a_personal_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedspray import build_federation

    federation = build_federation("banks", nodes=400)
    federation.save(tmp_path / "banks")
    reported = run_json(capsys, *SMALL, "--out", str(tmp_path / "run"))
    model = tmp_path / "run" / "seed-0" / "models" / "bank_02"
    client = tmp_path / "banks" / "clients" / "bank_02"
    for graph in (client, client / "graph.npz"):
        out = tmp_path / f"{graph.name}.csv"
        summary = run_json(capsys, "predict", "--model", str(model), "--graph", str(graph), "--out", str(out))
        assert summary["nodes"] == 100
        assert summary["accuracy"] == reported["seeds"][0]["clients"]["bank_02"]["overall"]
        assert summary["accuracy_of"] == "test"
        assert {part: row["nodes"] for part, row in summary["accuracies"].items()} == {
            "train": 40,
            "val": 30,
            "test": 30,
        }
        table = pd.read_csv(out)
        probabilities = table[["probability_0", "probability_1"]].to_numpy()
        assert np.allclose(probabilities.sum(axis=1), 1, atol=2e-6)
        assert np.array_equal(table["prediction"], probabilities.argmax(axis=1))
        assert {"confidence", "minority_class", "neighbours", "neighbours_agree", "seen_as"} <= set(table)


def test_predict_refuses_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedspray import Graph

    run_json(capsys, *SMALL, "--algorithm", "fedspray", "--out", str(tmp_path / "run"))
    model = str(tmp_path / "run" / "seed-0" / "models" / "bank_02")
    Graph.from_arrays(np.ones((3, 4)), [[0], [1]], [0, 1, 0]).to_npz(tmp_path / "other.npz")
    out = str(tmp_path / "p.csv")
    sentence = refused(capsys, "predict", "--model", model, "--graph", str(tmp_path / "other.npz"), "--out", out)
    assert sentence == "the graph has 4 features per node, but this model was trained on 32"
    proxies = str(tmp_path / "run" / "seed-0" / "proxies.safetensors")
    assert "not a personal" in refused(capsys, "predict", "--model", proxies, "--graph", "x.npz", "--out", out)
    assert "is missing" in refused(capsys, "predict", "--model", "no.safetensors", "--graph", "x.npz", "--out", out)
    assert not Path(out).exists()


def test_what_cannot_be_is_refused_before_the_data_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    start = ["run", "--dataset", "nowhere.npz"]
    sentence = refused(capsys, *start, "--out", str(tmp_path / "file" / "x"))
    assert sentence == f"--out {tmp_path}/file/x cannot be made: {tmp_path}/file is not a folder"
    assert "exists already" in refused(capsys, *start, "--out", str(tmp_path))
    assert "scaffold ignores lr" in refused(capsys, *start, "--algorithm", "scaffold", "--set", "lr=0.5")


def test_a_file_for_one_graph_is_not_run_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids of a small graph are ids of a larger one too: it would be cut without a word."""
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text('dataset = "pubmed"\npartition_dir = "partitions/PubMed"\n')
    assert run_command(["run", "x.toml", "--dataset", "physics"]) == 2
    sentence = "node lists of pubmed, but --dataset is physics: pass its own with --partition-dir"
    assert sentence in capsys.readouterr().err


def test_without_a_terminal_progress_is_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedspray.cli import run

    assert run_command([*SMALL, "--out", str(tmp_path / "quick")]) == 0
    assert "round 1 of 3" not in capsys.readouterr().err  # over before a line is due
    monkeypatch.setattr(run, "SECONDS_BETWEEN_LINES", 0.0)
    assert run_command([*SMALL, "--out", str(tmp_path / "slow")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("seed 0: round ")]
    assert [line.split(",")[0] for line in lines] == [f"seed 0: round {number} of 3" for number in (1, 2, 3)]
