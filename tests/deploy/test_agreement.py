from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedspray.data.federation import Task
from fedspray.deploy.agreement import FILE, Agreement, check_name
from fedspray.deploy.package import digest, installed_files
from fedspray.errors import InputError
from fedspray.experiment import RunSettings

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
    assert agree().changes(agree(algorithm="fedavg"))[-1] == "run.algorithm: 'fedspray2' → 'fedavg'"


def test_other_code_is_refused_and_named(tmp_path: Path) -> None:
    made = agree()
    assert made.code == installed_files()
    others = dict(made.code)
    others |= {"deploy/site/handler.py": "0123456789abcdef", "deploy/more.py": "0123456789abcdef"}
    del others["engine/worker.py"]
    other = replace(made, code=others)
    assert other.fingerprint() != made.fingerprint()
    other.save(tmp_path)
    with pytest.raises(
        InputError,
        match=r"more\.py is missing.*handler\.py is changed.*worker\.py is new",
    ):
        Agreement.load(tmp_path).check_version()
    short = {digest(each.code)[:12] for each in (made, other) if each.code is not None}
    hashes, files = other.changes(made)
    assert set(re.findall("[0-9a-f]{12}", hashes)) == short
    assert files == "code: deploy/more.py is missing, deploy/site/handler.py is changed, engine/worker.py is new"
    assert sum(line.startswith("code") for line in made.lines()) == 1


def test_a_link_from_outside_is_bound_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "outsiders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    text = """
from dataclasses import dataclass
import fedspray as fs

@dataclass(frozen=True, kw_only=True)
class Plain(fs.Link):
    summary = "changes nothing"
    reveals = ""
"""
    (package / "plain.py").write_text(text)
    made = agree(link=("outsiders.plain:Plain",))
    assert made.outside == {"outsiders.plain": hashlib.sha256(text.encode()).hexdigest()[:16]}
    assert made.leaves()["link outsiders.plain:Plain"] == "changes nothing"
    assert replace(made, coordinator="k").outside == made.outside
    made.save(tmp_path)
    assert Agreement.load(tmp_path).fingerprint() == made.fingerprint()
    content = made.to_json()
    monkeypatch.delitem(sys.modules, "outsiders.plain")
    for other in (text + "raise SystemError", None):  # what is not agreed on is not even imported
        (package / "plain.py").unlink() if other is None else (package / "plain.py").write_text(other)
        with pytest.raises(InputError, match=r"outsiders\.plain"):
            Agreement.load(tmp_path)
    (package / "plain.py").write_text(text)
    for wrong in ({}, {"outsiders.plain": "0123456789abcdef"}, {**content["outside"], "os": "0123456789abcdef"}):
        with pytest.raises(InputError, match="not the agreed"):
            Agreement.from_json({**content, "outside": wrong}, "here")
    assert "outsiders.plain" not in sys.modules


@pytest.mark.parametrize("name", ["sys:Own", "nowhere:Own", "nowhere.at.all:Own", "os.path:Own", "..:Own", ":Own"])
def test_a_link_that_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="not installed here"):
        agree(link=(name,))


def test_an_agreement_without_code_is_read(tmp_path: Path) -> None:
    content = agree().to_json()
    del content["code"]
    (tmp_path / FILE).write_text(json.dumps(content))
    old = Agreement.load(tmp_path).check_version()
    assert old.code is None
    assert old.to_json() == content, "its fingerprint stays"
    assert len(old.changes(agree())) == 1


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"algorithm": "mypkg.mod:Own"}, "code from outside"),
        ({"backbone": "mypkg.mod:Own"}, "code from outside"),
        ({"backbone_of": {"north": "mypkg.mod:Own"}}, "code from outside"),
        ({"values": {"rounds": 0}}, "rounds is 0"),
        ({"values": {"min_clients": 3}}, "only 2 clients"),
        ({"backbone_of": {"east": "mlp"}}, "unknown client 'east'"),
        ({"sites": ("north", "north")}, "called 'north'"),
        ({"sites": ("../north", "south")}, "not a site"),
    ],
)
def test_bad_agreements(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        agree(**wrong)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 9}, "has format 9"),
        ({"sites": None}, "sites is None: .* list"),
        ({"sites": [1, 2]}, r"sites\.0 is 1: .* string"),
        ({"sites": []}, "names no site"),
        ({"sites": ["north", "north"]}, "two sites are called 'north'"),
        ({"data": 7}, "data is 7: .* dictionary"),
        ({"fedspray": 1}, "fedspray is 1: .* string"),
        ({"num_features": "32"}, "num_features is '32': .* integer"),
        ({"num_features": 0}, "num_features is 0, but must be a whole number from 1 to 10,000,000"),
        ({"num_features": 10**20}, "num_features is 100000000000000000000, but must be"),
        ({"num_features": True}, "num_features is True: .* integer"),
        ({"num_classes": -1}, "num_classes is -1, but must be a whole number"),
        ({"num_classes": 3}, "num_classes is 3, but there are 2 names"),
        ({"class_names": [0, 1]}, r"class_names\.0 is 0: .* string"),
        ({"code": ["a.py"]}, "code is .* dictionary"),
        ({"code": {"a.py": 1}}, r"code\.a\.py is 1: .* string"),
        ({"coordinator": 1}, "coordinator is 1: .* string"),
        ({"run": {}}, r"run\.seeds is missing"),
        ({"run": {"seeds": [0], "values": 5}}, r"run\.values is 5: .* dictionary"),
        ({"run": {"seeds": [0], "algorithm": 3}}, r"run\.algorithm is 3: .* string"),
        ({"run": {"seeds": [0], "backbone_of": {"north": 3}}}, r"run\.backbone_of\.north is 3: .* string"),
        ({"run": {"seeds": [0], "dtype": "nn"}}, "dtype is 'nn', but must be float32 or float64"),
        ({"run": {"seeds": ["x"]}}, r"run\.seeds\.0 is 'x': .* integer"),
        ({"run": {"seeds": [0], "values": {"rounds": []}}}, r"rounds is \[\], but must be a whole number"),
        ({"run": {"seeds": [0], "colour": "red"}}, "not a complete agreement"),
    ],
)
def test_bad_files(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    (tmp_path / FILE).write_text(json.dumps({**agree().to_json(), **change}))
    with pytest.raises(InputError, match=complaint) as refusal:
        Agreement.load(tmp_path)
    assert str(tmp_path / FILE) in str(refusal.value)


def test_something_is_missing(tmp_path: Path) -> None:
    content = agree().to_json()
    del content["class_names"]
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match="class_names is missing"):
        Agreement.load(tmp_path)


def test_another_version_is_refused_when_used_but_can_be_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({**agree().to_json(), "fedspray": "0.0.1"}))
    old = Agreement.load(tmp_path)
    with pytest.raises(InputError, match=r"for fedspray 0\.0\.1"):
        old.check_version()


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "ä", "x" * 64, "a.b"])
def test_names_that_are_unsafe_in_paths(name: str) -> None:
    with pytest.raises(InputError, match="not a run"):
        check_name("run", name)
