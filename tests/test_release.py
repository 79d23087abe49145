"""What is handed out: the wheel, the source distribution, and the files that tell strangers about the project."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedspray as fs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions, built from what git knows."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), source], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (notes,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA"))
        (scripts,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    listed = subprocess.run(["git", "ls-files", "src/fedspray"], cwd=built / "source", stdout=-1, text=True, check=True)
    assert names == {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    assert {"fedspray/py.typed", "fedspray/report/page/page.html"} <= names
    metadata = email.message_from_string(notes)
    assert (metadata["Name"], metadata["Version"]) == ("fedspray", fs.__version__)
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    needed = {re.split(r"[^\w-]", line)[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {re.split(r"[^\w-]", line)[0] for line in PROJECT["dependencies"]}
    assert "fedspray = fedspray.cli.main:entry_point" in scripts


@pytest.mark.slow
def test_the_source_distribution_builds_the_wheel_and_has_no_tests(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"src"}


def test_the_version_is_written_once() -> None:
    assert fs.__version__ == PROJECT["version"]
    written = [
        file
        for file in (ROOT / "src").rglob("*.py")
        if re.search(rf'version.*["\']{re.escape(PROJECT["version"])}', file.read_text())
    ]
    assert written == []


def test_the_changelog_is_in_order() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert [date for _, date in headings[1:]] == sorted((date for _, date in headings[1:]), reverse=True)
    kinds = set(re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_is_of_this_package_and_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format asks for
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert paper["doi"] in (ROOT / "README.md").read_text()


def test_forms_and_hooks_are_well_formed() -> None:
    for form in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")):
        content: dict[str, Any] = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(content), form
        ids = [part["id"] for part in content["body"] if part["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        assert repository["repo"] == "local"  # nothing is downloaded
        for hook in repository["hooks"]:
            assert hook["language"] == "system"
            assert hook["entry"].startswith(".venv/bin/")


def test_the_container_recipe_copies_what_is_there() -> None:
    recipe = (ROOT / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", recipe, re.MULTILINE) for word in line.split()[:-1]]
    sent = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert set(copied) == sent
    assert all((ROOT / name).exists() for name in copied)
