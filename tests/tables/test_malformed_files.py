"""A thousand files with something wrong: one sentence with file and line each, and nothing half-written."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import CHANGES, SCHEMA, Content, sound, which

from fedspray.errors import InputError
from fedspray.tables import asking


def attempt(folder: Path, content: Content) -> None:
    (folder / "schema.toml").write_text(SCHEMA)
    for name, text in content.items():
        (folder / f"{name}.csv").write_bytes(text)
    asking.make(asking.Files(folder / "schema.toml"), folder / "out", None, strict=True)


def check(data: st.DataObject) -> None:
    content = sound()
    name, line = data.draw(st.sampled_from(CHANGES))(data, content)
    folder = Path(tempfile.mkdtemp())
    try:
        with pytest.raises(InputError) as caught:
            attempt(folder, content)
        said = str(caught.value)
        assert f"{name}.csv" in said
        assert "\n" not in said
        if line is not None:
            assert re.search(rf"{name}\.csv, line {line}: ", said)
        assert {file.name for file in folder.iterdir()} == {"schema.toml", "nodes.csv", "edges.csv"}
    finally:
        shutil.rmtree(folder)


quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
thousand = settings(quick, max_examples=1_000)


@quick
@given(st.data())
def test_some_malformed_files(data: st.DataObject) -> None:
    check(data)


@pytest.mark.nightly
@thousand
@given(st.data())
def test_a_thousand_malformed_files(data: st.DataObject) -> None:
    check(data)


@settings(quick, max_examples=15)
@given(st.data())
def test_bytes_changed_at_random_are_read_or_refused_in_a_sentence(data: st.DataObject) -> None:
    content = sound()
    name = which(data)
    raw = bytearray(content[name])
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    content[name] = bytes(raw)
    folder = Path(tempfile.mkdtemp())
    try:
        attempt(folder, content)
        assert (folder / "out" / "manifest.json").is_file()
    except InputError:
        assert not (folder / "out").exists()
    finally:
        shutil.rmtree(folder)


def test_the_files_are_sound_before(tmp_path: Path) -> None:
    attempt(tmp_path, sound())
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.parametrize("name", ["nodes", "edges"])
def test_a_folder_or_nothing_in_place_of_a_file(tmp_path: Path, name: str) -> None:
    content = sound()
    del content[name]
    with pytest.raises(InputError, match=rf"{name}.csv does not exist"):
        attempt(tmp_path, content)
    (tmp_path / f"{name}.csv").mkdir()
    with pytest.raises(InputError, match=rf"{name}.csv is a folder"):
        attempt(tmp_path, content)
