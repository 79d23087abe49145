"""ogbn-arxiv: computer science papers on arXiv that cite each other; features are mean word vectors.

Reads the Open Graph Benchmark's raw files, so its package is not needed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspray.data.graph import Graph
from fedspray.datasets._files import DataFolders, from_zip, provide
from fedspray.datasets.base import DatasetCard
from fedspray.errors import UNREADABLE, InputError

OFFICIAL = "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")


def read_arxiv(folder: Path) -> Graph:
    """Reads edges [E, 2], features [N, F] and labels [N, 1] from CSV files without a header."""
    import pandas as pd

    try:
        edges, features, labels = (
            pd.read_csv(folder / file, header=None, dtype=kind).to_numpy()
            for file, kind in zip(FILES, (np.int64, np.float32, np.int64), strict=True)
        )
    except UNREADABLE as error:
        raise InputError(f"{folder} does not hold readable ogbn-arxiv files ({error})") from None
    return Graph.from_arrays(features, edges.T, labels.ravel())


def _arxiv(folders: DataFolders) -> Graph:
    source = from_zip(OFFICIAL, {file: f"arxiv/raw/{file}" for file in FILES})
    return read_arxiv(provide(folders, "arxiv", "ogbn_arxiv", dict.fromkeys(FILES), [source]))


CARDS = (
    DatasetCard(
        name="arxiv",
        title="computer science papers on arXiv that cite each other",
        num_nodes=169_343,
        num_edges=1_157_799,  # 1,166,243 published citations, some of them mutual
        num_features=128,
        num_classes=40,
        default_clients=20,
        citation="Hu et al., Open Graph Benchmark: datasets for machine learning on graphs, NeurIPS 2020",
        read=_arxiv,
    ),
)
