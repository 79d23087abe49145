"""Minesweeper and Tolokers: graphs whose neighbours are often of another class.

Their ten published splits are not used: they are drawn on the whole graph, and clients draw their own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedspray.data.graph import Graph
from fedspray.datasets._files import DataFolders, from_urls, provide, reading
from fedspray.datasets.base import DatasetCard

OFFICIAL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"


def read_heterophilous(file: Path) -> Graph:
    """Reads ``node_features`` [N, F], ``node_labels`` [N] and ``edges`` [E, 2] of one npz."""
    source = "heterophilous-graphs"
    with reading(file, source), file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return Graph.from_arrays(archive["node_features"], archive["edges"].T, archive["node_labels"])


def _read(folders: DataFolders, dataset: str, sha256: str) -> Graph:
    file = f"{dataset}.npz"
    source = from_urls({file: f"{OFFICIAL}/{file}"})
    return read_heterophilous(provide(folders, dataset, dataset, {file: sha256}, [source]) / file)


_CITATION = "Platonov et al., A critical look at the evaluation of GNNs under heterophily, ICLR 2023"

CARDS = (
    DatasetCard(
        name="minesweeper",
        title="fields of a board beside each other, some with a mine",
        num_nodes=10_000,
        num_edges=39_402,
        num_features=7,
        num_classes=2,
        default_clients=10,
        citation=_CITATION,
        read=partial(
            _read,
            dataset="minesweeper",
            sha256="e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3",
        ),
    ),
    DatasetCard(
        name="tolokers",
        title="crowd workers who did the same tasks, some banned",
        num_nodes=11_758,
        num_edges=519_000,
        num_features=10,
        num_classes=2,
        default_clients=10,
        citation=_CITATION,
        read=partial(
            _read,
            dataset="tolokers",
            sha256="dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
        ),
    ),
)
