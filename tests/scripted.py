"""Players of a benchmark that play by the book, in no time and in no process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from benchmarks.cases import Case
from benchmarks.process import PlayerFailed, Sample


class ScriptedPlayer:
    """Ours takes a millisecond of CPU for every node, the floor half of it, the reference four times as much.

    Wall time is twice the CPU time. The n-th round of a process costs n times as much as its first.
    """

    SHARE: ClassVar[dict[str, float]] = {"ours": 1.0, "floor": 0.5, "reference": 4.0}
    fails: tuple[str, ...] = ()
    """Players that fail in their second round."""
    stopped: ClassVar[list[str]]
    """Who was stopped, in this order."""

    def __init__(self, kind: str, case: Case, threads: int, reference: Path | None = None) -> None:
        self.kind, self._case, self._rounds = kind, case, 0

    def wait_until_ready(self) -> tuple[Sample, dict[str, int]]:
        nodes, clients = self._case.data.own.get("nodes") or 100, self._case.data.clients or 1
        size = {"nodes": nodes, "edges": 3 * nodes, "features": 5, "classes": 2, "clients": clients}
        return Sample(2.0, 4.0, 1_000_000, None), size

    def play_round(self) -> Sample:
        self._rounds += 1
        if self.kind in self.fails and self._rounds == 2:
            raise PlayerFailed("its process ended with signal 9, perhaps for lack of memory")
        cpu = 0.001 * (self._case.data.own.get("nodes") or 100) * self.SHARE[self.kind] * self._rounds
        metrics = {"loss": 0.5, "overall": 0.75 if self.kind == "ours" else 0.74}
        return Sample(cpu, 2 * cpu, 1_000_000 * self._rounds, None if self.kind == "floor" else metrics)

    def stop(self) -> None:
        self.stopped.append(self.kind)


def scripted(**attributes: Any) -> type[ScriptedPlayer]:
    """A class of players with other attributes, and its own list of those stopped."""
    return type("Scripted", (ScriptedPlayer,), {"stopped": [], **attributes})
