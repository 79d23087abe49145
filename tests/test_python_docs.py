"""docs/python.md keeps its promises, and code in the documentation needs public names only."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedspray as fs
from fedspray import testing

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = (ROOT / "docs" / "python.md").read_text()
NUMBER = r"[+−-]?\d+(?:\.\d+)?"


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}(?: title=[^\n]*)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def private_names(code: str) -> list[str]:
    """What a piece of code takes from this package, without being public."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedspray":
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("fedspray.")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fs":
            found.append(f"fedspray.{node.attr}")
    return [name for name in found if name.removeprefix("fedspray.") not in fs.__all__]


def test_private_names_are_found() -> None:
    lines = ["import fedspray as fs", "from fedspray.nn import ops", "import fedspray.runs.run", "fs.run(fs.Grap)"]
    code = "\n".join([*lines, "from fedspray import Graph"])
    assert sorted(private_names(code)) == ["fedspray.Grap", "fedspray.nn.ops", "fedspray.runs.run"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_in_the_documentation_is_made_of_public_names(page: Path) -> None:
    assert [name for code in blocks(page.read_text()) for name in private_names(code)] == []


@pytest.mark.slow
def test_the_fifteen_lines_print_what_the_page_says(tmp_path: Path) -> None:
    code, expected = blocks(PYTHON)[0], blocks(PYTHON, "text")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert re.sub(NUMBER, "0", done.stdout) == re.sub(NUMBER, "0", expected)
    printed, promised = (
        [float(n.replace("−", "-")) for n in re.findall(NUMBER, text)] for text in (done.stdout, expected)
    )
    assert printed == pytest.approx(promised, abs=5)  # other processors round differently
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.html").stat().st_size > 10**6
    assert isinstance(fs.load(tmp_path / "runs" / "plus"), fs.RunResult)
    assert isinstance(fs.load(tmp_path / "studies" / "mine"), fs.ComparisonResult)


def test_the_page_lists_every_function_and_rule() -> None:
    functions = {name for name in fs.__all__ if getattr(getattr(fs, name), "__module__", "") == "fedspray.api"}
    assert functions <= set(re.findall(r"`fs\.(\w+)\(", PYTHON))
    rules = {rule.__name__ for rule in testing.RULES} | {"described", "presets_run"}
    assert rules == set(
        re.findall(r"^\| `(\w+)` \| [a-z`]", PYTHON.split("rule that is broken")[1], flags=re.MULTILINE)
    )


def test_the_algorithm_of_the_documentation_keeps_every_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in blocks((ROOT / "docs" / "extend.md").read_text()) if "class FedAvgM" in block]
    (tmp_path / "fedavgm_of_the_docs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("fedavgm_of_the_docs").FedAvgM
    fs.testing.check_algorithm(own, backbone=["gcn", "sgc"])
    federation = testing.ragged_federation()
    still, moving = (fs.run(federation, own(momentum=m), rounds=3, hidden=8) for m in (0.0, 0.5))
    fedavg = fs.run(federation, fs.FedAvg(), rounds=3, hidden=8)
    shown = [f"{key}" for key in fedavg.models["client_00"].snapshot.message]
    for key in shown:
        ours, theirs = (r.models["client_00"].snapshot.message[key] for r in (still, fedavg))
        assert ours.allclose(theirs, atol=1e-6)  # without momentum it is FedAvg
    assert moving.summary()["models"] != still.summary()["models"]
