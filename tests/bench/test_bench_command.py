from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted import scripted

from benchmarks import measure
from fedspray.cli.main import run_command

SERIES = ["bench", "--banks", "1000/2", "--banks", "2000/2", "--backbone", "gcn", "--algorithm", "fedspray"]


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reference for scripted players, which do not read it."""
    monkeypatch.setattr(measure, "Player", scripted())
    file = tmp_path / "reference.py"
    file.touch()
    return file


@pytest.mark.slow
def test_everything_is_written(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "results"
    assert run_command([*SERIES, "--reference", str(reference), "--out", str(out), "--repetitions", "3"]) == 0
    captured = capsys.readouterr()
    content = json.loads((out / "benchmark.json").read_text())
    assert [case["nodes"] for case in content["cases"]] == [1000, 2000]
    assert content["scaling"][0]["exponent"] == pytest.approx(1.0)
    assert {"command", "date", "machine", "versions", "threads", "repetitions"} < set(content)
    assert len(content["yardstick_milliseconds"]) == 2
    assert min(content["yardstick_milliseconds"]) > 0
    assert (out / "benchmark.png").read_bytes().startswith(b"\x89PNG")
    markdown = (out / "benchmark.md").read_text()
    assert "| 1,000/2 | GCN FedSpray | 4 | 8 | 2.00 | 12 | 3.00 |" in markdown
    assert "banks: time" in captured.out
    assert "1 of 2: banks 1,000/2, gcn, fedspray: 4 CPU s, 2.00 times the floor, 3 times as fast" in captured.err
    assert f"wrote benchmark.json, .md and .png to {out}" in captured.err.replace("\n", "")


@pytest.mark.slow
def test_one_size_gives_no_picture(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "--banks", "1000/2", "--out", str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["benchmark.json", "benchmark.md"]
    assert "wrote benchmark.json and .md to" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_thing_on_a_small_federation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours, the floor and the PyG reference, each in its process."""
    file = Path(__file__).parents[2] / "benchmarks" / "reference.py"
    arguments = ["bench", "--banks", "300/3", "--backbone", "gcn", "--algorithm", "fedavg", "--repetitions", "1"]
    assert run_command([*arguments, "--reference", str(file), "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert [case[player]["failure"] for player in ("ours", "floor", "reference")] == [None] * 3
    assert case["difference"]["rounds"] == 2
    assert case["difference"]["loss"] < 1e-4
    assert case["difference"]["overall"] < 0.02
    assert case["ours_to_floor"]["cpu"] > 0
    assert case["reference_to_ours"]["cpu"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--banks", "many"], "error: --banks is 'many'"),
        (["--backbone", "mlp"], "error: unknown backbone of a benchmark 'mlp'"),
        (["--banks", "99/3", "--reference", "no.py"], "error: --reference no.py is not a file"),
        (["--banks", "99/3", "--threads", "0"], "error: --threads is '0'"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run_command(["bench", *arguments, "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(sentence)
    assert not out.exists()
