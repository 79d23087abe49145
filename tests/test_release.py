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


def test_a_site_installs_the_pinned_versions() -> None:
    lines = (ROOT / "requirements-site.txt").read_text().replace("\\\n", "").splitlines()
    rows = [re.fullmatch(r"(\S+)==(\S+)\s+--hash=sha256:([0-9a-f]{64})", line) for line in lines if line[0] != "#"]
    site = {row[1]: row[2].partition("+")[0] for row in rows if row is not None}
    assert len(site) == len(rows)  # each has a hash
    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    pinned = {name.lower().replace("_", "-"): version for name, version in pins}
    assert site == {name: pinned[name] for name in site}
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["site"], "nvflare"]
    assert {re.split(r"[^\w-]", each)[0].lower().replace("_", "-") for each in wanted} <= set(site)
    for heavy in ("flask", "sqlalchemy", "docker", "matplotlib", "plotly", "tensorboard", "pandas", "torch-geometric"):
        assert heavy not in site


def test_checksums_are_signed_and_change_is_found(tmp_path: Path) -> None:
    def run(*command: str, code: int = 0) -> None:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (code == 0), done.stderr

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.whl").write_bytes(b"a wheel")
    run("openssl", "genpkey", "-algorithm", "ed25519", "-out", "key.pem")
    run("openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "release.pub")
    run("make", "-C", str(ROOT), "sums", f"DIST={tmp_path}/out", f"SIGNING_KEY={tmp_path}/key.pem")
    assert (tmp_path / "out" / "SHA256SUMS").read_text().split()[1::2] == ["a.whl"]
    signature = ("-sigfile", "out/SHA256SUMS.sig", "-in", "out/SHA256SUMS")
    verify = ("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "release.pub", "-rawin", *signature)
    run(*verify)
    run("sh", "-c", "cd out && sha256sum --check SHA256SUMS")
    (tmp_path / "out" / "a.whl").write_bytes(b"another")
    run("sh", "-c", "cd out && sha256sum --check SHA256SUMS", code=1)
    run("make", "-C", str(ROOT), "sums", f"DIST={tmp_path}/out", "SIGNING_KEY=")  # new checksums, without the key
    assert not (tmp_path / "out" / "SHA256SUMS.sig").exists()


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
