"""Minesweeper and Tolokers: edges listed once, splits not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray.datasets import DataFolders, load
from fedspray.datasets.heterophilous import read_heterophilous
from fedspray.errors import InputError

SMALL: dict[str, Any] = {
    "node_features": np.eye(4, 3, dtype=np.float32),
    "node_labels": np.array([0, 1, 1, 0]),
    "edges": np.array([[2, 0], [0, 1]]),  # node 3 has no neighbour
    "train_masks": np.ones((10, 4), dtype=bool),
}


def test_small_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", **SMALL)
    graph = read_heterophilous(tmp_path / "small.npz")
    assert graph.edges.tolist() == [[0, 0], [1, 2]]
    assert graph.labels.tolist() == [0, 1, 1, 0]
    assert graph.dense_features().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    "other",
    [{"edges": np.array([[0, 4]])}, {"node_labels": np.array([0, 1])}, {"edges": np.array([{}])}],
    ids=["a node that is not there", "too few labels", "a pickle"],
)
def test_bad_file_is_named(other: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **{**SMALL, **other})
    with pytest.raises(InputError, match="file of heterophilous-graphs"):
        read_heterophilous(tmp_path / "bad.npz")


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tolokers").mkdir()
    np.savez(tmp_path / "tolokers" / "tolokers.npz", **SMALL)
    with pytest.raises(InputError, match=r"tolokers\.npz has sha256 \w+"):
        load("tolokers", DataFolders(cache=tmp_path / "cache", data=tmp_path))


@pytest.mark.data
@pytest.mark.parametrize(("dataset", "counts"), [("minesweeper", [8000, 2000]), ("tolokers", [9192, 2566])])
def test_real_files(dataset: str, counts: list[int], real_data: Path, tmp_path: Path) -> None:
    graph = load(dataset, DataFolders(cache=tmp_path, data=real_data))  # compares the other counts
    assert graph.label_counts().tolist() == counts
