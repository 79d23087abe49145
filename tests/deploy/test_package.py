"""The same files have the same hashes, however they were installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedspray.deploy.package import differences, digest, installed_files, shortened

ROOT = Path(__file__).parents[2]


def test_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "sub" / "__pycache__").mkdir(parents=True)
    (tmp_path / "sub" / "a.py").write_text("abc")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "sub" / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    # printf abc | sha256sum, and of nothing
    assert installed_files(tmp_path) == {"b.csv": "e3b0c44298fc1c14", "sub/a.py": "ba7816bf8f01cfea"}


def test_a_copy_elsewhere_has_the_same_hash(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "fedspray", tmp_path / "copy")
    assert digest(installed_files(tmp_path / "copy")) == digest(installed_files())
    with (tmp_path / "copy" / "deploy" / "site" / "handler.py").open("a") as stream:
        stream.write("\n")
    assert differences(installed_files(), installed_files(tmp_path / "copy")) == ["deploy/site/handler.py is changed"]


@pytest.mark.slow
def test_a_wheel_has_the_same_hash(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "src", source / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    shutil.copytree(ROOT / "experiments", source / "experiments")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    made = subprocess.run([*build, str(tmp_path), str(source)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("fedspray-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert differences(installed_files(), installed_files(tmp_path / "installed" / "fedspray")) == []


@pytest.mark.parametrize(("count", "text"), [(1, "0"), (2, "0, 1"), (3, "0, 1 and 1 more")])
def test_long_lists_are_cut(count: int, text: str) -> None:
    assert shortened([str(index) for index in range(count)], most=2) == text
