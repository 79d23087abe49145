"""Rounds of all players in turn: medians, ratios, peak memory.

A machine is never quiet, so a ratio is the median of the ratios of rounds that were played one after another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.cases import Case
from benchmarks.process import FLOOR, OURS, REFERENCE, Player, PlayerFailed, Sample
from fedspray.files import Json

WARM_UP = 2
"""Rounds of ours and of the floor that do not count: the first ones evaluate nothing yet and build matrices."""
LONG_ROUND = 10.0
"""Seconds. A reference whose first round takes longer plays no other; otherwise the first is its warm-up."""
LONG_CASE, FEWEST = 60.0, 3
"""A case that has played longer than this many seconds ends after this many repetitions."""


def measure(case: Case, *, repetitions: int, threads: int, reference: Path | None) -> Json:
    """Plays a case and returns its line of the result.

    Args:
        case: what to play.
        repetitions: rounds that count.
        threads: torch's, in every process.
        reference: the Python file of another implementation; None leaves it out.
    """
    kinds = [OURS, FLOOR] + ([] if reference is None else [REFERENCE])
    failures: dict[str, str] = {}
    size: dict[str, int] = {}
    start_up: dict[str, float] = {}
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        for kind in kinds:
            players[kind] = Player(kind, case, threads, reference)
            stack.callback(players[kind].stop)
            try:
                ready, size = players[kind].wait_until_ready()
                start_up[kind] = ready.cpu_seconds
            except PlayerFailed as failure:
                failures[kind] = str(failure)
        table = _Table(players, failures)
        _play(table, repetitions)
    lines = {kind: _line(table, kind, start_up) for kind in kinds}
    return {
        "dataset": case.data.dataset,
        **{name: size.get(name) for name in ("nodes", "edges", "features", "classes", "clients")},
        "published_clients": "partition_dir" in case.data.own,
        "backbone": case.backbone,
        "algorithm": case.algorithm,
        OURS: lines[OURS],
        FLOOR: lines[FLOOR],
        REFERENCE: lines.get(REFERENCE),
        "ours_to_floor": _ratio(lines[OURS], lines[FLOOR]),
        "reference_to_ours": _ratio(lines.get(REFERENCE), lines[OURS]),
        "difference": largest_difference(table.metrics[OURS], table.metrics[REFERENCE]),
    }


def largest_difference(ours: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]) -> Json | None:
    """How far the test metrics of the rounds that both have played lie apart; None without any."""
    pairs = list(zip(ours, others, strict=False))
    if not pairs:
        return None
    return {
        "rounds": len(pairs),
        "loss": max(abs(a["loss"] - b["loss"]) / max(abs(a["loss"]), 1e-12) for a, b in pairs),
        "overall": max(abs(a["overall"] - b["overall"]) for a, b in pairs),
    }


class _Table:
    """The players that still play, and what they have played."""

    def __init__(self, players: Mapping[str, Player], failures: dict[str, str]) -> None:
        self._players, self.failures = players, failures
        self.samples: dict[str, list[Sample]] = {kind: [] for kind in players}
        self.first: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        self.metrics: dict[str, list[Mapping[str, float]]] = {OURS: [], REFERENCE: []}

    def play(self, kind: str) -> Sample | None:
        """One round; None if this player is absent or can't continue."""
        if kind not in self._players or kind in self.failures:
            return None
        try:
            sample = self._players[kind].play_round()
        except PlayerFailed as failure:
            self.failures[kind] = str(failure)
            return None
        self.first.setdefault(kind, sample.cpu_seconds)
        self.peak[kind] = sample.peak_bytes
        if sample.metrics is not None:
            self.metrics[kind].append(sample.metrics)
        return sample

    def count(self, kind: str, sample: Sample | None) -> None:
        """Lets a round count."""
        if sample is not None:
            self.samples[kind].append(sample)


def _play(table: _Table, repetitions: int) -> None:
    for _ in range(WARM_UP):
        for kind in (OURS, FLOOR):
            table.play(kind)
    first = table.play(REFERENCE)
    plays_on = first is not None and first.wall_seconds <= LONG_ROUND
    if not plays_on:
        table.count(REFERENCE, first)
    began = time.perf_counter()
    for repetition in range(repetitions):
        if repetition >= FEWEST and time.perf_counter() - began > LONG_CASE:
            break
        for kind in (OURS, FLOOR, *([REFERENCE] if plays_on else [])):
            table.count(kind, table.play(kind))


def _line(table: _Table, kind: str, start_up: Mapping[str, float]) -> Json:
    samples = table.samples[kind] if kind not in table.failures else []
    cpu, wall = [s.cpu_seconds for s in samples], [s.wall_seconds for s in samples]
    return {
        "cpu_seconds": median(cpu) if cpu else None,
        "wall_seconds": median(wall) if wall else None,
        "peak_bytes": table.peak.get(kind) if samples else None,
        "first_round_cpu_seconds": start_up[kind] + table.first[kind] if samples else None,
        "repetitions": len(samples),
        "cpu_samples": cpu,
        "wall_samples": wall,
        "failure": table.failures.get(kind),
    }


def _ratio(above: Json | None, below: Json) -> Json | None:
    """The median of the ratios of rounds that were played one after another."""
    if above is None or not above["repetitions"] or not below["repetitions"]:
        return None
    return {
        clock: median(a / b for a, b in zip(above[f"{clock}_samples"], below[f"{clock}_samples"], strict=False))
        for clock in ("cpu", "wall")
    }
