"""What is measured: a federation, a backbone and an algorithm.

Nothing here imports torch: the command that starts the measured processes stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fedspray import InputError, datasets
from fedspray.errors import unknown
from fedspray.experiment import Data, RunSettings

BACKBONES = ("gcn", "sgc", "sage")
ALGORITHMS = ("fedspray", "fedavg")

REAL = ("pubmed", "physics")
BY_NODES = tuple((nodes, 10) for nodes in (10_000, 30_000, 100_000, 300_000, 1_000_000))
BY_CLIENTS = tuple((100_000, clients) for clients in (30, 100, 300, 1_000))  # with 10, it is part of the above
SUITE = (*BY_NODES, *BY_CLIENTS, (1_000_000, 1_000))
QUICK = ((10_000, 10), (30_000, 10), (100_000, 10), (100_000, 100))
"""Sizes of `banks`: nodes, clients."""

SEED = 0


@dataclass(frozen=True)
class Case:
    """One line of a benchmark."""

    data: Data
    backbone: str
    algorithm: str

    def __str__(self) -> str:
        nodes = self.data.own.get("nodes")
        size = "" if nodes is None else f" {nodes:,}/{self.data.clients}"
        return f"{self.data.dataset}{size}, {self.backbone}, {self.algorithm}"

    def settings(self) -> RunSettings:
        """The run: all settings at their defaults."""
        return RunSettings(algorithm=self.algorithm, backbone=self.backbone, seeds=(SEED,))


def choose_cases(
    names: Sequence[str],
    banks: Sequence[str],
    *,
    backbones: Sequence[str],
    algorithms: Sequence[str],
    partitions: Path | None,
    quick: bool,
) -> list[Case]:
    """Every source with every backbone and algorithm.

    Args:
        names: data sets by name, or saved federations.
        banks: sizes of `banks` as ``NODES/CLIENTS``.
        backbones: empty: all that a floor is known for, or GCN alone for a quick look.
        algorithms: empty: all, or FedSpray alone for a quick look.
        partitions: a folder with a folder of client lists for some data sets; by default ``partitions``, if it is
            here or in ``FEDSPRAY_DATA``.
        quick: fewer cases by default. Without names and sizes it is `QUICK` or `SUITE`, and the real data at hand.
    """
    for kind, given, allowed in (("backbone", backbones, BACKBONES), ("algorithm", algorithms, ALGORITHMS)):
        wrong = next((name for name in given if name not in allowed), None)
        if wrong is not None:
            raise unknown(f"{kind} of a benchmark", wrong, allowed)
    folders = datasets.DataFolders.from_environment()
    lists = folders.located(partitions or Path("partitions"))
    if partitions is not None and not lists.is_dir():
        raise InputError(f"--partitions {partitions} is not a folder, but must hold a folder per data set")
    sizes: Sequence[tuple[int, int]] = [_size(text) for text in banks]
    if not names and not sizes:
        names = [name for name in (REAL[:1] if quick else REAL) if folders.hold(name)]
        sizes = QUICK if quick else SUITE
    chosen = [Data.of(dataset=name, partition_dir=_client_lists(lists, name)) for name in names]
    chosen += [Data.of(dataset="banks", nodes=nodes, clients=clients) for nodes, clients in sizes]
    chosen_backbones = backbones or (BACKBONES[:1] if quick else BACKBONES)
    chosen_algorithms = algorithms or (ALGORITHMS[:1] if quick else ALGORITHMS)
    return [Case(*parts) for parts in product(chosen, chosen_backbones, chosen_algorithms)]


def _size(text: str) -> tuple[int, int]:
    nodes, _, clients = text.partition("/")
    if not (nodes.isdecimal() and clients.isdecimal()):
        raise InputError(f"--banks is {text!r}, but must be NODES/CLIENTS, for instance 100000/10")
    return int(nodes), int(clients)


def _client_lists(partitions: Path, dataset: str) -> str | None:
    """The folder of this data set's client lists, whatever the case of its name; None: there is none."""
    return next((str(folder) for folder in sorted(partitions.glob("*")) if folder.name.lower() == dataset), None)
