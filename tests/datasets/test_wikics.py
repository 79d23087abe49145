"""WikiCS, on a small file of the published format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedspray.data.graph import Graph
from fedspray.datasets import DataFolders, load
from fedspray.datasets.wikics import read_wikics
from fedspray.errors import InputError

CONTENT = {
    "features": [[0.5, 1.0], [0.0, -1.0], [2.0, 0.25], [0.0, 0.0]],
    "labels": [0, 2, 1, 0],
    "links": [[1, 2, 0], [0], [], [2]],
    "train_masks": [[True, False, False, False]],
    "val_masks": [[False, True, False, False]],
    "test_mask": [False, False, True, False],
    "stopping_masks": [[False, False, False, True]],
}


def write(root: Path) -> Path:
    file = root / "raw" / "data.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(CONTENT))
    return file


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyG's import
def test_small_file_equals_pyg(tmp_path: Path) -> None:
    from torch_geometric.datasets import WikiCS

    graph = read_wikics(write(tmp_path))
    assert graph.edges.tolist() == [[0, 0, 2], [1, 2, 3]]
    assert graph.cleaning.self_loops == 1
    oracle = Graph.from_pyg(WikiCS(str(tmp_path), is_undirected=True)[0])
    assert graph.equals(oracle)
    assert np.array_equal(graph.features, np.array(CONTENT["features"], dtype=np.float32))


@pytest.mark.parametrize("text", ["", "[]", '{"features": []}'])
def test_unreadable_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(InputError, match="readable WikiCS file"):
        read_wikics(tmp_path / "data.json")


def test_counts_are_checked(tmp_path: Path) -> None:
    write(tmp_path / "WikiCS")
    with pytest.raises(InputError, match="'wikics' hold 4 nodes"):
        load("wikics", DataFolders(cache=tmp_path / "cache", data=tmp_path))
