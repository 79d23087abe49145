from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fedspray.errors import DiskFull, disk_full_at, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a plain sentence, with ü and 中", "a plain sentence, with ü and 中"),
        ("two\nlines\r\nand\ttabs", "two lines and tabs"),
        ("\x1b[31mred\x1b[0m \x07\x9b2J", "[31mred [0m 2J"),
        ("\u202eright to left\u2028", "right to left"),
        ("", ""),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 299 + "…"),
        ("x" * 5_000_000, "x" * 299 + "…"),
    ],
)
def test_what_a_terminal_gets(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_by_any_name(number: int) -> None:
    for error in (OSError(number, "full"), RuntimeError(f"I/O error: full (os error {number})")):
        with pytest.raises(DiskFull, match="the disk is full: here cannot be written"), disk_full_at(Path("here")):
            raise error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), RuntimeError("(os error 5)"), RuntimeError("28")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, disk_full_at(Path("here")):
        raise error
    assert caught.value is error
