"""Coauthor CS and Physics, Amazon Photo and Computers: the graphs of the repository gnn-benchmark.

The npz files hold CSR arrays, and features stay CSR: dense, Physics would take 1.16 GB. Word
counts become binary, as in PyTorch Geometric.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedspray.data.graph import Graph, read_csr
from fedspray.datasets._files import DataFolders, from_urls, provide, reading
from fedspray.datasets.base import DatasetCard

OFFICIAL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"


def read_npz(file: Path) -> Graph:
    """Reads the CSR arrays ``attr_*`` (features) and ``adj_*`` (edges) and the ``labels`` of one npz."""
    with reading(file, "gnn-benchmark"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        features, adjacency = (read_csr(archive, prefix) for prefix in ("attr", "adj"))
        features.sum_duplicates()
        features.data = np.where(features.data > 0, np.float32(1), features.data)
        return Graph.from_arrays(features, np.stack(adjacency.nonzero()), archive["labels"])


def _read(folders: DataFolders, dataset: str, name: str, file: str) -> Graph:
    return read_npz(provide(folders, dataset, name, {file: None}, [from_urls({file: f"{OFFICIAL}/{file}"})]) / file)


_CITATION = "Shchur et al., Pitfalls of graph neural network evaluation, 2018, arXiv:1811.05868"

CARDS = (
    DatasetCard(
        name="physics",
        title="physicists who wrote papers together",
        num_nodes=34_493,
        num_edges=247_962,
        num_features=8_415,
        num_classes=5,
        default_clients=12,
        citation=_CITATION,
        read=partial(_read, dataset="physics", name="Physics", file="ms_academic_phy.npz"),
    ),
    DatasetCard(
        name="cs",
        title="computer scientists who wrote papers together",
        num_nodes=18_333,
        num_edges=81_894,
        num_features=6_805,
        num_classes=15,
        default_clients=10,
        citation=_CITATION,
        read=partial(_read, dataset="cs", name="CS", file="ms_academic_cs.npz"),
    ),
    DatasetCard(
        name="photo",
        title="cameras and accessories that are bought together",
        num_nodes=7_650,
        num_edges=119_081,
        num_features=745,
        num_classes=8,
        default_clients=10,
        citation=_CITATION,
        read=partial(_read, dataset="photo", name="Photo", file="amazon_electronics_photo.npz"),
    ),
    DatasetCard(
        name="computers",
        title="computers and accessories that are bought together",
        num_nodes=13_752,
        num_edges=245_861,
        num_features=767,
        num_classes=10,
        default_clients=10,
        citation=_CITATION,
        read=partial(_read, dataset="computers", name="Computers", file="amazon_electronics_computers.npz"),
    ),
)
