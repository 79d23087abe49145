"""Numbers that are too large, wherever they stand: one sentence, and nothing is allocated or written."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray.cli.main import run_command
from fedspray.errors import InputError
from fedspray.memory import check_memory, total_memory

HUGE, DIGITS = "99999999999999999999", "9" * 400


def check_refused(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert run_command(arguments) == 2
    said = capsys.readouterr().err
    assert "bug" not in said
    assert len(said) < 800
    assert sorted(folder.rglob("*")) == before


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", [HUGE, DIGITS, "9" * 5000])
@pytest.mark.parametrize(
    "flag", ["rounds", "seeds", "nodes", "clients", "features", "local-epochs", "min-clients", "threads"]
)
def test_flags(flag: str, number: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(["run", f"--{flag}", number], here, capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--seed", DIGITS],
        ["run", "--seeds", "999999999"],
        ["run", "--nodes", "99999999999"],
        ["run", "--features", "99999999999"],
        ["run", "--clients", "999999999"],
        ["run", "--set", f"hidden={HUGE}"],
        ["run", "--set", f"lr={DIGITS}"],
        ["run", "--set", "hidden=100000000"],
        ["run", "--set", "layers=1000000000"],
        ["run", "--set", "hidden=1e20"],
        ["run", "--link", f"compress up_bits={HUGE}"],
        ["plan", "--nodes", HUGE],
        ["partition", "--dataset", "banks", "--nodes", HUGE, "--out", "cut"],
        ["compare", "--seeds", HUGE, "--algorithm", "local"],
        ["compare", "--jobs", HUGE, "--algorithm", "local"],
        ["compare", "--algorithm", "local", "--clients", "1000", "--nodes", "200", "--cells", "cells"],
    ],
)
def test_sizes(arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(arguments, here, capsys)


@pytest.mark.parametrize(
    "text",
    [
        "rounds = " + "9" * 5000,
        "rounds = 100000000000000000000",
        "x = " + "[" * 5000,
        "x = " + "[" * 100_000 + "]" * 100_000,
        "rounds = 1\n[backbone_of]\nbank_00 = 3",
        "rounds = 1\n[set]\nhidden = 100000000000000000000",
        "[compare]\nalgorithms = ['local']\nseeds = 99999999999999999999",
    ],
)
def test_toml(text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "bad.toml").write_text(text)
    check_refused(["compare" if "compare" in text else "run", "bad.toml"], here, capsys)


ARRAYS: dict[str, Any] = {
    "x": np.ones((4, 2), np.float32),
    "edge_index": np.array([[0], [1]]),
    "y": np.array([0, 1, 0, 1]),
}


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.float32(3)},
        {"x": np.ones((2, 2, 2))},
        {"num_classes": np.inf},
        {"num_classes": np.nan},
        {"num_classes": np.int64(10**9)},
        {"num_classes": np.int64(-1)},
        {"num_classes": np.array([2, 3])},
        {"edge_index": np.array([[0, 10**9], [1, 2]])},
        {"x": None, "y": None, "edge_index": np.array([[0, 10**12], [1, 2]])},
        {"y": np.full(4, 10**9)},
    ],
)
def test_graphs(change: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(here / "graph.npz", **{name: value for name, value in (ARRAYS | change).items() if value is not None})
    check_refused(["inspect", "--dataset", "graph.npz", "--clients", "2"], here, capsys)


def test_a_header_that_promises_more_than_the_file_holds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(here / "graph.npz", "w") as archive:
        for name, value in ARRAYS.items():
            stream = io.BytesIO()
            np.save(stream, value)
            data = stream.getvalue()
            if name == "x":
                text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }".ljust(117) + "\n"
                data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + b"\0" * 32
            archive.writestr(f"{name}.npy", data)
    check_refused(["inspect", "--dataset", "graph.npz", "--clients", "2"], here, capsys)


def test_memory_is_what_the_machine_has() -> None:
    there = total_memory()
    assert there is not None
    check_memory("this", there)
    with pytest.raises(InputError, match=r"^this would need"):
        check_memory("this", there + 1)
    with pytest.raises(InputError, match="far more"):
        check_memory("this", 1e300)
