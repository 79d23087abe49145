from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedspray.data.graph import Graph
from fedspray.experiment import Data
from reproduction.access import AUTHORS, LOUVAIN, Access, Found, NotFound
from reproduction.federations import table1, table4
from reproduction.trained import Order


def request(partitions: Path, *datasets: str) -> Order:
    return Order(
        run_cells=lambda title, cells: [],
        access=Access([partitions]),
        experiments=Path(),
        datasets=datasets,
    )


@pytest.fixture
def data(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    return real_data


@pytest.mark.data
def test_table_1_is_the_papers_to_the_last_digit(data: Path) -> None:
    result = table1(request(data / "partitions"))
    assert [line.agrees for line in result.lines] == [True] * 35
    assert result.missing == []
    assert "7 of 7 clients" in result.findings[1]


@pytest.mark.data
def test_table_1_without_the_authors_lists_compares_nothing(data: Path, tmp_path: Path) -> None:
    result = table1(request(tmp_path))
    published = [line for line in result.lines if line.published is not None]
    assert len(published) == 35
    assert {line.ours for line in published} == {None}
    assert str(tmp_path / "PubMed") in result.missing[0].reason
    assert len(result.sheets) == 2  # Louvain's clients are shown apart
    assert len(result.findings) == 1
    assert "of Louvain's 7 clients" in result.findings[0]


@pytest.mark.data
def test_table_4_of_pubmed(data: Path, tmp_path: Path) -> None:
    result = table4(request(data / "partitions", "pubmed"))
    assert [line.agrees for line in result.lines] == [True] * 5
    louvain = table4(request(tmp_path, "pubmed"))
    assert {line.split for line in louvain.lines} == {LOUVAIN}
    assert "Louvain's, not the authors'" in louvain.sheets[0].note
    assert louvain.findings == []


def test_data_that_are_not_here_are_named_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path / "data"))
    result = table4(request(tmp_path, "wikics"))
    assert {line.status for line in result.lines} == {"no data"}
    assert {line.ours for line in result.lines} == {None}
    (missing,) = result.missing
    assert "put data.json into" in missing.reason
    assert missing.command == "fedspray reproduce table4 --dataset wikics"


def test_a_graph_without_features_is_no_data_for_training(tmp_path: Path) -> None:
    graph = Graph.from_arrays(np.zeros((4, 0)), [[0, 1, 2, 3], [1, 2, 3, 0]], [0, 1, 0, 1])
    graph.to_npz(tmp_path / "bare.npz")
    source = Data.of(dataset=str(tmp_path / "bare.npz"), partitioner="metis", clients=2).located()
    access = Access([tmp_path])
    assert isinstance(access.find(source, features=False), Found)
    found = access.find(source)
    assert isinstance(found, NotFound)
    assert "not its node" in found.reason


def test_data_are_looked_for_once(tmp_path: Path) -> None:
    access = Access([tmp_path])
    source = Data.of(dataset="banks", nodes=200).located()
    found = access.find(source)
    assert isinstance(found, Found)
    assert found.split == ""
    assert access.find(source) is found


@pytest.mark.data
def test_the_authors_lists_are_found_by_the_name_of_their_folder(data: Path, tmp_path: Path) -> None:
    source = Data.of(dataset="pubmed", partition_dir="elsewhere/PubMed").located()
    here = Access([tmp_path, data / "partitions"]).find(source)
    assert isinstance(here, Found)
    assert here.split == AUTHORS
    assert here.federation.num_clients == 7
    assert not isinstance(Access([tmp_path]).find(source), NotFound)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("fedspray.datasets._files._download", refuse)
