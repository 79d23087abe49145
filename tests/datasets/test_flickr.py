"""Flickr, on small files of the published format, and the real graph without features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedspray.data.graph import Graph
from fedspray.datasets import DataFolders, load
from fedspray.datasets.flickr import read_flickr
from fedspray.errors import InputError


def write(raw: Path) -> None:
    raw.mkdir(parents=True)
    dense = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]], dtype=np.float64)
    sp.save_npz(raw / "adj_full.npz", sp.csr_matrix(dense))
    np.save(raw / "feats.npy", np.arange(8, dtype=np.float64).reshape(4, 2))
    (raw / "class_map.json").write_text(json.dumps({"0": 1, "2": 0, "1": 2, "3": 2}))
    (raw / "role.json").write_text(json.dumps({"tr": [0], "va": [1], "te": [2, 3]}))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyG's import
def test_small_files_equal_pyg(tmp_path: Path) -> None:
    from torch_geometric.datasets import Flickr

    write(tmp_path / "raw")
    graph = read_flickr(tmp_path / "raw")
    assert graph.labels.tolist() == [1, 2, 0, 2]
    assert graph.edges.tolist() == [[0, 0, 2], [1, 2, 3]]
    assert graph.equals(Graph.from_pyg(Flickr(str(tmp_path))[0]))


def test_unreadable_files(tmp_path: Path) -> None:
    write(tmp_path / "raw")
    (tmp_path / "raw" / "class_map.json").write_text("{")
    with pytest.raises(InputError, match="hold readable Flickr"):
        read_flickr(tmp_path / "raw")


def test_half_a_file(tmp_path: Path) -> None:
    write(tmp_path / "raw")
    file = tmp_path / "raw" / "adj_full.npz"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InputError, match="hold readable Flickr"):
        read_flickr(tmp_path / "raw")


def test_whole_files_come_before_graph_only(tmp_path: Path) -> None:
    write(tmp_path / "Flickr" / "raw")
    (tmp_path / "Flickr_graph_only").mkdir()
    (tmp_path / "Flickr_graph_only" / "flickr_graph_only.npz").write_bytes(b"")
    with pytest.raises(InputError, match="'flickr' hold 4 nodes"):
        load("flickr", DataFolders(cache=tmp_path / "cache", data=tmp_path))


@pytest.mark.data
def test_graph_only(real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = load("flickr", DataFolders(cache=tmp_path, data=real_data))
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (89_250, 449_878, 0, 7)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "without features" in printed.err
