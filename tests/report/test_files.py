from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedspray.errors import InputError
from fedspray.report.files import check_target, write_columns, write_file


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    write_file(target, "first")
    write_file(target, b"second")
    assert target.read_bytes() == b"second"
    assert [file.name for file in target.parent.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    write_file(target, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match=r"a\.txt cannot.*No space"):
        write_file(target, "new")
    assert target.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_is_readable_by_whom_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_targets_that_can_be_written_pass(tmp_path: Path) -> None:
    check_target(tmp_path / "a.PNG", (".png",), "--plot")
    check_target(tmp_path / "not" / "yet" / "a.png", (".png",), "--plot")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a.gif", "--plot {path} ends in '.gif', but must end in .png or .svg"),
        ("folder.png", "--plot {path} is a folder, but a file is needed"),
        ("file/a.png", "--plot {path} cannot be written: {tmp_path}/file is not a folder"),
    ],
)
def test_targets_that_cannot_be_written_are_refused(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as refusal:
        check_target(tmp_path / name, (".png", ".svg"), "--plot")
    assert str(refusal.value) == sentence.format(path=tmp_path / name, tmp_path=tmp_path)


def test_a_closed_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write anywhere
    with pytest.raises(InputError, match="no permission"):
        check_target(tmp_path / "a.png", (".png",), "--plot")


def test_columns_are_written_as_pandas_writes_them(tmp_path: Path) -> None:
    columns = {
        "node": ["a", 'b "quoted", with a comma', "c"],
        "right": np.array([True, False, True]),
        "neighbours": np.array([3, 0, 1]),
        "share": np.array([1 / 3, np.nan, 1e-7]),
        "class": np.array(["x", "y", "x"], dtype=object),
    }
    write_columns(tmp_path / "table.csv", columns)
    expected = pd.DataFrame(columns).to_csv(index=False, float_format="%.6f", lineterminator="\n")
    assert (tmp_path / "table.csv").read_text() == expected
