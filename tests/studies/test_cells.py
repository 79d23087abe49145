from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedspray.experiment import Data, RunSettings
from fedspray.studies import cells
from fedspray.studies.cells import Cell

SOURCE = Data.of(dataset="banks", nodes=200).located()


def cell(*, data: Data | None = None, **run: Any) -> Cell:
    return Cell(dataset="banks", method="fedspray", data=data or SOURCE, run=RunSettings(**run))


def test_the_key_is_of_what_decides_the_result() -> None:
    keys = [
        cell().key(),
        cell(seeds=(1,)).key(),
        cell(values={"distill_weight": 3}).key(),
        cell(values={"rounds": 7}).key(),
        cell(algorithm="fedavg").key(),
        cell(backbone="sage").key(),
        cell(backbone_of={"bank_01": "sage"}).key(),
        cell(dtype="float64").key(),
        cell(data=Data.of(dataset="banks", nodes=204)).key(),
        cell(data=Data.of(dataset="banks", nodes=200, partition_seed=1)).key(),
        replace(cell(), validation_only=True).key(),
    ]
    assert len(set(keys)) == len(keys)


def test_the_key_is_not_of_names() -> None:
    key = cell().key()
    assert replace(cell(), dataset="other", method="ours", label="x").key() == key
    default = cell().settings["distill_weight"]
    assert cell(values={"distill_weight": str(default)}).key() == key  # a default by hand is the same cell


def test_a_preset_and_its_values_by_hand_are_one_cell() -> None:
    from fedspray import algorithms

    values = algorithms.find("fedspray").presets["paper"]
    assert cell(preset="paper").key() == cell(algorithm="fedspray", values=values).key()


def test_the_result_version_makes_new_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    old = cell().key()
    monkeypatch.setattr(cells, "RESULT_VERSION", cells.RESULT_VERSION + 1)
    assert cell().key() != old


def test_kept_splits_are_part_of_the_key(tmp_path: Path) -> None:
    from fedspray import build_federation

    keys = set()
    for seed in (1, 2):
        build_federation("banks", nodes=200, seed=seed).save(tmp_path / f"split{seed}")
        source = Data.of(dataset=str(tmp_path / f"split{seed}")).located()
        keys.add(cell(data=source, keep_split=True).key())
        drawn = cell(data=source).key()
    assert len(keys) == 2
    assert drawn == cell().key()  # with splits of the run's seed, saved or drawn data are the same data


def test_code_of_ones_own_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.chdir(tmp_path)
    text = "from fedspray.algorithms.local import Local\nclass Mine(Local):\n    pass\n"
    keys = []
    for extra in ("", "# changed\n"):
        Path("my_own_method.py").write_text(text + extra)
        sys.modules.pop("my_own_method", None)
        __import__("linecache").clearcache()
        keys.append(cell(algorithm="my_own_method:Mine").key())
    sys.modules.pop("my_own_method", None)
    sys.path.remove(str(tmp_path))
    assert keys[0] != keys[1]
