"""The three that play a round: this package, the floor of its bare products, and a reference.

Each sets itself up, calls ``pause(None)`` once when it is ready, and then plays round after round, calling
``pause`` with the test metrics it has so far after each of them. What lies between two pauses is one round.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.cases import SEED, Case
from fedspray import Federation, GraphBatch, InputError
from fedspray.engine.local import LocalEngine, choose_blocks
from fedspray.engine.process import prepare_process
from fedspray.engine.rounds import run_rounds, start
from fedspray.experiment import RoundSettings
from fedspray.runs.proxies import ProxyKeeper
from fedspray.runs.settings import resolve

Metrics = dict[str, float]
Pause = Callable[[Metrics | None], None]

_ENDLESS = 10**9


class Reference(Protocol):
    """Another implementation of the same steps."""

    def round(self) -> dict[str, Any]:
        """Trains, averages and evaluates; returns at least the pooled ``loss`` and ``overall`` of part ``test``."""


def play_ours(federation: Federation, case: Case, pause: Pause) -> None:
    """What `fedspray run` does in a round: exchange, evaluation, server's update, record."""
    algorithms = resolve(case.settings()).for_clients(federation.roster)
    engine = LocalEngine(federation, algorithms, SEED, threads=torch.get_num_threads())
    latest: list[Metrics] = []

    def on_record(record: dict[str, Any]) -> None:
        latest[:] = [_of_test(record)]

    progress = start(algorithms[0], federation.task, SEED, torch.float32)
    pause(None)
    run_rounds(
        algorithms[0],
        engine,
        RoundSettings(rounds=_ENDLESS),
        SEED,
        progress,
        on_exchange=ProxyKeeper(algorithms[0].uplink).on_exchange,
        on_record=on_record,
        # a round's record is complete one round later
        on_round=lambda _: pause(latest.pop() if latest else None),
    )


def play_floor(federation: Federation, case: Case, pause: Pause) -> None:
    """The bare products and optimizer passes of a round, in the same blocks of clients as ours."""
    from benchmarks.floor import floor_of

    prepare_process()
    algorithms = resolve(case.settings()).for_clients(federation.roster)
    batches = [
        GraphBatch.from_clients([federation.clients[k] for k in ids], ids)
        for ids in choose_blocks(federation, algorithms, at_once=torch.get_num_threads())
    ]
    floors = [floor_of(algorithms[0], batch) for batch in batches]
    pause(None)
    while True:
        for run in floors:
            run()
        pause(None)


def play_reference(federation: Federation, case: Case, pause: Pause, file: Path) -> None:
    """Another implementation, from a Python file."""
    reference = load_reference(file)(federation, resolve(case.settings()).algorithm, SEED, torch.float32)
    pause(None)
    while True:
        pause(_of_test(reference.round()))


def load_reference(file: Path) -> Callable[..., Reference]:
    """The function ``build(federation, algorithm, seed, dtype)`` of a Python file."""
    spec = importlib.util.spec_from_file_location(f"fedspray_reference_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"{file} is not a Python file, but the reference must be one")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    build: Callable[..., Reference] | None = getattr(module, "build", None)
    if build is None:
        raise InputError(f"{file} has no function 'build', but a reference needs one (see docs/performance.md)")
    return build


def _of_test(record: dict[str, Any]) -> Metrics:
    return {name: record["test"][name] for name in ("loss", "overall")}
