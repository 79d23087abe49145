"""`docs/cli.md` describes every command, every flag and every JSON key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from scripted import scripted

from fedspray.bench import measure
from fedspray.cli.main import app, run_command

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def all_commands(group: Any, prefix: str = "") -> dict[str, Any]:
    """Every command by its full name; those of a group are named after it."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        full = f"{prefix}{name}"
        found |= all_commands(command, f"{full} ") if hasattr(command, "commands") else {full: command}
    return found


COMMANDS = all_commands(typer.main.get_command(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_is_documented(name: str) -> None:
    assert f"## fedspray {name}\n" in DOCUMENT
    flags = {flag for parameter in COMMANDS[name].params for flag in parameter.opts if flag.startswith("-")}
    missing = [flag for flag in flags if not re.search(rf"`{flag}\b", DOCUMENT)]
    assert missing == []


FREE = {"values", "chosen", "settings", "presets", "federation", "backbone_of", "models", "uplink", "downlink"}
FREE |= {"versions", "labels", "backbones"}
"""Objects whose keys are names of settings, clients, tensors or packages."""
BY_NAME = {"clients", "by_homophily", "recall_by_budget"}
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
