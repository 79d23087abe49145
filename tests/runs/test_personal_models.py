"""A personal model as a folder: what it says of itself, of nodes that it has seen, and of new ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedspray as fs
from fedspray import Federation, Graph, PersonalModel
from fedspray.data.federation import Client
from fedspray.errors import InputError
from fedspray.evaluation.calibration import loss_at
from fedspray.runs import store
from fedspray.runs.trained_on import PARTS


@pytest.fixture(scope="module")
def named() -> Federation:
    """Banks whose customers have names."""
    drawn = fs.build_federation("banks", nodes=400)
    graphs = {
        client.name: replace(client.graph, node_names=tuple(f"{client.name}-{i}" for i in range(100)))
        for client in drawn.clients
    }
    return Federation.from_graphs(graphs)


def with_new_nodes(client: Client, count: int = 10) -> Graph:
    """The client's graph in another order, with some nodes more."""
    graph, rng = client.graph, np.random.default_rng(3)
    order = rng.permutation(graph.num_nodes)
    place = np.argsort(order)
    fresh = rng.normal(size=(count, graph.num_features))
    links = np.stack([np.arange(count) + graph.num_nodes, rng.integers(0, graph.num_nodes, count)])
    assert graph.node_names is not None
    return Graph.from_arrays(
        np.concatenate([graph.dense_features()[order], fresh]),
        np.concatenate([place[graph.edges], links], axis=1),
        np.concatenate([graph.labels[order], np.full(count, -1)]),
        num_classes=graph.num_classes,
        node_names=[*(graph.node_names[node] for node in order), *(f"new-{i}" for i in range(count))],
    )


@pytest.mark.parametrize("algorithm", ["fedspray2", "fedavg", "fedspray-plus", "local"])
def test_a_model_gives_the_test_accuracy_of_its_run(algorithm: str, named: Federation, tmp_path: Path) -> None:
    result = fs.run(named, algorithm, rounds=4, hidden=8, out=tmp_path / "run", progress=False)
    for client in named.clients:  # as it was saved: its split is not that of the run
        reported = result.seeds[0].metrics["clients"][client.name]["overall"]
        for model in (result.models[client.name], PersonalModel.load(tmp_path / "run/seed-0/models" / client.name)):
            found = model.predictions(client)
            assert found.accuracies["test"] == {"nodes": 30, "accuracy": reported}
            assert found.headline == "test"
            assert {part: row["nodes"] for part, row in found.accuracies.items()} == {
                "train": 40,
                "val": 30,
                "test": 30,
            }
            assert found.frame["seen_as"].value_counts().to_dict() == {"train": 40, "val": 30, "test": 30}


def test_nodes_are_known_by_their_names_wherever_they_stand(named: Federation) -> None:
    client = named.clients[0]
    model = fs.run(named, "fedspray2", rounds=4, hidden=8, progress=False).models[client.name]
    seen, graph = model.predictions(client), with_new_nodes(client)
    found = model.predictions(graph)
    assert found.parts is not None
    assert seen.parts is not None
    assert (found.parts == PARTS.index("new")).sum() == 10
    assert graph.node_names is not None
    assert client.graph.node_names is not None
    before = dict(zip(client.graph.node_names, seen.parts, strict=True))
    assert [before.get(name, 0) for name in graph.node_names] == found.parts.tolist()
    only = model.predictions(graph, only_new=True)
    assert only.frame["node"].tolist() == [f"new-{i}" for i in range(10)]
    np.testing.assert_array_equal(only.probabilities, found.probabilities[-10:])
    nameless = model.predictions(replace(graph, node_names=None))
    assert nameless.parts is None
    assert set(nameless.accuracies) == {"unknown"}
    with pytest.raises(InputError, match="unknown which nodes"):
        model.predictions(replace(graph, node_names=None), only_new=True)
    with pytest.raises(InputError, match="node is new"):
        model.predictions(client, only_new=True)


def test_without_the_list_of_nodes_it_still_predicts(named: Federation, tmp_path: Path) -> None:
    client = named.clients[1]
    model = fs.run(named, "fedavg", rounds=2, hidden=8, progress=False).models[client.name]
    model.save(tmp_path / "model")
    (tmp_path / "model" / "trained-on.safetensors").unlink()
    bare = PersonalModel.load(tmp_path / "model")
    np.testing.assert_array_equal(bare.predict(client), model.predict(client))
    assert set(bare.predictions(client).accuracies) == {"unknown"}


