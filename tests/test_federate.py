"""From a name and a few choices to a federation."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray.api import run
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.data.statistics import describe
from fedspray.errors import InputError, MissingDataError
from fedspray.experiment import Data, Experiment
from fedspray.federate import build_federation, open_data


def averages(federation: Federation) -> tuple[int, int, int]:
    graphs = [client.graph for client in federation.clients]
    nodes = np.mean([graph.num_nodes for graph in graphs])
    edges = np.mean([graph.num_edges for graph in graphs])
    return len(graphs), round(nodes), round(edges)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """Three cliques of 6, 5 and 4 nodes."""
    labels = np.repeat([0, 1, 2], [6, 5, 4])
    u, v = np.triu_indices(15, k=1)
    edges = np.stack([u, v])[:, labels[u] == labels[v]]
    Graph.from_arrays(np.eye(15), edges, labels).to_npz(tmp_path / "mine.npz")
    return tmp_path / "mine.npz"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "north.txt").write_text("0\n1\n2\n")
    (folder / "south.txt").write_text("7.0\n8.0\n")
    return folder


def shares(federation: Federation) -> list[list[int]]:
    splits = [client.split for client in federation.clients]
    return [[int(mask.sum()) for mask in (split.train, split.val, split.test)] for split in splits]


def test_split_and_its_scope(graph_file: Path, tmp_path: Path) -> None:
    cut: dict[str, Any] = {"partitioner": "louvain", "clients": 3}
    assert shares(build_federation(graph_file, **cut)) == [[2, 2, 2], [2, 2, 1], [2, 1, 1]]
    assert shares(build_federation(graph_file, split="50/50/0", **cut)) == [[3, 3, 0], [2, 2, 1], [2, 2, 0]]
    whole = build_federation(graph_file, split="60/20/20", split_scope="graph", **cut)
    assert np.sum(shares(whole), axis=0).tolist() == [9, 3, 3]
    assert {name: whole.settings[name] for name in ("split", "split_scope")} == {
        "split": "60/20/20",
        "split_scope": "graph",
    }
    whole.save(tmp_path / "saved")
    assert build_federation(tmp_path / "saved").split_fingerprint() == whole.split_fingerprint()
    again = build_federation(tmp_path / "saved", split="40/30/30", split_scope="client")
    assert again.split_fingerprint() == build_federation(graph_file, **cut).split_fingerprint()
    assert shares(build_federation("banks", nodes=200, split="20/20/60")) == [[10, 10, 30]] * 4
    with pytest.raises(InputError, match="'banks' is not"):
        build_federation("banks", split_scope="graph")


def test_an_experiment_says_how_to_split(tmp_path: Path) -> None:
    experiment = Experiment.from_values({"dataset": "banks", "nodes": 200, "split": "20/20/60"}, "test")
    federation = open_data(experiment.data)
    assert shares(federation) == [[10, 10, 30]] * 4
    result = run(federation, algorithm="local", rounds=1)  # each seed draws anew, as the federation says
    assert sum(row["nodes"] for row in result.seeds[0].metrics["clients"].values()) == 120
    assert result.header["federation"]["split"] == "20/20/60"


@pytest.mark.data
@pytest.mark.parametrize(
    ("dataset", "folder", "expected"),
    [
        ("pubmed", "PubMed", (7, 1_608, 3_600)),
        ("physics", "Physics", (12, 2_651, 14_790)),
        ("flickr", "Flickr", (20, 4_441, 14_331)),
    ],
)
def test_published_split_has_the_papers_averages(
    dataset: str,
    folder: str,
    expected: tuple[int, int, int],
    real_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    federation = build_federation(dataset, partition_dir=real_data / "partitions" / folder)
    assert averages(federation) == expected
    assert federation.settings["partitioner"] == "files"


def homophily(graph: Graph, nodes: Any) -> float:
    """Mean share of neighbours with the node's own label, over the given nodes that have neighbours."""
    ends, others = graph.both_directions()
    agree = np.bincount(ends, weights=graph.labels[ends] == graph.labels[others], minlength=graph.num_nodes)
    counted = nodes & (graph.degrees > 0)
    return float((agree[counted] / graph.degrees[counted]).mean())


