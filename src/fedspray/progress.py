"""A progress bar in a terminal or notebook; nothing elsewhere."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedspray.display import percent

if TYPE_CHECKING:
    from fedspray.studies.grid import Grid

TICK = 1.0
"""Seconds between two looks at a grid."""


def is_interactive() -> bool:
    """Whether there is a terminal or notebook to show it."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def rounds_bar(rounds: int, seeds: Sequence[int], label: str) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """One bar for all rounds of all seeds; yields a function to call with the seed and each record."""
    with _bar(rounds * len(seeds), label, "round") as bar:

        def show(seed: int, record: dict[str, Any]) -> None:
            figures = {name: percent(record["val"][name]) for name in ("overall", "minority")}
            bar.set_postfix({"seed": seed, **figures}, refresh=False)
            bar.update(rounds * seeds.index(seed) + record["round"] - bar.n)  # a resumed run begins in the middle

        yield show


@contextmanager
def cells_bar(grid: Grid) -> Iterator[None]:
    """One bar for a grid of cells, which also moves while a cell runs."""
    with _bar(grid.total, "comparing", "cell") as bar, ticking(lambda: bar.update(round(grid.done(), 2) - bar.n)):
        yield


@contextmanager
def ticking(look: Callable[[], object]) -> Iterator[None]:
    """Looks at something once in a while, and once more at the end."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(TICK):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        look()


def _bar(total: int, label: str, unit: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without notebook widgets it falls back to a text bar
        from tqdm.auto import tqdm

    return tqdm(total=total, desc=label, unit=unit, dynamic_ncols=True)
