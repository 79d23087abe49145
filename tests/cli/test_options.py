"""Commands hand over their arguments by name: one that nobody takes would be a flag without effect."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedspray.cli import options, study
from fedspray.cli.compare import compare
from fedspray.cli.deploy import amend, init, local
from fedspray.cli.plan import plan
from fedspray.cli.run import run
from fedspray.cli.sweep import sweep
from fedspray.cli.tune import tune
from fedspray.experiment import knobs

EXPERIMENT = {*knobs(), "settings"}
STUDY = {*study._single(), *study._LISTS, "settings", *(field.name for field in fields(study.Work))}

USED_BY_THE_COMMAND: dict[Callable[..., Any], set[str]] = {
    run: {"config", "threads", "out", "resume", "checkpoint_every", "as_json"},
    plan: {"config", "threads", "as_json"},
    local: {"out", "threads", "grace", "as_json"},
    init: {"folder", "sites", "host", "port", "features", "classes", "name", "grace", "csr", "make_keys", "valid_days"},
    amend: {"folder", "yes"},
    compare: {"config", "bootstrap", "out", "as_json"},
    sweep: {"config", "vary", "out", "as_json"},
    tune: {"config", "grid", "tuning_seeds", "criterion", "trials", "out", "as_json"},
}


@pytest.mark.parametrize("command", USED_BY_THE_COMMAND, ids=lambda command: command.__name__)
def test_every_argument_is_taken_by_somebody(command: Callable[..., Any]) -> None:
    taken = STUDY if command in (compare, sweep, tune) else EXPERIMENT
    assert set(inspect.signature(command).parameters) - taken - USED_BY_THE_COMMAND[command] == set()


def test_every_key_of_an_experiments_file_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("All keys: "))
    assert set(re.findall(r"`(\w+)`", line.split(". ")[0])) == set(knobs())


def test_what_was_not_given_is_left_out() -> None:
    given = {"dataset": None, "rounds": 3, "keep_split": False, "settings": ["lr=0.1"], "output": object()}
    assert options.experiment_values(given) == {"rounds": 3, "set": {"lr": "0.1"}}
