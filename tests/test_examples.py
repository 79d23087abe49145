"""Every example runs as it stands, with public names only, and notebooks print what they show.

Cells are joined into a script: a kernel to run them would bring 30 packages and 90 MB.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_python_docs import NUMBER, private_names

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def code(file: Path) -> str:
    if file.suffix == ".py":
        return file.read_text()
    return "\n".join("".join(cell["source"]) for cell in cells(file)) + "\n"


def run(script: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name, *words],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def beside_banks(tmp_path: Path) -> Path:
    """A copy of the folder, so that nothing is written into it."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    return tmp_path / "examples"


@pytest.mark.parametrize("file", [*SCRIPTS, *NOTEBOOKS], ids=lambda file: file.name)
def test_examples_are_short_and_made_of_public_names(file: Path) -> None:
    assert private_names(code(file)) == []
    if file.suffix == ".py":
        assert len(file.read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_runs_and_writes_where_it_is_told(script: Path, beside_banks: Path) -> None:
    before = {file for file in beside_banks.rglob("*") if "__pycache__" not in file.parts}
    assert run(beside_banks / script.name, "written")
    after = {file for file in beside_banks.rglob("*") if "__pycache__" not in file.parts}
    written = beside_banks / "written"
    assert all(file == written or written in file.parents for file in after - before)
    assert len(after - before) > 3


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_prints_what_it_shows(notebook: Path, beside_banks: Path) -> None:
    script = beside_banks / "notebooks" / "cells.py"
    script.write_text(code(notebook))
    printed = run(script)
    outputs = [output for cell in cells(notebook) for output in cell["outputs"]]
    shown = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    assert re.sub(NUMBER, "0", printed) == re.sub(NUMBER, "0", shown)
    now, then = ([float(n.replace("−", "-")) for n in re.findall(NUMBER, text)] for text in (printed, shown))
    assert now == pytest.approx(then, abs=5)  # other processors round differently


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_has_been_run_from_top_to_bottom(notebook: Path) -> None:
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert not [output for cell in cells(notebook) for output in cell["outputs"] if output["output_type"] == "error"]


def test_the_overview_lists_every_example() -> None:
    overview = (EXAMPLES / "README.md").read_text()
    assert all(f"]({file.relative_to(EXAMPLES)})" in overview for file in [*SCRIPTS, *NOTEBOOKS])
