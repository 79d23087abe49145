"""Coauthor and Amazon graphs: sparse from file to client, and equal to what PyTorch Geometric makes dense."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspray.data.graph import Graph
from fedspray.datasets import DataFolders, load
from fedspray.datasets.gnn_benchmark import read_npz
from fedspray.errors import InputError


def write_npz(file: Path) -> None:
    attributes = sp.csr_matrix(np.array([[0, 2, 0], [1, 0, 0], [0, 0, 5], [3, 0, 1]], dtype=np.float32))
    adjacency = sp.csr_matrix(np.array([[0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=np.float32))
    arrays: dict[str, Any] = {}
    for prefix, matrix in (("attr", attributes), ("adj", adjacency)):
        arrays |= {f"{prefix}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    names = np.array(["a", None], dtype=object)  # the published files carry such; they must not be opened
    np.savez(file, labels=np.array([0, 1, 2, 1]), node_names=names, **arrays)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyG's import
def test_small_file_equals_pyg(tmp_path: Path) -> None:
    from torch_geometric import io

    write_npz(tmp_path / "small.npz")
    graph = read_npz(tmp_path / "small.npz")
    assert graph.is_sparse
    features: Any = graph.features
    assert features.toarray().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1]]
    assert graph.edges.tolist() == [[0, 1, 2], [1, 2, 3]]
    oracle = Graph.from_pyg(io.read_npz(str(tmp_path / "small.npz")))
    assert np.array_equal(features.toarray(), oracle.features)
    assert np.array_equal(graph.edges, oracle.edges)
    assert np.array_equal(graph.labels, oracle.labels)


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_unreadable_file(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "bad.npz"
    if content is None:
        np.savez(file, labels=np.zeros(3))
    else:
        file.write_bytes(content)
    with pytest.raises(InputError, match="file of gnn-benchmark"):
        read_npz(file)


def test_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.npz"
    write_npz(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match="file of gnn-benchmark"):
        read_npz(file)


def test_small_file_is_not_physics(tmp_path: Path) -> None:
    raw = tmp_path / "Physics" / "raw"
    raw.mkdir(parents=True)
    write_npz(raw / "ms_academic_phy.npz")
    with pytest.raises(InputError, match="'physics' hold 4 nodes"):
        load("physics", DataFolders(cache=tmp_path / "cache", data=tmp_path))


PROGRAM = """
import resource, sys
from pathlib import Path
from fedspray.federate import build_federation
federation = build_federation("physics", partition_dir=Path(sys.argv[1]))
assert all(client.graph.is_sparse for client in federation.clients)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.data
@pytest.mark.parametrize(("dataset", "largest_class"), [("cs", 4136), ("photo", 1941), ("computers", 5158)])
def test_real_files(dataset: str, largest_class: int, real_data: Path, tmp_path: Path) -> None:
    graph = load(dataset, DataFolders(cache=tmp_path, data=real_data))  # compares the counts
    assert graph.label_counts().max() == largest_class
    assert graph.labelled.all()
    assert set(np.unique(graph.features.data)) == {1.0}


@pytest.mark.data
def test_physics_takes_less_than_a_gigabyte(real_data: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "FEDSPRAY_DATA": str(real_data), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(real_data / "partitions" / "Physics")]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(outcome.stdout) < 1000  # MB; 310 when this was written
