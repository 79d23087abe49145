"""The catalogue of data sets and its published counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedspray import datasets
from fedspray.data.graph import Graph
from fedspray.datasets import DataFolders, DatasetCard
from fedspray.errors import InputError


def toy(folders: DataFolders) -> Graph:
    return Graph.from_arrays(np.ones((3, 2)), [[0, 1], [1, 2]], [0, 1, 0])


CARD = DatasetCard("toy", "a toy", 3, 2, 2, 2, default_clients=1, citation="nobody", read=toy)
NOWHERE = DataFolders(cache=Path("nowhere"))


def test_names() -> None:
    assert list(datasets.catalogue()) == [
        "arxiv", "citeseer", "computers", "cora", "cs", "flickr", "minesweeper", "photo", "physics", "pubmed",
        "tolokers", "wikics",
    ]  # fmt: skip
    assert "banks" in datasets.names()


def test_paper_client_counts_are_the_defaults() -> None:
    defaults = {name: card.default_clients for name, card in datasets.catalogue().items()}
    paper = {"pubmed": 7, "wikics": 12, "physics": 12, "flickr": 20}
    assert {name: defaults[name] for name in paper} == paper


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown data set 'pubmd': choose one of .*did you mean 'pubmed'"):
        datasets.load("pubmd")


@pytest.mark.parametrize("what", ["nodes", "edges", "features", "classes"])
def test_other_counts_than_published_are_refused(what: str) -> None:
    assert CARD.load(NOWHERE).num_nodes == 3
    found = getattr(CARD, f"num_{what}")
    with pytest.raises(InputError, match=f"'toy' hold {found} {what}, but 99 are published"):
        replace(CARD, **{f"num_{what}": 99}).load(NOWHERE)  # type: ignore[arg-type]


def test_graph_without_features_passes_as_graph_only() -> None:
    CARD.check(Graph.from_arrays(np.ones((3, 0)), [[0, 1], [1, 2]], [0, 1, 0]))


def test_catalogue_is_light() -> None:
    program = "import sys, fedspray.datasets as d; d.catalogue(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
