from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedspray.data.federation import Task
from fedspray.deploy.agreement import FILE, Agreement, check_name
from fedspray.errors import InputError
from fedspray.runs.settings import RunSettings

TASK = Task(5, 2, ("good", "bad"))
NAMED = Task(5, 2, ("good", "bad"), tuple("abcde"))


def agree(sites: tuple[str, ...] = ("north", "south"), **settings: Any) -> Agreement:
    return Agreement.between("fraud", sites, TASK, RunSettings(**settings))


def test_what_is_written_is_read_and_has_the_same_fingerprint(tmp_path: Path) -> None:
    made = agree(algorithm="fedavg", values={"rounds": 3}, seeds=(0, 1))
    made.save(tmp_path)
    read = Agreement.load(tmp_path)
    assert read.fingerprint() == made.fingerprint() == Agreement.load(tmp_path / FILE).fingerprint()
    assert read.settings.seeds == (0, 1)
    assert read.roster.task == TASK
    assert read.check_version() is read


def test_names_of_features_are_agreed_on(tmp_path: Path) -> None:
    made = Agreement.between("fraud", ("north", "south"), NAMED, RunSettings())
    made.save(tmp_path)
    assert Agreement.load(tmp_path).roster.task == NAMED
    assert Agreement.load(tmp_path).fingerprint() == made.fingerprint()
    assert "feature_names" not in agree().to_json()  # agreements without them keep their fingerprint


@pytest.mark.parametrize(
    "other",
    [
        agree(algorithm="fedavg"),
        agree(values={"rounds": 4}),
        agree(sites=("south", "north")),
        agree(seeds=(1,)),
        Agreement.between("fraud", ("north", "south"), Task(6, 2, None), RunSettings()),
        Agreement.between("fraud", ("north", "south"), NAMED, RunSettings()),
    ],
)
def test_every_change_changes_the_fingerprint(other: Agreement) -> None:
    assert other.fingerprint() != agree().fingerprint()
    assert agree().changes(other)


def test_changes_are_named() -> None:
    assert agree().changes(agree(algorithm="fedavg")) == ["run.algorithm: 'fedspray' → 'fedavg'"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"algorithm": "mypkg.mod:Own"}, "code from outside"),
        ({"backbone": "mypkg.mod:Own"}, "code from outside"),
        ({"backbone_of": {"north": "mypkg.mod:Own"}}, "code from outside"),
        ({"values": {"rounds": 0}}, "rounds is 0"),
        ({"values": {"min_clients": 3}}, "only 2 clients"),
        ({"backbone_of": {"east": "mlp"}}, "unknown client 'east'"),
        ({"sites": ("north", "north")}, "two sites are called 'north'"),
        ({"sites": ("../north", "south")}, "not a site name"),
    ],
)
def test_bad_agreements(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        agree(**wrong)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 9}, "has format 9"),
        ({"sites": None}, "not a complete agreement"),
        ({"run": {"seeds": [0], "colour": "red"}}, "not a complete agreement"),
    ],
)
def test_bad_files(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    (tmp_path / FILE).write_text(json.dumps({**agree().to_json(), **change}))
    with pytest.raises(InputError, match=complaint):
        Agreement.load(tmp_path)


def test_another_version_is_refused_when_used_but_can_be_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({**agree().to_json(), "fedspray": "0.0.1"}))
    old = Agreement.load(tmp_path)
    with pytest.raises(InputError, match=r"for fedspray 0\.0\.1"):
        old.check_version()


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "ä", "x" * 64, "a.b"])
def test_names_that_are_unsafe_in_paths(name: str) -> None:
    with pytest.raises(InputError, match="is not a run name"):
        check_name("run", name)
