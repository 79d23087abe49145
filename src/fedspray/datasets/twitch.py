"""`twitch`: streamers who follow each other, one client for each of seven languages or countries.

The class is whether a streamer uses mature language. Features are the games liked, place and habits, as ids
of one vocabulary of 3,170: column i is id i at every client, also where nobody there has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.data.graph import Graph
from fedspray.datasets._files import DataFolders, from_zip, provide, reading
from fedspray.datasets.base import ClientGraphs, FederationCard
from fedspray.errors import InputError

OFFICIAL = "https://snap.stanford.edu/data/twitch.zip"
COUNTRIES = {
    "DE": (9_498, 153_138),
    "ENGB": (7_126, 35_324),
    "ES": (4_648, 59_382),
    "FR": (6_549, 112_666),
    "PTBR": (1_912, 31_299),
    "RU": (4_385, 37_304),
    "TW": (2_772, 63_462),
}
"""Nodes and edges of each client."""
KINDS = ("edges.csv", "features.json", "target.csv")
NUM_IDS = 3_170
CLASSES = ("not mature", "mature")


def read_country(folder: Path, country: str) -> Graph:
    """Reads one country's edges, features and target table."""
    import pandas as pd

    edges, features, target = (folder / f"musae_{country}_{kind}" for kind in KINDS)
    with reading(target, "Twitch"):
        labels = _labels(pd.read_csv(target))
    with reading(features, "Twitch"):
        matrix = _matrix(json.loads(features.read_text()), len(labels))
    with reading(edges, "Twitch"):
        pairs = pd.read_csv(edges)[["from", "to"]].to_numpy().T
        return Graph.from_arrays(matrix, pairs, labels, class_names=CLASSES)


def _labels(table: Any) -> NDArray[np.int64]:
    """[N]: 1 where ``mature`` is True. A streamer may be listed twice (in France two are), but not with two classes."""
    listed = table[["new_id", "mature"]].drop_duplicates().sort_values("new_id")
    if listed["mature"].dtype != np.bool_:
        raise InputError("the column 'mature' must be True or False for every streamer")
    if listed["new_id"].tolist() != list(range(len(listed))):
        raise InputError(f"the column 'new_id' must be 0 to {len(listed) - 1}, each with one class")
    return np.asarray(listed["mature"], dtype=np.int64)


def _matrix(ids_of: Any, num_nodes: int) -> sp.csr_array:
    """[N, `NUM_IDS`]: 1 where a streamer has an id; some are listed twice."""
    if not isinstance(ids_of, dict) or not all(isinstance(ids, list) for ids in ids_of.values()):
        raise InputError("it must be a JSON object with a list of ids for each streamer")
    rows = np.repeat([int(node) for node in ids_of], [len(ids) for ids in ids_of.values()])
    columns = np.array([number for ids in ids_of.values() for number in ids], dtype=np.int64)
    matrix = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(num_nodes, NUM_IDS))
    matrix.data = np.minimum(matrix.data, np.float32(1))
    return matrix


@dataclass(frozen=True)
class Twitch(ClientGraphs):
    """The seven countries."""

    def graphs(self, folders: DataFolders, seed: int = 0) -> dict[str, Graph]:
        """Reads the three files of each country."""
        members = {f"musae_{c}_{kind}": f"twitch/{c}/musae_{c}_{kind}" for c in COUNTRIES for kind in KINDS}
        members["musae_DE_features.json"] = "twitch/DE/musae_DE.json"  # the one name that differs in the archive
        folder = provide(folders, "twitch", "twitch", dict.fromkeys(members), [from_zip(OFFICIAL, members)])
        return {country: read_country(folder, country) for country in COUNTRIES}


CARDS = (
    FederationCard(
        name="twitch",
        title="streamers who follow each other, in seven countries",
        source=Twitch,
        clients=COUNTRIES,
        num_features=NUM_IDS,
        num_classes=len(CLASSES),
        citation="Rozemberczki, Allen and Sarkar, Multi-scale attributed node embedding, 2021, arXiv:1909.13021",
    ),
)
