"""WikiCS: Wikipedia articles on computer science, joined by links; features are mean word vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedspray.data.graph import Graph
from fedspray.datasets._files import DataFolders, from_urls, provide
from fedspray.datasets.base import DatasetCard
from fedspray.errors import InputError

OFFICIAL = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset"


def read_wikics(file: Path) -> Graph:
    """Reads ``features``, ``labels`` and ``links`` (the neighbours of each node) from one JSON file."""
    try:
        content = json.loads(file.read_text())
        features, labels, links = (content[key] for key in ("features", "labels", "links"))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not a readable WikiCS file ({error!r})") from None
    ends = np.repeat(np.arange(len(links)), [len(others) for others in links])
    others = np.array([other for neighbours in links for other in neighbours], dtype=np.int64)
    return Graph.from_arrays(np.array(features, dtype=np.float32), np.stack([ends, others]), labels)


def _wikics(folders: DataFolders) -> Graph:
    source = from_urls({"data.json": f"{OFFICIAL}/data.json"})
    return read_wikics(provide(folders, "wikics", "WikiCS", {"data.json": None}, [source]) / "data.json")


CARDS = (
    DatasetCard(
        name="wikics",
        title="Wikipedia articles on computer science that link to each other",
        num_nodes=11_701,
        num_edges=215_603,  # 216,123 published links, of which 520 are self-loops
        num_features=300,
        num_classes=10,
        default_clients=12,
        citation="Mernyei and Cangea, Wiki-CS: a Wikipedia-based benchmark for graph neural networks, 2020",
        read=_wikics,
    ),
)
