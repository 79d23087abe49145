"""The documentation as a site, and the page that a newcomer copies from."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
GET_STARTED = (ROOT / "docs" / "get-started.md").read_text()


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for item in (nav.values() if isinstance(nav, dict) else nav) for leaf in leaves(item)]


def test_the_menu_has_every_page_once() -> None:
    menu = leaves(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    assert sorted(menu) == sorted(str(page.relative_to(ROOT / "docs")) for page in DOCS)


@pytest.mark.parametrize("page", ["SECURITY.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in DOCS)])
def test_files_and_tests_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?<![\w/])(tests/[\w/]+\.py)", text)) | set(re.findall(r"`(deploy/[\w/]+\.py)`", text))
    places = (ROOT, ROOT / "src" / "fedspray")
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()
    if page == "SECURITY.md":
        tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
        assert {name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests} == set()


STILTED = re.compile(
    r"said in one sentence|cannot be had|figures of the paper again|as ever\b|the one of before|none of them does not"
    r"|breaks TLS open|which are others|needed are\b|has no meaning to|\banew\b|from memory\b|on the telephone"
    r"|do(es)? not go with|tiny_numbers_are_zero|\bForms\b|\bDoor\b|\boccupant|\bchoice\.py|\bparcel|check_room"
)
"""Phrases and names that sounded translated, and that nobody should bring back."""


def test_no_stilted_phrase_comes_back() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in listed if not name.startswith(("tests/", "results/"))]
    texts = [
        ROOT / name for name in ours if Path(name).suffix in (".md", ".py", ".pyi", ".toml", ".ipynb", ".html", ".js")
    ]
    assert [
        f"{file.relative_to(ROOT)}: {found[0]}" for file in texts if (found := STILTED.search(file.read_text()))
    ] == []


@pytest.mark.slow
def test_get_started_runs_as_it_stands(tmp_path: Path) -> None:
    """Every command but the set-up, in an empty folder; the figures that the page names are printed."""
    setup, *commands = re.findall(r"^```sh\n(.*?)^```", GET_STARTED, flags=re.DOTALL | re.MULTILINE)
    assert "make setup" in setup
    (python,) = re.findall(r"^```python\n(.*?)^```", GET_STARTED, flags=re.DOTALL | re.MULTILINE)
    script = "\n".join(["set -e", *commands, f"python - <<'END'\n{python}END"])
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for figure in ("81.11", "30.00", "87.28", "71.14"):
        assert figure in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10**6
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1501
