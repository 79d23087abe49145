from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from toys import ragged_federation

from fedspray import build_federation, run
from fedspray.cli.main import run_command
from fedspray.data.federation import Federation
from fedspray.data.reading import MASKS, read_federation, read_graph, read_graph_and_split
from fedspray.errors import InputError, MissingDataError


def test_a_file_and_a_folder_give_the_same_graph(tmp_path: Path) -> None:
    client = ragged_federation().clients[1]
    client.save(tmp_path / "folder")
    client.graph.to_npz(tmp_path / "graph.npz")
    folder, split = read_graph_and_split(tmp_path / "folder")
    file, nothing = read_graph_and_split(str(tmp_path / "graph.npz"))
    assert np.array_equal(folder.edges, file.edges)
    assert np.array_equal(folder.labels, file.labels)
    assert np.array_equal(folder.features, read_graph(tmp_path / "folder").features)
    assert split is not None
    assert np.array_equal(split.train, client.split.train)
    assert nothing is None


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no graph")
    for path, error in (("text.npz", InputError), ("nowhere.npz", MissingDataError), (".", MissingDataError)):
        with pytest.raises(error):
            read_graph(tmp_path / path)


def published(federation: Federation, folder: Path) -> None:
    """Writes what others publish: CSR features with small indices, edges in both directions, masks."""
    folder.mkdir()
    for client in federation.clients:
        x = sp.csr_array(client.graph.dense_features())
        arrays: dict[str, Any] = {f"x_{part}": getattr(x, part) for part in ("data", "indptr", "shape")}
        arrays |= {"x_indices": x.indices.astype(np.int16), "y": client.graph.labels.astype(np.int8)}
        arrays |= {mask: getattr(client.split, mask.removesuffix("_mask")) for mask in MASKS}
        edges = client.graph.both_directions().astype(np.int32)
        np.savez(folder / f"{client.name}.npz", edge_index=edges, **arrays)


def test_one_clients_folder_is_not_a_federation(tmp_path: Path) -> None:
    ragged_federation().save(tmp_path / "saved")
    with pytest.raises(InputError, match=r"client_00 is one client's folder, but a federation is needed"):
        read_federation(tmp_path / "saved" / "clients" / "client_00")


def test_published_clients_keep_their_splits(tmp_path: Path) -> None:
    made = build_federation("banks", clients=3, nodes=300, split="20/40/40", seed=5)
    published(made, tmp_path / "own")
    read = build_federation(tmp_path / "own")
    assert read.name == "own"
    assert read.split_fingerprint() == made.split_fingerprint()
    for ours, theirs in zip(made.clients, read.clients, strict=True):
        assert np.array_equal(ours.graph.dense_features(), theirs.graph.dense_features())
        assert np.array_equal(ours.graph.edges, theirs.graph.edges)
        assert np.array_equal(ours.graph.labels, theirs.graph.labels)
    settings: dict[str, Any] = {"algorithm": "fedavg", "rounds": 2, "keep_split": True}
    assert run(read, **settings).summary()["overall"] == run(made, **settings).summary()["overall"]
    assert build_federation(tmp_path / "own", seed=5, split="20/40/40").split_fingerprint() == made.split_fingerprint()
    assert build_federation(tmp_path / "own", seed=6).split_fingerprint() != made.split_fingerprint()


def test_published_clients_are_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    published(ragged_federation(), tmp_path / "there" / "10")
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path))
    assert build_federation("there/10").num_clients == ragged_federation().num_clients
    assert run_command(["partition", "--dataset", "there/10", "--clients", "2", "--out", str(tmp_path / "o")]) == 2
    assert not (tmp_path / "o").exists()


def test_a_client_may_lack_the_last_class(tmp_path: Path) -> None:
    for name, labels in (("a", [0, 1]), ("b", [2, 2])):
        np.savez(tmp_path / f"{name}.npz", x=np.eye(2), edge_index=[[0, labels[1] - 1], [1, 1]], y=labels)
    federation = read_federation(tmp_path)
    assert federation.settings["tidied"] == "a: 1 edge given again merged; b: 1 edge from a node to itself left out"
    assert [client.graph.num_classes for client in federation.clients] == [3, 3]
    assert federation.settings["split_seed"] == 0  # no masks: splits are drawn
    assert all(client.split.train.sum() == 1 for client in federation.clients)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"val_mask": None}, r"b\.npz lacks train_mask, val_mask, test_mask"),
        ({"train_mask": [True, True]}, "node in two"),
        ({"train_mask": [True, False, False]}, "b must have 2"),
        ({"train_mask": [1, 0]}, "type int64"),
        ({"x": np.eye(3)[:2]}, "disagree on num_features"),
        ({"edge_index": [[0], [2]]}, "edges contain node 2"),
        ({"train_mask": np.array([{}])}, r"b\.npz is not"),
    ],
)
def test_bad_published_clients(other: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    good: dict[str, Any] = {"x": np.eye(2), "edge_index": [[0], [1]], "y": [0, 1]}
    good |= {"train_mask": [True, False], "val_mask": [False, False], "test_mask": [False, True]}
    np.savez(tmp_path / "a.npz", **good)
    np.savez(tmp_path / "b.npz", **{name: value for name, value in {**good, **other}.items() if value is not None})
    with pytest.raises(InputError, match=sentence):
        read_federation(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(
    ("folder", "nodes", "edges", "split"),
    [
        ("Cora/10", 2708, 4674, [542, 1083, 1083]),
        ("Cora/20", 2708, 4479, [542, 1083, 1083]),
        ("CiteSeer/10", 3327, 4366, [665, 1331, 1331]),
        ("CiteSeer/20", 3327, 4191, [665, 1331, 1331]),
    ],
)
def test_real_published_clients(folder: str, nodes: int, edges: int, split: list[int], real_data: Path) -> None:
    federation = read_federation(real_data / "topfgl" / folder)
    clients = federation.clients
    assert f"{len(clients)}" == folder.split("/")[1]
    assert (sum(c.graph.num_nodes for c in clients), sum(c.graph.num_edges for c in clients)) == (nodes, edges)
    assert [sum(int(getattr(c.split, part).sum()) for c in clients) for part in ("train", "val", "test")] == split
    assert federation.task.num_classes == (7 if folder.startswith("Cora") else 6)
    assert all(client.graph.is_sparse for client in clients)
