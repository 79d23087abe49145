"""The processes of a benchmark: they play when told, and say why they cannot."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from benchmarks import process
from benchmarks.cases import Case
from benchmarks.process import Player, PlayerFailed
from fedspray.errors import InputError
from fedspray.experiment import Data

SMALL = Case(Data.of(dataset="banks", nodes=200, clients=2), "sage", "fedspray")


@pytest.mark.slow
def test_ours_plays_rounds_with_their_metrics() -> None:
    player = Player(process.OURS, SMALL, threads=1)
    try:
        ready, size = player.wait_until_ready()
        samples = [player.play_round() for _ in range(3)]
    finally:
        player.stop()
    assert {name: size[name] for name in ("nodes", "clients", "features", "classes")} == {
        "nodes": 200,
        "clients": 2,
        "features": 32,
        "classes": 2,
    }
    assert samples[0].metrics is None  # known one round later
    assert [set(sample.metrics or {}) for sample in samples[1:]] == [{"loss", "overall"}] * 2
    assert all(0 < sample.cpu_seconds <= 2 * sample.wall_seconds for sample in samples)
    assert samples[-1].cpu_seconds < ready.cpu_seconds  # PyTorch is imported before the first round
    assert 50e6 < samples[-1].peak_bytes < 5e9


@pytest.mark.slow
def test_a_process_that_dies_says_how(tmp_path: Path) -> None:
    file = tmp_path / "dies.py"
    file.write_text("import os\ndef build(*given):\n    os._exit(7)\n")
    player = Player(process.REFERENCE, SMALL, 1, file)
    try:
        with pytest.raises(PlayerFailed, match="exit code 7"):
            player.wait_until_ready()
    finally:
        player.stop()


def serve(kind: str, case: Case, reference: Path | None = None) -> list[object]:
    """Everything that a player sends before it fails, here and now."""
    ours, theirs = multiprocessing.Pipe()
    process._serve(theirs, kind, case, 1, reference)
    theirs.close()
    sent: list[object] = []
    while ours.poll():
        try:
            sent.append(ours.recv())
        except EOFError:
            break
    return sent


def test_bad_input_reaches_the_command() -> None:
    (error,) = serve(process.OURS, Case(Data.of(dataset="nonsense"), "gcn", "fedavg"))
    assert isinstance(error, InputError)
    assert str(error).startswith("unknown data set 'nonsense'")


def test_another_error_is_a_failure_of_this_player(tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text("def build(*given):\n    raise MemoryError('too large')\n")
    _, error = serve(process.REFERENCE, SMALL, file)
    assert isinstance(error, PlayerFailed)
    assert str(error) == "MemoryError: too large"
