"""Coauthor Physics and Coauthor CS: authors, joined where they wrote a paper together.

The npz files hold CSR arrays, and CSR the features stay: dense, Physics would take 1.16 GB. Keyword
counts are made binary, as PyTorch Geometric does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.data.graph import Graph
from fedspray.datasets._files import DataFolders, from_urls, provide
from fedspray.datasets.base import DatasetCard
from fedspray.errors import UNREADABLE, InputError

OFFICIAL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"


def read_coauthor(file: Path) -> Graph:
    """Reads the CSR arrays ``attr_*`` (features) and ``adj_*`` (edges) and the ``labels`` of one npz."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            features, adjacency = (_csr(archive, prefix) for prefix in ("attr", "adj"))
            labels: NDArray[np.int64] = archive["labels"]
    except UNREADABLE as error:
        raise InputError(f"{file} is not a readable Coauthor file ({error})") from None
    features.sum_duplicates()
    features.data = np.where(features.data > 0, np.float32(1), features.data)
    return Graph.from_arrays(features, np.stack(adjacency.nonzero()), labels)


def _csr(archive: np.lib.npyio.NpzFile, prefix: str) -> sp.csr_array:
    parts = tuple(archive[f"{prefix}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_array(parts, shape=tuple(archive[f"{prefix}_shape"]), dtype=np.float32)


def _read(folders: DataFolders, dataset: str, name: str, file: str) -> Graph:
    folder = provide(folders, dataset, name, {file: None}, [from_urls({file: f"{OFFICIAL}/{file}"})])
    return read_coauthor(folder / file)


def _physics(folders: DataFolders) -> Graph:
    return _read(folders, "physics", "Physics", "ms_academic_phy.npz")


def _cs(folders: DataFolders) -> Graph:
    return _read(folders, "cs", "CS", "ms_academic_cs.npz")


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
        read=_physics,
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
        read=_cs,
    ),
)
