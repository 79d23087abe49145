from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedspray.cli.main import run_command

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for algorithm in ("local", "fedspray"):
        base = ["run", "--dataset", "banks", "--nodes", "300", "--rounds", "3", "--algorithm", algorithm]
        assert run_command([*base, "--out", algorithm]) == 0
    capsys.readouterr()
    return ["local", "fedspray"]


def test_json_says_what_was_written(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", *runs, "--out", "page.html", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["out"] == "page.html"
    assert summary["methods"] == runs
    assert summary["reference"] == "local"
    assert summary["bytes"] == Path("page.html").stat().st_size
    assert summary["finding"]
    section = DOCUMENT.split("## fedspray report\n")[1].split("\n## ")[0]
    assert set(summary) - set(re.findall(r"`(\w+)`", section)) == set()


def test_one_run_and_a_default_name(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", runs[1]]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("fedspray is right about ")
    assert "wrote report.html" in captured.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "nowhere"], "error: nowhere/settings.json is missing: nowhere is not a run folder"),
        (["report", "local", "--out", "page.pdf"], "error: --out page.pdf ends in '.pdf', but must end in .html"),
        (["report", "local", "--reference", "fedavg"], "error: unknown reference 'fedavg': choose one of local"),
        (["report"], "error: DIR… is missing"),
    ],
)
def test_bad_input(runs: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert run_command(arguments) == 2
    assert capsys.readouterr().err.startswith(sentence)
    assert not list(Path().glob("*.html"))
