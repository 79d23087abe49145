"""A federation of real processes over mutual TLS is the in-process run."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from federations import fedspray, result, stable

from fedspray.deploy.operations import processes
from fedspray.runs import store

pytestmark = pytest.mark.slow

RUN = ["--dataset", "banks", "--clients", "3", "--backbone", "gcn", "--rounds", "3", "--seed", "0", "--json"]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize(
    ("algorithm", "links"),
    [
        ("fedspray", []),
        pytest.param("fedavg", [], marks=pytest.mark.nightly),
        ("fedavg", ["--link", "noise sigma=0.01", "--link", "compress up_bits=4"]),
    ],
)
def test_the_same_metrics_and_weights_as_in_one_process(tmp_path: Path, algorithm: str, links: list[str]) -> None:
    run = [*RUN, "--algorithm", algorithm, *links]
    here = result(fedspray("run", *run, "--out", tmp_path / "here"))
    there = result(fedspray("deploy", "local", *run, "--out", tmp_path / "there"))
    assert numbers(stable(there)) == pytest.approx(numbers(stable(here)), abs=1e-6)
    for name in here["models"]:
        mine, _ = store.read_tensors(tmp_path / "here" / "seed-0" / "models" / name / "model.safetensors")
        theirs, _ = store.read_tensors(
            tmp_path / "there" / "kits" / name / "models" / "run" / "seed-0" / "model.safetensors"
        )
        assert mine.keys() == theirs.keys()
        assert all(torch.allclose(mine[key], theirs[key], atol=1e-6) for key in mine)
    assert there["models"] == here["models"], "equal up to rounding, but not in their bits"
    check_engine(there["engine"])
    for path in (tmp_path / "there", *(tmp_path / "there").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


@pytest.mark.parametrize("ending", [signal.SIGHUP, signal.SIGTERM])
def test_its_processes_end_with_it(tmp_path: Path, ending: signal.Signals) -> None:
    before = signal.signal(ending, signal.SIG_DFL)  # under nohup a closed terminal would be ignored, as it should be
    try:
        command = fedspray("deploy", "local", *RUN, "--rounds", "1000", "--out", tmp_path / "there")
    finally:
        signal.signal(ending, before)
    kits = [tmp_path / "there" / "kits" / name for name in ("server", "bank_00", "bank_01", "bank_02")]
    deadline = time.monotonic() + 120
    while not all(processes.running(kit) for kit in kits):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for _ in range(3):  # a terminal that is closed may say so more than once
        command.send_signal(ending)
        time.sleep(0.3)
    command.communicate(timeout=60)
    assert command.returncode == 130
    assert not any(processes.running(kit) for kit in kits)
    for secret in ("ca", "kits"):
        assert (tmp_path / "there" / secret).stat().st_mode & 0o077 == 0


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