@pytest.mark.data
def test_louvain_on_pubmed(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the default seed; other seeds may find a community without a clear majority, see docs/datasets.md."""
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    federation = build_federation("pubmed")
    assert federation.num_clients == 7
    for client in federation.clients:
        majority = client.graph.labels == client.graph.label_counts().argmax()
        assert homophily(client.graph, majority) > homophily(client.graph, ~majority)


def test_banks_by_default() -> None:
    federation = build_federation("banks")
    assert [client.graph.num_nodes for client in federation.clients] == [1_500] * 4
    assert federation.settings["num_nodes"] == 6_000
    assert federation.settings["minority_ratio"] == 0.25


def test_seeds_of_banks() -> None:
    first = build_federation("banks", clients=2, nodes=200)
    other_split = build_federation("banks", clients=2, nodes=200, seed=1)
    other_draw = build_federation("banks", clients=2, nodes=200, partition_seed=1)
    assert other_split.clients[0].graph.equals(first.clients[0].graph)
    assert not np.array_equal(other_split.clients[0].split.train, first.clients[0].split.train)
    assert not other_draw.clients[0].graph.equals(first.clients[0].graph)


@pytest.mark.slow
def test_a_million_nodes(tmp_path: Path) -> None:
    started = time.perf_counter()
    federation = build_federation("banks", clients=100, nodes=1_000_000)
    federation.save(tmp_path / "banks")
    assert time.perf_counter() - started < 60  # 2.5 s when this was written
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4e6  # kB; 0.43e6 when this was written
    assert sum(client.graph.num_nodes for client in federation.clients) == 1_000_000


def test_own_graph(graph_file: Path) -> None:
    federation = build_federation(str(graph_file), clients=2, seed=3)
    assert federation.name == "mine"
    assert [client.node_ids.tolist() for client in federation.clients] == [list(range(6)), list(range(6, 11))]
    assert {**federation.settings, "graph_sha256": ""} == {
        "dataset": graph_file.name,
        "partitioner": "louvain",
        "num_clients": 2,
        "resolution": 1.0,
        "partition_seed": 0,
        "split_seed": 3,
        "graph_sha256": "",
    }


def test_a_graph_in_memory_is_cut_like_its_file(graph_file: Path) -> None:
    graph = Graph.from_npz(graph_file)
    saved = build_federation(graph_file, clients=2, resolution=1.5, split="60/20/20")
    for given in (graph, graph.to_pyg()):
        cut = build_federation(given, clients=2, resolution=1.5, split="60/20/20")
        assert (cut.fingerprint(), cut.split_fingerprint()) == (saved.fingerprint(), saved.split_fingerprint())
        assert cut.settings == {**saved.settings, "dataset": "graph"}
    with pytest.raises(InputError, match="the number of clients is missing"):
        build_federation(graph)


def test_graph_hash_is_of_the_content(graph_file: Path, tmp_path: Path) -> None:
    graph = Graph.from_npz(graph_file)
    graph.to_npz(tmp_path / "copy.npz")
    Graph.from_arrays(graph.features * 2, graph.edges, graph.labels).to_npz(tmp_path / "other.npz")
    hashes = [
        build_federation(str(tmp_path / f"{name}.npz"), clients=2).settings["graph_sha256"]
        for name in ("mine", "copy", "other")
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_node_lists_may_lie_in_the_data_folder(
    graph_file: Path, lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("FEDSPRAY_DATA", str(lists.parent))
    federation = build_federation(str(graph_file), partition_dir=Path(lists.name))
    assert federation.fingerprint() == build_federation(str(graph_file), partition_dir=lists).fingerprint()
    source = Data.of(dataset=str(graph_file), partition_dir=lists.name).located().to_json()
    assert source["partition_dir"] == str(lists)  # so that a run can be resumed from anywhere
    (tmp_path / "elsewhere" / lists.name).mkdir()  # what is here comes first
    with pytest.raises(InputError, match=r"lists holds no \.txt file"):
        build_federation(str(graph_file), partition_dir=Path(lists.name))


def test_partition_dir_implies_files(graph_file: Path, lists: Path) -> None:
    federation = build_federation(str(graph_file), partition_dir=lists)
    assert [client.name for client in federation.clients] == ["north", "south"]
    assert federation.settings["partition_dir"] == lists.name  # results name no folder of this machine


def test_label_skew_and_its_alpha(graph_file: Path) -> None:
    federation = build_federation(str(graph_file), partitioner="label-skew", clients=2, alpha=100.0)
    assert federation.settings["alpha"] == 100.0
    assert sum(client.graph.num_nodes for client in federation.clients) == 15


def test_saved_federation(graph_file: Path, tmp_path: Path) -> None:
    made = build_federation(str(graph_file), clients=2, seed=5)
    made.save(tmp_path / "saved")
    kept = build_federation(str(tmp_path / "saved"))
    assert kept.settings == made.settings
    assert np.array_equal(kept.clients[0].split.train, made.clients[0].split.train)
    anew = build_federation(str(tmp_path / "saved"), seed=6)
    assert anew.settings["split_seed"] == 6
    choices: list[dict[str, Any]] = [
        {"clients": 2},
        {"partitioner": "metis"},
        {"nodes": 9},
        {"alpha": 1.0},
        {"partition_seed": 1},
    ]
    for choice in choices:
        with pytest.raises(InputError, match="doesn't apply here"):
            build_federation(str(tmp_path / "saved"), **choice)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (
            {"dataset": "banks", "partitioner": "metis"},
            "apply here: 'banks'",
        ),
        ({"dataset": "banks", "alpha": 1.0}, "alpha '1.0' doesn't apply"),
        ({"dataset": "banks", "clients": 0}, "num_clients is 0"),
        ({"nodes": 5}, "'banks' can take"),
        ({"partitioner": "files"}, "partitioner 'files' needs"),
        ({"partitioner": "metis", "partition_dir": Path("x")}, "partition-dir 'x'"),
        ({"partition_dir": Path("x"), "clients": 3}, "partitioner 'files'"),
        ({"partition_dir": Path("x"), "partition_seed": 3}, "partition-seed '3' doesn't apply here"),
        ({"partitioner": "louvain", "alpha": 1.0}, "alpha '1.0'"),
        ({"partitioner": "louvian"}, "unknown partitioner 'louvian'.*you mean 'louvain'"),
        ({"clients": 0}, "clients is 0"),
        ({"resolution": -1.0, "clients": 2}, "resolution is -1.0"),
        ({"partitioner": "metis", "resolution": 1.0}, "'louvain' can take"),
        ({"dataset": "banks", "resoluton": 1.0}, "data option 'resoluton'.*you mean 'resolution'"),
        ({"dataset": "banks", "degree": "6"}, "text '6'"),
        ({"dataset": "banks", "classes": 1}, "classes is 1"),
        ({"clients": 9}, "many: louvain finds 3"),
        ({}, "clients is missing"),
        ({"clients": "3"}, "text '3'"),
        ({"dataset": "banks", "nodes": 1e3}, "nodes is 1000.0"),
        ({"dataset": [1]}, "dataset is a list"),
        ({"dataset": Path("absent.npz")}, r"absent\.npz does not"),
        ({"dataset": "pubmd"}, "data set 'pubmd'.*banks.*you mean 'pubmed'"),
        ({"dataset": "fractions:Fraction", "clients": 1}, "unknown data set"),
        ({"partitioner": "fractions:Fraction", "clients": 1}, "derived from Partitioner"),
    ],
)
def test_contradictions_and_mistakes(choices: dict[str, Any], sentence: str, graph_file: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        build_federation(**{"dataset": str(graph_file), **choices})


def test_a_graph_without_labels_can_be_cut_and_looked_at_but_not_learned_from(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", edge_index=np.array([[0, 1, 2, 3], [1, 2, 3, 0]]), x=np.eye(4))
    federation = build_federation(tmp_path / "plain.npz", clients=2, partitioner="metis")
    assert describe(federation).to_json()["clients"][0]["majority_class"] is None
    federation.save(tmp_path / "saved")
    with pytest.raises(InputError, match="client of plain"):
        run(build_federation(tmp_path / "saved"), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"absent\.npz does not"):
        build_federation(str(tmp_path / "absent.npz"))


def test_folder_that_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="not a saved federation"):
        build_federation(str(tmp_path))
