"""`fedspray new`: the README of a new folder works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedspray.cli.main import run_command


def commands() -> list[list[str]]:
    block = re.findall(r"```sh\n(.*?)```", Path("README.md").read_text(), re.DOTALL)[0]
    return [line.split() for line in block.splitlines()]


def play(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for program, *arguments in commands():
        if program == "fedspray":
            assert run_command(arguments) == 0
        else:
            assert subprocess.run([sys.executable, *arguments], check=False).returncode == 0


def test_a_project_for_ones_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(["new", str(tmp_path / "mine")]) == 0
    play(monkeypatch, tmp_path / "mine")
    assert Path("report.html").is_file()


@pytest.mark.slow
def test_a_project_for_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(["new", str(tmp_path / "mine"), "--kind", "method"]) == 0
    play(monkeypatch, tmp_path / "mine")


def test_the_method_is_the_one_that_the_documentation_explains() -> None:
    root = Path(__file__).parents[2]
    template = root / "src" / "fedspray" / "cli" / "templates" / "method" / "method.py"
    assert f'```python title="mypkg/mod.py"\n{template.read_text()}```' in (root / "docs" / "extend.md").read_text()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    assert run_command(["new", str(tmp_path / "mine")]) == 2
    assert run_command(["new", str(tmp_path / "other"), "--kind", "poem"]) == 2
    assert "data, method" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
