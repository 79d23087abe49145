"""`citation`: three databases, one vocabulary; papers with two classes are unlabelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from fedspray import build_federation
from fedspray.cli.main import run_command
from fedspray.data.federation import Federation
from fedspray.datasets import DataFolders
from fedspray.datasets.citation import FILES, Citation, read_mat, read_npz
from fedspray.errors import InputError

NAMES = [Path(file).stem for file in FILES]
WORDS = np.array([[0, 2, 0], [1, 0, 0], [0, 0, 3], [0, 0, 0]], dtype=np.uint8)
ADJACENCY = np.array([[0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=np.float32)
GROUPS = np.array([[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=np.int8)


def write_npz(file: Path, **other: Any) -> None:
    arrays: dict[str, Any] = {"classes": GROUPS}
    for prefix, matrix in (("attr", sp.csr_array(WORDS)), ("adj", sp.csr_array(ADJACENCY))):
        arrays |= {f"{prefix}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(file, **{**arrays, **other})


def test_small_files_of_both_formats_are_equal(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz")
    scipy.io.savemat(tmp_path / "a.mat", {"attrb": WORDS, "network": sp.csc_matrix(ADJACENCY), "group": GROUPS})
    graph = read_npz(tmp_path / "a.npz")
    assert graph.labels.tolist() == [0, -1, 3, -1]  # two classes, no class
    assert graph.num_classes == 5  # nobody has the last one
    assert graph.edges.tolist() == [[0, 1], [1, 2]]  # without the self-loop; paper 3 cites nobody
    assert graph.dense_features().tolist() == WORDS.tolist()
    assert graph.is_sparse
    assert graph.equals(read_mat(tmp_path / "a.mat"))


@pytest.mark.parametrize(
    "other",
    [{"classes": GROUPS[:2]}, {"adj_indices": np.array([9] * 5)}, {"attr_data": np.array([{}])}],
    ids=["too few classes", "a paper that is not there", "a pickle"],
)
def test_bad_file_is_named(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "citation").mkdir()
    for name in NAMES:
        write_npz(tmp_path / "citation" / f"{name}.npz", **(other if name == NAMES[1] else {}))
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path))
    assert run_command(["inspect", "--dataset", "citation"]) == 2
    assert "citationv1.npz" in " ".join(capsys.readouterr().err.split())


def test_small_files_are_not_the_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "citation" / "raw"
    raw.mkdir(parents=True)
    for name in NAMES:
        write_npz(raw / f"{name}.npz")
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match="set 'citation' hold 4"):
        build_federation("citation")
    for name in NAMES:
        (raw / f"{name}.npz").rename(raw / f"{name}.mat")
    with pytest.raises(InputError, match=r"acmv9\.mat has sha256 \w+"):
        Citation().graphs(DataFolders(cache=tmp_path / "cache", data=tmp_path))


@pytest.mark.parametrize(
    "choice", [{"clients": 2}, {"nodes": 50}, {"partition_seed": 1}, {"partitioner": "metis"}, {"split_scope": "graph"}]
)
def test_nothing_is_cut_or_drawn(choice: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"doesn't apply here: ('citation' (comes as|is not cut)|only 'banks')"):
        build_federation("citation", **choice)


@pytest.fixture(scope="module")
def federation(real_data: Path) -> Federation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSPRAY_DATA", str(real_data))
        return build_federation("citation")


@pytest.mark.data
def test_real_files(federation: Federation) -> None:
    assert [client.name for client in federation.clients] == NAMES
    assert federation.settings == {"dataset": "citation", "split_seed": 0}
    graphs = [client.graph for client in federation.clients]
    assert [int((~graph.labelled).sum()) for graph in graphs] == [581, 166, 15]
    assert {(graph.num_features, graph.num_classes, graph.is_sparse) for graph in graphs} == {(6775, 5, True)}
    assert all(set(np.unique(graph.labels)) == {-1, 0, 1, 2, 3, 4} for graph in graphs)


@pytest.mark.data
def test_the_real_databases_have_one_vocabulary(federation: Federation) -> None:
    """A word that is frequent in one database is frequent in the others: not so if a file had columns of its own."""
    use = np.stack([np.asarray(client.graph.features.sum(axis=0)).ravel() for client in federation.clients])
    assert np.corrcoef(use)[np.triu_indices(3, 1)].min() > 0.5  # 0.66; of shuffled columns 0.00
