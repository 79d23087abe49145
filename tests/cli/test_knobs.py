"""A knob of an experiment is a flag of every command that it concerns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedspray.cli import document
from fedspray.cli import knobs as flags
from fedspray.cli.document import commands
from fedspray.cli.main import app, run_command
from fedspray.cli.pages import usage
from fedspray.errors import InputError
from fedspray.experiment import DATA, TRAINING, knobs

RUN = ["run", "plan", "deploy local"]
STUDY = ["compare", "sweep", "tune"]
FEDERATION = ["inspect", "partition"]
AGREEMENT = ["deploy init", "deploy amend"]


def flags_of(command: str) -> set[str]:
    """The flags of a command."""
    return {name for each in document.flags_of(command) for name in each.names if name.startswith("--")}


@pytest.mark.parametrize("command", [*RUN, *STUDY, *FEDERATION])
def test_commands_on_data_have_every_knob_of_the_data(command: str) -> None:
    assert {knob.flag for knob in knobs().values() if knob.part == DATA} <= flags_of(command)


@pytest.mark.parametrize("command", [*RUN, *AGREEMENT, *STUDY])
def test_commands_that_train_have_every_knob_of_a_run(command: str) -> None:
    missing = {"tune": {"--seed", "--seeds"}, "compare": {"--seed"}, "sweep": {"--seed"}}.get(command, set())
    wanted = {knob.flag for knob in knobs().values() if knob.part == TRAINING}
    assert wanted - flags_of(command) == missing


@pytest.fixture
def new_knobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A knob of the data and one of a run that nobody has heard of."""
    known = knobs()
    data = replace(known["clients"], name="new_data", metavar="D", help="New in the data.")
    run = replace(known["rounds"], name="new_run", metavar="R", help="New in a run.")
    monkeypatch.setattr(flags, "knobs", lambda: {**known, "new_data": data, "new_run": run})
    made: Any = flags.__getattr__
    made.cache_clear()
    yield
    made.cache_clear()


@pytest.mark.usefixtures("new_knobs")
@pytest.mark.parametrize("command", [*RUN, *STUDY, *FEDERATION, *AGREEMENT])
def test_a_new_knob_is_a_flag_at_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*command.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert ("--new-data D" in page) == (command not in AGREEMENT)
    assert ("--new-run R" in page) == (command not in FEDERATION)


def test_what_was_not_given_is_left_out() -> None:
    given = {"rounds": "3", "keep_split": True, "dataset": ["banks", "pubmed"], "set": ["lr=0.1", "hidden = 8"]}
    typed = {"rounds": 3, "keep_split": True, "dataset": ["banks", "pubmed"], "set": {"lr": "0.1", "hidden": "8"}}
    assert flags.values(given) == typed
    assert flags.values(None) == {}


@pytest.mark.parametrize("given", [{"rounds": "0"}, {"rounds": "2.5"}, {"set": ["lr"]}, {"backbone_of": ["=gcn"]}])
def test_values_that_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(given)).replace("_", "[_-]")):
        flags.values(given)


def test_flags_of_nothing_else_are_made() -> None:
    with pytest.raises(AttributeError):
        flags.__getattr__("Nonsense")


def test_numbers_are_read_strictly() -> None:
    """cyclopts takes 2.5 for a whole number: numbers need `flags.whole`, or a knob, which is a text up to then."""
    for command in commands():
        for each in document.flags_of(command):
            assert "int" not in str(each.hint) or each.parameter.converter is not None, f"{command} {each.name}"


def test_usage_names_what_must_be_given() -> None:
    assert usage(app, ["run"]) == "fedspray run [OPTIONS] [FILE.toml]"
    assert usage(app, ["report"]) == "fedspray report [OPTIONS] DIR…"
    assert usage(app, ["sweep"]) == "fedspray sweep --vary NAME=A,B,… [OPTIONS] [FILE.toml]"
    assert usage(app, ["deploy"]) == "fedspray deploy COMMAND [OPTIONS]"


def test_every_key_of_an_experiments_file_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("All keys: "))
    assert set(re.findall(r"`(\w+)`", line.split(". ")[0])) == set(knobs())
