"""A run of any algorithm with any backbone that breaks off goes on to the same bits.

`make test` tries every algorithm with one backbone, each backbone in turn; `make test-slow` does the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys import ragged_federation

import fedspray
from fedspray import algorithms, backbones
from fedspray.runs import run


def story(folder: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The models, and all records without their times, which the seals cover too."""
    models = json.loads((folder / "result.json").read_text())["models"]
    records = [json.loads(line) for line in (folder / "seed-0" / "rounds.jsonl").read_text().splitlines()]
    return models, [{key: record[key] for key in record if not key.endswith(("seconds", "seal"))} for record in records]


PAIRS = [
    pytest.param(name, backbone, marks=[] if i % len(backbones.names()) == j else pytest.mark.slow)
    for i, name in enumerate(algorithms.names())
    for j, backbone in enumerate(backbones.names())
]


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_a_broken_run_ends_with_the_same_bits(name: str, backbone: str, tmp_path: Path) -> None:
    """One client of three trains in a round, so that the server does not know all of them when it stops."""
    federation, whole, broken = ragged_federation(), tmp_path / "whole", tmp_path / "broken"
    values: dict[str, Any] = {} if "dropout" in backbones.find(backbone).ignores else {"dropout": 0.2}
    fedspray.run(federation, algorithm=name, backbone=backbone, rounds=6, participation=0.34, out=whole, **values)
    settings, _ = run.load_settings(whole)
    run.begin(broken, federation, settings, None)

    def crash(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run.carry_out(federation, settings, broken, checkpoint_every=1, on_record=crash)
    assert not (broken / "result.json").exists()
    run.carry_out(federation, settings, broken)
    assert story(broken) == story(whole)
    assert len({tuple(record["trained"]) for record in story(whole)[1]}) > 1  # somebody came later than somebody else