def test_reasons_by_hand(named: Federation) -> None:
    client = named.clients[0]
    model = fs.run(named, "fedspray2", rounds=4, hidden=8, progress=False).models[client.name]
    found = model.predictions(client)
    assert model.trained_on is not None
    trained = model.trained_on.parts == PARTS.index("train")
    believed = np.where(trained, client.graph.labels, found.classes)
    neighbours: list[list[int]] = [[] for _ in range(100)]
    for u, v in client.graph.edges.T:
        neighbours[u].append(v)
        neighbours[v].append(u)
    for node, others in enumerate(neighbours):
        if others:
            assert found.agreeing[node] == np.mean([believed[other] == believed[node] for other in others])
        else:
            assert np.isnan(found.agreeing[node])
    majority = np.bincount(client.graph.labels[trained]).argmax()
    assert found.frame["minority_class"].tolist() == (found.classes != majority).tolist()
    assert {"gnn_says", "shared_head_says"} <= set(found.frame)
    assert (
        "gnn_says" not in fs.run(named, "fedavg", rounds=1, progress=False).models["bank_00"].predictions(client).frame
    )


@pytest.mark.parametrize("algorithm", ["fedspray2", "fedavg"])
def test_a_temperature_moves_confidences_and_nothing_else(algorithm: str, named: Federation) -> None:
    client = named.with_split(0).clients[2]
    model = fs.run(named, algorithm, rounds=30, hidden=8, progress=False).models[client.name]
    plain = replace(model, facts={})
    found, before = model.predictions(client), plain.predictions(client)
    np.testing.assert_array_equal(found.probabilities, before.probabilities)
    np.testing.assert_array_equal(before.confidence, before.probabilities.max(axis=1))
    logits, loss_logits, _ = model._outputs(client.graph, client.split.train)
    known, val = model.facts["calibration"], client.split.val
    source = loss_logits if known["of"] == "probabilities" and loss_logits is not None else logits
    losses = [loss_at(t, source[val], client.graph.labels[val]) for t in (known["temperature"], 1.0)]
    assert losses[0] <= losses[1]
    assert known["nodes"] == val.sum()


def test_the_card_has_the_figures(named: Federation, tmp_path: Path) -> None:
    graphs = {c.name: replace(c.graph, class_names=("fair", "foul")) for c in named.clients}
    result = fs.run(Federation.from_graphs(graphs), "fedspray2", rounds=3, hidden=8, progress=False)
    model = result.models["bank_03"]
    model.save(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    assert f"{100 * result.seeds[0].metrics['clients']['bank_03']['overall']:.1f}%" in text
    assert model.digest() in text
    for line in ("| of class fair |", "| of class foul |", "license:", "Licence of the data"):
        assert line in text
    confusion = np.array(model.facts["confusion"]["test"])
    assert confusion.sum() == 30
    assert confusion.trace() / 30 == result.seeds[0].metrics["clients"]["bank_03"]["overall"]


def test_a_client_without_validation_nodes_is_not_calibrated(named: Federation) -> None:
    clients = list(named.with_split(0).clients)
    empty = np.zeros(100, bool)
    clients[0] = replace(clients[0], split=replace(clients[0].split, val=empty))
    result = fs.run(replace(named, clients=tuple(clients)), "fedavg", rounds=1, keep_split=True, progress=False)
    assert result.models["bank_00"].facts["calibration"] is None
    assert result.models["bank_01"].facts["calibration"] is not None
    result.models["bank_00"].predictions(clients[0])


def test_files_and_folders_of_models(named: Federation, tmp_path: Path) -> None:
    """One file, as older versions wrote it, a folder, and a folder that is called as the file was."""
    model = fs.run(named, "fedavg", rounds=1, hidden=8, progress=False).models["bank_00"]
    model.save(tmp_path / "one.safetensors")
    model.save(tmp_path / "folder")
    for path in ("one.safetensors", "folder", "folder.safetensors", "folder/model.safetensors", "one"):
        assert PersonalModel.load(tmp_path / path).digest() == model.digest()
    moved = tmp_path / "else" / "where"
    shutil.copytree(tmp_path / "folder", moved)
    np.testing.assert_array_equal(PersonalModel.load(moved).predict(named.clients[0]), model.predict(named.clients[0]))
    tensors, meta = store.read_tensors(tmp_path / "one.safetensors")
    del meta["facts"]  # as before it had any
    store.write_tensors(tmp_path / "old.safetensors", tensors, meta)
    old = PersonalModel.load(tmp_path / "old.safetensors")
    assert "minority_class" not in old.predictions(named.clients[0]).frame
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        PersonalModel.load(tmp_path)
    with pytest.raises(InputError, match="is missing"):
        PersonalModel.load(tmp_path / "nothing")
