"""ogbn-arxiv, on small files of the published format."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedspray.datasets import DataFolders, load
from fedspray.datasets.arxiv import read_arxiv
from fedspray.errors import InputError


def write(raw: Path) -> None:
    raw.mkdir(parents=True)
    for file, text in (
        ("edge.csv.gz", "0,1\n1,0\n2,1\n"),
        ("node-feat.csv.gz", "0.5,-1.25\n0.0,2.0\n1e-3,4.0\n"),
        ("node-label.csv.gz", "4\n0\n1\n"),
    ):
        (raw / file).write_bytes(gzip.compress(text.encode()))


def test_small_files(tmp_path: Path) -> None:
    write(tmp_path / "raw")
    graph = read_arxiv(tmp_path / "raw")
    expected = np.array([[0.5, -1.25], [0, 2], [1e-3, 4]], dtype=np.float32)
    assert np.array_equal(graph.features, expected)
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.labels.tolist() == [4, 0, 1]


@pytest.mark.parametrize("damage", [lambda _: b"text", lambda whole: whole[:12] + b"\xff" * 4 + whole[16:]])
def test_unreadable_files(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write(tmp_path / "raw")
    file = tmp_path / "raw" / "edge.csv.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match="hold readable ogbn-arxiv"):
        read_arxiv(tmp_path / "raw")


def test_counts_are_checked(tmp_path: Path) -> None:
    write(tmp_path / "ogbn_arxiv" / "raw")
    with pytest.raises(InputError, match="'arxiv' hold 3 nodes"):
        load("arxiv", DataFolders(cache=tmp_path / "cache", data=tmp_path))
