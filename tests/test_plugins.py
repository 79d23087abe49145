from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedspray import plugins
from fedspray.errors import InputError, unknown

PACKAGE = "toy_plugins"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A plug-in package with a base, two plug-ins and a private module, on the import path."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    files = {
        "__init__": "",
        "base": "class Base: ...",
        "_shared": "raise RuntimeError('never imported')",
        "red": f"from {PACKAGE}.base import Base\nclass Red(Base): ...",
        "light_blue": f"from {PACKAGE}.base import Base\nclass LightBlue(Base): ...",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # addresses outside add the current folder
    yield PACKAGE
    for module in [name for name in sys.modules if name.split(".")[0] in (PACKAGE, "outside")]:
        del sys.modules[module]


def load(package: str, name: str) -> type:
    base = importlib.import_module(f"{package}.base").Base
    return plugins.load_class(package, "colour", name, base)


def test_the_folder_is_the_registry(package: str) -> None:
    assert plugins.names(package) == ["light-blue", "red"]
    assert load(package, "light-blue").__name__ == "LightBlue"


def test_an_unknown_name_lists_the_choices_and_the_nearest(package: str) -> None:
    with pytest.raises(InputError) as refusal:
        load(package, "rd")
    assert str(refusal.value) == "unknown colour 'rd': choose one of light-blue, red; did you mean 'red'?"


@pytest.mark.parametrize("name", ["base", "_shared", "", "red.Red"])
def test_what_is_no_plug_in_is_not_reached(package: str, name: str) -> None:
    with pytest.raises(InputError, match="unknown colour"):
        load(package, name)


@pytest.mark.parametrize("name", [":", ":Red", "outside:", ".outside:Red", "out side:Red"])
def test_addresses_that_are_none_are_refused(package: str, name: str) -> None:
    with pytest.raises(InputError, match=r"package\.module:Name"):
        load(package, name)


@pytest.mark.parametrize(
    ("text", "sentence"), [("class (", "SyntaxError: "), ("raise ValueError('no licence')", "ValueError: no licence")]
)
def test_errors_in_code_of_the_users_own_are_theirs(package: str, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "outside.py").write_text(text)
    with pytest.raises(InputError) as refusal:
        load(package, "outside:Red")
    assert f"colour 'outside:Red': the module 'outside' cannot be imported ({sentence}" in str(refusal.value)


def test_a_module_with_two_classes_is_a_bug_of_ours(package: str) -> None:
    text = f"from {PACKAGE}.base import Base\nclass A(Base): ...\nclass B(Base): ..."
    (Path(PACKAGE) / "double.py").write_text(text)
    with pytest.raises(TypeError, match="exactly one Base"):
        load(package, "double")


def test_code_outside_is_reached_by_its_address(package: str) -> None:
    Path("outside.py").write_text(
        f"from {PACKAGE}.base import Base\nclass Mine(Base): ...\nclass Other: ...\nnumber = 3"
    )
    assert load(package, "outside:Mine").__name__ == "Mine"
    with pytest.raises(InputError, match="no class 'number'"):
        load(package, "outside:number")
    with pytest.raises(InputError, match="colour 'outside:Other'"):
        load(package, "outside:Other")
    with pytest.raises(InputError, match="module 'nowhere' cannot"):
        load(package, "nowhere:Mine")


def test_no_hint_where_nothing_is_near() -> None:
    assert str(unknown("colour", "xyz", ["red"])) == "unknown colour 'xyz': choose one of red"
