"""A federation of real processes over mutual TLS is the in-process run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from federations import fedspray, result, stable

from fedspray.runs import store

pytestmark = pytest.mark.slow

RUN = ["--dataset", "banks", "--clients", "3", "--backbone", "gcn", "--rounds", "3", "--seed", "0", "--json"]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("algorithm", ["fedspray", "fedavg"])
def test_the_same_metrics_and_weights_as_in_one_process(tmp_path: Path, algorithm: str) -> None:
    run = [*RUN, "--algorithm", algorithm]
    here = result(fedspray("run", *run, "--out", tmp_path / "here"))
    there = result(fedspray("deploy", "local", *run, "--out", tmp_path / "there"))
    assert numbers(stable(there)) == pytest.approx(numbers(stable(here)), abs=1e-6)
    for name in here["models"]:
        mine, _ = store.read_tensors(tmp_path / "here" / "seed-0" / "models" / f"{name}.safetensors")
        theirs, _ = store.read_tensors(tmp_path / "there" / "kits" / name / "models" / "run" / "seed-0.safetensors")
        assert mine.keys() == theirs.keys()
        assert all(torch.allclose(mine[key], theirs[key], atol=1e-6) for key in mine)
    assert there["models"] == here["models"], "equal up to rounding, but not in their bits"
    check_engine(there["engine"])


def check_engine(engine: dict[str, Any]) -> None:
    assert engine["jobs"] == 1
    assert engine["restarts"] == 0
    processes = [engine["server_pid"], *engine["site_pids"].values()]
    assert len(set(processes)) == 4
    assert engine["bytes_wire"] is None or engine["bytes_wire"] > engine["bytes_payload"]
    section = DOCUMENT.split("## fedspray deploy local\n")[1].split("\n## ")[0]
    assert set(engine) <= set(re.findall(r"`(\w+)`", section))


def numbers(content: Any, path: str = "") -> dict[str, float]:
    """Every number of a JSON object, by its path."""
    if isinstance(content, dict):
        parts = [numbers(value, f"{path}/{key}") for key, value in content.items()]
    elif isinstance(content, list):
        parts = [numbers(value, f"{path}/{index}") for index, value in enumerate(content)]
    else:
        return {path: content} if isinstance(content, int | float) else {}
    return {key: value for part in parts for key, value in part.items()}
