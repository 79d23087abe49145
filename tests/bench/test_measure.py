from __future__ import annotations

from pathlib import Path

import pytest
from scripted import ScriptedPlayer, scripted

from benchmarks import measure as module
from benchmarks.cases import Case
from benchmarks.measure import largest_difference, measure
from fedspray.experiment import Data

CASE = Case(Data.of(dataset="banks", nodes=1000, clients=4), "gcn", "fedspray")
FILE = Path("reference.py")


def play(
    monkeypatch: pytest.MonkeyPatch, players: type[ScriptedPlayer], reference: Path | None = FILE
) -> dict[str, object]:
    monkeypatch.setattr(module, "Player", players)
    return measure(CASE, repetitions=3, threads=1, reference=reference)


def test_medians_ratios_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    players = scripted()
    line = play(monkeypatch, players)
    # two rounds of ours and the floor do not count, and one of the reference: rounds 3, 4, 5 meet 2, 3, 4
    assert line["ours"] == {
        "cpu_seconds": 4.0,
        "wall_seconds": 8.0,
        "peak_bytes": 5_000_000,
        "first_round_cpu_seconds": 3.0,  # 2 to get ready, 1 for the round
        "repetitions": 3,
        "cpu_samples": [3.0, 4.0, 5.0],
        "wall_samples": [6.0, 8.0, 10.0],
        "failure": None,
    }
    assert line["ours_to_floor"] == {"cpu": 2.0, "wall": 2.0}
    assert line["reference_to_ours"] == {"cpu": 3.0, "wall": 3.0}  # of 8/3, 12/4, 16/5
    assert line["difference"] == {"rounds": 4, "loss": 0.0, "overall": pytest.approx(0.01)}
    assert {name: line[name] for name in ("dataset", "nodes", "edges", "features", "classes", "clients")} == {
        "dataset": "banks",
        "nodes": 1000,
        "edges": 3000,
        "features": 5,
        "classes": 2,
        "clients": 4,
    }
    assert players.stopped == ["reference", "floor", "ours"]


def test_without_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    line = play(monkeypatch, scripted(), reference=None)
    assert (line["reference"], line["reference_to_ours"], line["difference"]) == (None, None, None)


def test_a_slow_reference_plays_one_round_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_ROUND", 7.9)  # its first round takes 8 s
    line = play(monkeypatch, scripted())
    assert line["reference"]["cpu_samples"] == [4.0]  # type: ignore[index]
    assert line["reference_to_ours"] == {"cpu": pytest.approx(4 / 3), "wall": pytest.approx(4 / 3)}


def test_a_long_case_ends_after_the_fewest_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_CASE", 0.0)
    monkeypatch.setattr(module, "FEWEST", 2)
    assert play(monkeypatch, scripted())["ours"]["repetitions"] == 2  # type: ignore[index]


def test_one_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    players = scripted(fails=("reference",))
    line = play(monkeypatch, players)
    assert line["reference"]["failure"] == "its process ended with signal 9, perhaps for lack of memory"  # type: ignore[index]
    assert line["reference"]["cpu_seconds"] is None  # type: ignore[index]
    assert line["reference_to_ours"] is None
    assert line["ours_to_floor"] == {"cpu": 2.0, "wall": 2.0}
    assert players.stopped == ["reference", "floor", "ours"]


def test_the_largest_difference_is_over_common_rounds() -> None:
    ours = [{"loss": 1.0, "overall": 0.5}, {"loss": 0.5, "overall": 0.6}]
    others = [{"loss": 1.1, "overall": 0.5}, {"loss": 0.5, "overall": 0.4}, {"loss": 9.0, "overall": 0.0}]
    expected = {"rounds": 2, "loss": pytest.approx(0.1), "overall": pytest.approx(0.2)}
    assert largest_difference(ours, others) == expected
    assert largest_difference(ours, []) is None
