"""`bench` and `reproduce` are in the repository alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = "import sys; from fedspray.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as an installation has it: nothing beside it."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(ROOT / "src" / "fedspray", folder / "fedspray", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def call(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(installed)!r}); {START}", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "folder"), [("bench", "benchmarks"), ("reproduce", "reproduction"), ("bench --help", "benchmarks")]
)
def test_an_installation_says_where_the_command_is(command: str, folder: str, installed: Path, tmp_path: Path) -> None:
    done = call(installed, tmp_path, *command.split())
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"the folder {folder} " in done.stderr


def test_an_installation_does_not_list_them(installed: Path, tmp_path: Path) -> None:
    done = call(installed, tmp_path, "--help")
    assert done.returncode == 0
    assert "demo " in done.stdout
    assert "bench " not in done.stdout
    assert "reproduce " not in done.stdout


def test_in_a_clone_an_installation_has_them(installed: Path) -> None:
    done = call(installed, ROOT, "reproduce", "--help")
    assert done.returncode == 0, done.stderr
    assert "proposition1" in done.stdout
