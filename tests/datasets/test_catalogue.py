"""The catalogue of data sets and its published counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray import datasets
from fedspray.data.graph import Graph
from fedspray.datasets import DataFolders, DatasetCard, FederationCard
from fedspray.datasets.base import ClientGraphs
from fedspray.errors import InputError


def toy(folders: DataFolders) -> Graph:
    return Graph.from_arrays(np.ones((3, 2)), [[0, 1], [1, 2]], [0, 1, 0])


CARD = DatasetCard("toy", "a toy", 3, 2, 2, 2, default_clients=1, citation="nobody", read=toy)
NOWHERE = DataFolders(cache=Path("nowhere"))


def test_names() -> None:
    assert datasets.names() == list(datasets.catalogue()) == [
        "arxiv", "banks", "citation", "citeseer", "computers", "cora", "cs", "flickr", "minesweeper", "photo",
        "physics", "pubmed", "tolokers", "twitch", "wikics",
    ]  # fmt: skip


def test_paper_client_counts_are_the_defaults() -> None:
    defaults = {name: card.default_clients for name, card in datasets.catalogue().items()}
    paper = {"pubmed": 7, "wikics": 12, "physics": 12, "flickr": 20}
    assert {name: defaults[name] for name in paper} == paper


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="data set 'pubmd'"):
        datasets.load("pubmd")


def test_separate_clients_are_not_one_graph() -> None:
    with pytest.raises(InputError, match="'twitch'"):
        datasets.load("twitch")


@dataclass(frozen=True)
class Pair(ClientGraphs):
    """Two clients."""

    def graphs(self, folders: DataFolders, seed: int) -> dict[str, Graph]:
        return {"a": toy(folders), "b": toy(folders).subgraph(np.array([0, 1]))}


def test_counts_of_clients_are_checked() -> None:
    card = FederationCard(
        name="pair", title="", source=Pair, clients={"a": (3, 2), "b": (2, 1)}, num_features=2, num_classes=2
    )
    assert list(card.load(Pair(), folders=NOWHERE)) == ["a", "b"]
    assert (card.num_nodes, card.num_edges, card.default_clients) == (5, 3, 2)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("client b of data set 'pair' hold 2 nodes, but 9", {"clients": {"a": (3, 2), "b": (9, 1)}}),
        ("client a of data set 'pair' hold 2 edges, but 9", {"clients": {"a": (3, 9)}}),
        ("client a of data set 'pair' hold 2 features, but 9", {"num_features": 9}),
        ("client a of data set 'pair' hold 2 classes, but 9", {"num_classes": 9}),
    ]
    for sentence, other in wrong:
        with pytest.raises(InputError, match=sentence):
            replace(card, **other).load(Pair(), folders=NOWHERE)


@pytest.mark.parametrize("what", ["nodes", "edges", "features", "classes"])
def test_other_counts_than_published_are_refused(what: str) -> None:
    assert CARD.load(NOWHERE).num_nodes == 3
    found = getattr(CARD, f"num_{what}")
    with pytest.raises(InputError, match=f"'toy' hold {found} {what}"):
        replace(CARD, **{f"num_{what}": 99}).load(NOWHERE)  # type: ignore[arg-type]


def test_graph_without_features_passes_as_graph_only() -> None:
    CARD.check(Graph.from_arrays(np.ones((3, 0)), [[0, 1], [1, 2]], [0, 1, 0]))


def test_catalogue_is_light() -> None:
    program = "import sys, fedspray.datasets as d; d.catalogue(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
