"""Sealed files: what was changed is refused, whatever was changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspray import files
from fedspray.errors import InputError

CONTENT = {"name": "run", "scores": [0.25, 1e-9, None], "inner": {"text": "é\n"}}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), JSON))
def test_what_is_sealed_is_read_back(content: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(files.seal(content)))
    assert files.unseal(stored, "it") == json.loads(json.dumps(content))


def test_files_of_older_versions_have_no_seal(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(CONTENT))
    assert files.read_json(tmp_path / "old.json") == CONTENT


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    files.write_sealed(path, CONTENT)
    written = path.read_bytes()
    for place in range(len(written)):
        for bit in range(8):
            path.write_bytes(written[:place] + bytes([written[place] ^ (1 << bit)]) + written[place + 1 :])
            try:
                content = files.read_json(path)
            except InputError:
                continue
            assert content == CONTENT, (place, bit)  # white space became other white space


@pytest.mark.parametrize("change", ["lost", "swapped", "changed", "cut"])
def test_a_chain_without_one_of_its_lines_is_refused(change: str, tmp_path: Path) -> None:
    sealed: list[dict[str, Any]] = []
    for number in range(3):
        sealed.append(files.seal({"round": number}, sealed[-1]["seal"] if sealed else ""))
    lines = [json.dumps(entry) for entry in sealed]
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n".join(lines))
    assert files.read_chain(path, 3)[1] == [{"round": 0}, {"round": 1}, {"round": 2}]
    assert files.read_chain(path, 2)[1] == [{"round": 0}, {"round": 1}]
    others = {
        "lost": [lines[0], lines[2]],
        "swapped": [lines[1], lines[0], lines[2]],
        "changed": [lines[0], lines[1].replace("1", "7", 1), lines[2]],
        "cut": [lines[0], lines[1], lines[2][:-9]],
    }
    path.write_text("\n".join(others[change]))
    with pytest.raises(InputError, match=r"rounds\.jsonl"):
        files.read_chain(path, 3)


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with (
        files.only_writer(tmp_path),
        pytest.raises(InputError, match="in use"),
        files.only_writer(tmp_path),
    ):
        pass
    with files.only_writer(tmp_path):  # free again
        pass


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="not readable JSON"):
        files.read_json(tmp_path / "deep.json")
