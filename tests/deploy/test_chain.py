"""A ledger that only grows: whatever is changed, removed, added or cut is found, and its first line named."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspray.deploy import chain, ledger
from fedspray.errors import InputError


def written(file: Path, count: int) -> list[str]:
    return [chain.append(file, {"number": number, "text": "ä\n"}) for number in range(count)]


def test_a_seal_is_the_hash_of_the_seal_before_and_the_line(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    first, second = chain.append(file, {"a": 1}), chain.append(file, {"b": [2.5]})
    assert first == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert second == hashlib.sha256(f'sha256:{first}{{"b": [2.5]}}'.encode()).hexdigest()
    assert json.loads(file.read_text().splitlines()[1]) == {"b": [2.5], "seal": f"sha256:{second}"}
    assert chain.verify(file) == {"lines": 2, "unsealed": 0, "cut_off": [], "head": second}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_any_change_of_a_byte_is_found(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "ledger"
    file.unlink(missing_ok=True)
    *_, last = written(file, 4)
    good = file.read_bytes()
    place = data.draw(st.integers(0, len(good) - 2), "place")  # the last is a newline that the next line would write
    other = data.draw(st.integers(11, 255).filter(lambda value: value != good[place]), "byte")
    file.write_bytes(good[:place] + bytes([other]) + good[place + 1 :])
    with pytest.raises(InputError) as found:
        chain.verify(file, [last])
    line = good[:place].count(b"\n") + 1
    may_look_cut_off = place >= good.rindex(b"\n", 0, -1)  # in the last line, or where it joins the one before
    assert f"line {line}," in str(found.value) or f"line {line + 1}," in str(found.value) or may_look_cut_off


def test_a_blank_is_a_byte_too(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    written(file, 2)
    file.write_bytes(file.read_bytes().replace(b": ", b":\t", 1))  # means the same in JSON
    with pytest.raises(InputError, match="line 1"):
        chain.verify(file)


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [([0, 2, 3], 2), ([1, 2, 3], 1), ([0, 2, 1, 3], 2), ([0, 1, 1, 2, 3], 3)],
    ids=["one is missing", "the first is missing", "two changed places", "one is there twice"],
)
def test_the_first_wrong_line_is_named(tmp_path: Path, lines: list[int], wrong: int) -> None:
    file = tmp_path / "ledger"
    written(file, 4)
    old = file.read_text().splitlines(keepends=True)
    file.write_text("".join(old[number] for number in lines))
    with pytest.raises(InputError, match=f"line {wrong}, is wrong"):
        chain.verify(file)


def test_lines_of_older_versions_are_covered_by_the_first_sealed_one(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    older = '{"run": "a"}\n{"run": "b"}\n{"ru'
    file.write_text(older)
    written(file, 2)
    found = chain.verify(file)
    assert (found["unsealed"], found["lines"], found["cut_off"]) == (3, 2, [])
    file.write_text(file.read_text().replace('"a"', '"x"'))
    with pytest.raises(InputError, match="line 4, is wrong"):
        chain.verify(file)


def test_a_line_that_a_crash_cut_off_breaks_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    written(file, 2)
    with file.open("a") as stream:
        stream.write('{"number": 2, "te')
    assert chain.verify(file)["cut_off"] == [3]
    head = chain.append(file, {"number": 3})
    assert chain.verify(file, [head]) == {"lines": 3, "unsealed": 0, "cut_off": [3], "head": head}
    file.write_text(file.read_text() + '{"number": 4}\n')
    with pytest.raises(InputError, match="line 5, is wrong"):
        chain.verify(file)


def test_long_lines_and_many_writers(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    chain.append(file, {"text": "x" * 3 * chain.BLOCK})
    code = "import sys; from pathlib import Path; from fedspray.deploy import chain\n"
    code += "for k in range(50): chain.append(Path(sys.argv[1]), {'k': k})"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    assert chain.verify(file)["lines"] == 151


def test_a_ledger_that_was_cut_does_not_have_what_was_kept_apart(tmp_path: Path) -> None:
    for number in range(3):
        ledger.write_event(tmp_path, "refused", "server", str(number))
    head = ledger.verify(tmp_path)["head"]
    lines = (tmp_path / ledger.LEDGER).read_text().splitlines(keepends=True)
    (tmp_path / ledger.LEDGER).write_text("".join(lines[:2]))
    with pytest.raises(InputError, match="was cut"):
        ledger.verify(tmp_path)
    (tmp_path / "state" / ledger.HEAD).unlink()  # the site hides this too: the coordinator knows it
    assert ledger.verify(tmp_path)["lines"] == 2
    with pytest.raises(InputError, match=head):
        ledger.verify(tmp_path, [head])
