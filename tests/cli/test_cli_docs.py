"""`docs/cli.md` describes every command, every flag and every JSON key; tables of flags are made from the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scripted import scripted

from benchmarks import measure
from fedspray.cli.document import commands, document
from fedspray.cli.main import run_command

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("name", commands())
def test_every_command_is_documented(name: str) -> None:
    assert f"## fedspray {name}\n\n<!-- from the code: {name} -->\n" in DOCUMENT


def test_tables_of_flags_are_those_of_the_code() -> None:
    """`make docs` makes them again."""
    assert document(DOCUMENT) == DOCUMENT


def test_the_table_of_what_leaves_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    assert document(page) == page
    assert "|  |\n" not in page  # every field says what it reveals


def test_a_flag_is_in_the_table_of_its_command() -> None:
    part = document("<!-- from the code: deploy init -->\n<!-- end -->")
    assert "fedspray deploy init [OPTIONS] PROJECT" in part
    assert "| `--port PORT` | The server's port. | 8002 |" in part
    assert "Also the flags of [Training](#training)." in part
    assert "| `--rounds R` | Number of rounds. | 300 | at least 1 |" in document(
        "<!-- from the code: Training -->\n<!-- end -->"
    )


FREE = {"values", "chosen", "settings", "presets", "federation", "backbone_of", "models", "uplink", "downlink"}
FREE |= {"versions", "labels", "backbones"}
"""Objects whose keys are names of settings, clients, tensors or packages."""
BY_NAME = {"clients", "by_homophily", "recall_by_budget", "fates", "against_local"}
"""Objects whose keys are names, and whose values have documented keys."""


def keys(content: Any) -> set[str]:
    """Every documented key of an object and of the objects in it."""
    if isinstance(content, list):
        return set().union(*map(keys, content))
    if not isinstance(content, dict):
        return set()
    found = set(content)
    for key, value in content.items():
        named = key in BY_NAME and isinstance(value, dict)
        found |= set() if key in FREE else keys(list(value.values()) if named else value)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["algorithms"],
        ["datasets"],
        ["run", "--dataset", "banks", "--nodes", "200", "--rounds", "1"],
        ["inspect", "--dataset", "banks", "--nodes", "200"],
        ["partition", "--dataset", "banks", "--nodes", "200", "--out", "banks"],
        [
            "compare",
            "--nodes",
            "200",
            "--rounds",
            "1",
            "--jobs",
            "1",
            "--algorithm",
            "local",
            "--algorithm",
            "fedspray",
        ],
        ["sweep", "--nodes", "200", "--rounds", "1", "--jobs", "1", "--vary", "distill_weight=1,2"],
        ["bench", "--banks", "100/2", "--banks", "200/2", "--reference", "reference.py"],
        ["reproduce", "proposition1", "--quick"],
        ["tune", "--nodes", "200", "--rounds", "1", "--jobs", "1", "--grid", "distill_weight=1,2"],
    ],
)
def test_every_json_key_is_documented(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "Player", scripted())
    Path("reference.py").touch()
    assert run_command([*arguments, "--json"]) == 0
    section = DOCUMENT.split(f"## fedspray {arguments[0]}\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    assert keys(json.loads(capsys.readouterr().out)) - documented == set()
