"""A process per player, which plays a round on request and sleeps otherwise.

So peak memory is each player's own, none runs with another's allocator settings, and yet rounds of all of
them alternate within a second of each other, under the same load of the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.cases import SEED, Case
from fedspray import InputError

OURS, FLOOR, REFERENCE = "ours", "floor", "reference"
"""The players."""


@dataclass(frozen=True)
class Sample:
    """One round, or (in the first sample) the time from the start of the process to its first round."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    """The largest resident set of the process so far."""
    metrics: dict[str, float] | None
    """Test metrics of the oldest round that was not reported yet, if they are known."""


class PlayerFailed(RuntimeError):
    """A player can't continue; the others can."""


class Player:
    """One player of a case, in its own process.

    Args:
        kind: ours, floor or reference.
        case: what it plays.
        threads: torch's.
        reference: the reference's file.
    """

    def __init__(self, kind: str, case: Case, threads: int, reference: Path | None = None) -> None:
        self.kind = kind
        self._connection, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs, kind, case, threads, reference), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> tuple[Sample, dict[str, int]]:
        """What it cost to get ready, and the size of the federation."""
        size: dict[str, int] = self._receive()
        return self._receive(), size

    def play_round(self) -> Sample:
        """Plays one round."""
        self._connection.send("play")
        sample: Sample = self._receive()
        return sample

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            why = f"signal {-code}, perhaps for lack of memory" if code and code < 0 else f"exit code {code}"
            raise PlayerFailed(f"its process ended with {why}") from None
        if isinstance(answer, InputError | PlayerFailed):
            raise answer
        return answer


class _Stopwatch:
    """Reports the time since it last went on, then waits for the next order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wall, self._cpu = time.perf_counter(), 0.0  # from the start of the process

    def pause(self, metrics: dict[str, float] | None) -> None:
        from fedspray.engine.process import process_peak  # what imports torch belongs to the players' own processes

        cpu, wall = time.process_time(), time.perf_counter()
        self._connection.send(Sample(cpu - self._cpu, wall - self._wall, process_peak(), metrics))
        self._connection.recv()
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def _serve(connection: Connection, kind: str, case: Case, threads: int, reference: Path | None) -> None:
    watch = _Stopwatch(connection)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read by what is imported from here on
    try:
        import torch

        from benchmarks import players
        from fedspray import build_federation

        torch.set_num_threads(threads)
        federation = build_federation(**case.data.to_json(), seed=SEED)
        connection.send(
            {
                "nodes": sum(client.graph.num_nodes for client in federation.clients),
                "edges": sum(client.graph.num_edges for client in federation.clients),
                "features": federation.task.num_features,
                "classes": federation.task.num_classes,
                "clients": federation.num_clients,
            }
        )
        if kind == REFERENCE and reference is not None:
            players.play_reference(federation, case, watch.pause, reference)
        else:
            {OURS: players.play_ours, FLOOR: players.play_floor}[kind](federation, case, watch.pause)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass  # nobody wants more
    except InputError as error:
        connection.send(error)
    except Exception as error:
        connection.send(PlayerFailed(f"{type(error).__name__}: {error}"))
