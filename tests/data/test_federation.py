from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.data.splits import draw_split
from fedspray.errors import InputError, MissingDataError
from fedspray.files import read_json


def path_graph(num_nodes: int, num_classes: int = 2, *, labels: list[int] | None = None) -> Graph:
    """0 - 1 - … with one feature, the node's number, and labels in turn."""
    nodes = np.arange(num_nodes)
    return Graph.from_arrays(
        nodes[:, None],
        np.stack([nodes[:-1], nodes[1:]]),
        nodes % num_classes if labels is None else labels,
        num_classes=num_classes,
    )


@pytest.fixture
def federation() -> Federation:
    parts = {"north": np.array([0, 1, 2, 3]), "south": np.array([8, 7, 6])}
    return Federation.from_graph(path_graph(10), parts, name="toy", seed=5, settings={"dataset": "path"})


# ---- cutting ------------------------------------------------------------------------------------


def test_a_cut_keeps_inner_edges_and_counts_those_that_leave(federation: Federation) -> None:
    north, south = federation.clients
    assert north.graph.edges.tolist() == [[0, 1, 2], [1, 2, 3]]
    assert north.edges_lost == 1  # 3-4
    assert south.node_ids.tolist() == [8, 7, 6]  # in the order given
    assert south.graph.dense_features().ravel().tolist() == [8, 7, 6]
    assert south.graph.labels.tolist() == [0, 1, 0]
    assert south.edges_lost == 2  # 5-6 and 8-9
    assert federation.settings == {"dataset": "path", "split_seed": 5}


def test_an_edge_between_two_clients_is_lost_by_both() -> None:
    federation = Federation.from_graph(path_graph(4), [np.array([0, 1]), np.array([2, 3])])
    assert [client.edges_lost for client in federation.clients] == [1, 1]
    assert [client.name for client in federation.clients] == ["client_00", "client_01"]


def test_own_graphs_lose_nothing() -> None:
    federation = Federation.from_graphs({"a": path_graph(3), "b": path_graph(5)})
    assert [client.edges_lost for client in federation.clients] == [0, 0]
    assert (federation.num_clients, federation.task.num_features, federation.task.num_classes) == (2, 1, 2)


REFUSED_PARTS: dict[str, tuple[Any, str]] = {
    "none": ([], "the federation has no clients"),
    "empty": ([[0], []], "client client_01 has no nodes"),
    "outside": ([[0], [10]], "client client_01 contains node 10, but nodes are 0 to 9"),
    "negative": ([[-1]], "client client_00 contains node -1, but nodes are 0 to 9"),
    "twice": ([[1, 2, 1]], "client client_00 contains a node twice"),
    "overlap": ([[0, 1], [1, 2]], "node 1 is in two clients, but clients must be disjoint"),
    "fraction": ([[0.5]], "the nodes of client client_00 contain 0.5, but must be whole numbers"),
    "name": ({"../etc": [0]}, "'../etc' is not a client name"),
}


@pytest.mark.parametrize(("parts", "sentence"), REFUSED_PARTS.values(), ids=REFUSED_PARTS.keys())
def test_bad_parts_are_refused_with_a_sentence(parts: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        Federation.from_graph(path_graph(10), parts)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("graphs", "sentence"),
    [
        ([], "federation has no"),
        ([path_graph(3), path_graph(3, num_classes=3)], "disagree on num_classes"),
        (
            [path_graph(2), Graph.from_arrays(np.zeros((2, 9)), [[0], [1]], [0, 1])],
            "{'client_00': 1, 'client_01': 9}",
        ),
    ],
)
def test_graphs_that_do_not_fit_are_refused_with_a_sentence(graphs: list[Graph], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        Federation.from_graphs(graphs)
    assert sentence in str(refusal.value)


def test_without_any_label_there_is_nothing_to_learn_from() -> None:
    Federation.from_graphs([path_graph(3, labels=[UNLABELLED] * 3), path_graph(3)]).check_labels()
    alone = Federation.from_graphs([path_graph(3, labels=[UNLABELLED] * 3)], name="blank")
    with pytest.raises(InputError, match="client of blank"):
        alone.check_labels()


def named(classes: str | None, features: str | None) -> Graph:
    """Two nodes with these names of two classes and two features, if any."""
    return Graph.from_arrays(
        np.eye(2),
        [[0], [1]],
        [0, 1],
        class_names=None if classes is None else classes.split(),
        feature_names=None if features is None else features.split(),
    )


@pytest.mark.parametrize(
    ("graphs", "words"),
    [
        (
            {"a": named("good bad", None), "b": named(None, None), "c": named("bad good", None)},
            ["class 0", "client a is 'good'", "client c", "'bad'"],
        ),
        (
            {"a": named(None, None), "b": named(None, "age debt"), "c": named(None, "age income")},
            ["feature 1", "client b is 'debt'", "client c", "'income'"],
        ),
    ],
)
def test_clients_that_name_classes_or_features_differently_are_refused(
    graphs: dict[str, Graph], words: list[str]
) -> None:
    with pytest.raises(InputError) as refusal:
        Federation.from_graphs(graphs)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_a_name_that_one_client_gives_is_good_for_all() -> None:
    task = Federation.from_graphs([named(None, None), named("good bad", None), named(None, "age debt")]).task
    assert (task.class_names, task.feature_names) == (("good", "bad"), ("age", "debt"))


def test_two_clients_of_one_name_are_refused() -> None:
    client = Federation.from_graphs({"a": path_graph(3)}).clients[0]
    with pytest.raises(InputError, match="named 'a'"):
        Federation("twins", (client, client))


# ---- poor clients are handled -------------------------------------------------------------------


def test_clients_without_label_with_one_class_or_without_edge_are_kept() -> None:
    lonely = Graph.from_arrays(np.zeros((2, 1)), [[], []], [0, 1], num_classes=2)
    federation = Federation.from_graphs(
        {
            "unlabelled": path_graph(3, labels=[UNLABELLED] * 3),
            "one-class": path_graph(3, labels=[1, 1, 1]),
            "no-edge": lonely,
        }
    )
    unlabelled, one_class, _ = federation.clients
    assert unlabelled.majority_class is None
    assert not unlabelled.split.train.any()
    assert one_class.majority_class == 1


# ---- splits -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(UNLABELLED, 2), min_size=1, max_size=60), st.integers(0, 5))
def test_the_split_is_40_30_30_of_the_labelled_nodes(labels: list[int], seed: int) -> None:
    graph = path_graph(len(labels), num_classes=3, labels=labels)
    split = draw_split(graph, seed, "a")
    masks = np.stack([split.train, split.val, split.test])
    labelled = int(graph.labelled.sum())
    assert (masks.sum(axis=0) == graph.labelled).all()
    assert masks[0].sum() == (max(1, round(0.4 * labelled)) if labelled else 0)
    assert abs(int(masks[1].sum()) - 0.3 * labelled) <= 1
    assert abs(int(masks[2].sum()) - 0.3 * labelled) <= 1


def test_a_split_depends_on_seed_and_name_alone() -> None:
    alone = Federation.from_graphs({"b": path_graph(50)}, seed=3).clients[0]
    together = Federation.from_graphs({"a": path_graph(9), "b": path_graph(50)}, seed=3).clients[1]
    assert np.array_equal(alone.split.train, together.split.train)
    other = Federation.from_graphs({"b": path_graph(50)}, seed=4)
    assert not np.array_equal(alone.split.train, other.clients[0].split.train)
    redrawn = other.with_split(3)
    assert np.array_equal(redrawn.clients[0].split.test, alone.split.test)
    assert redrawn.settings["split_seed"] == 3


def test_a_clients_fingerprint_is_of_its_graph_and_its_split(federation: Federation, tmp_path: Path) -> None:
    client = federation.clients[0]
    client.save(tmp_path)
    assert Client.load(tmp_path).fingerprint() == client.fingerprint()
    turned = client.graph.subgraph(np.arange(client.graph.num_nodes)[::-1].copy())
    others = [
        replace(client, name="other"),
        replace(client, graph=turned, split=draw_split(turned, 0, client.name)),
        replace(client, split=Split(client.split.test, client.split.val, client.split.train)),
    ]
    assert len({client.fingerprint(), *(other.fingerprint() for other in others)}) == 4


@pytest.mark.parametrize(
    ("train", "val", "sentence"),
    [
        ([0, 1], [1], "node in two"),
        ([2], [0], "contains an unlabelled"),
    ],
)
def test_wrong_splits_are_refused_with_a_sentence(train: list[int], val: list[int], sentence: str) -> None:
    graph = path_graph(3, labels=[0, 1, UNLABELLED])
    masks = [np.isin(np.arange(3), chosen) for chosen in (train, val, [])]
    with pytest.raises(InputError, match=sentence):
        Client("a", graph, Split(*masks), np.arange(3))


def test_masks_of_numbers_are_refused() -> None:
    """They would be taken for node ids."""
    masks = [np.array(mask) for mask in ([1, 0, 0], [0, 1, 0], [0, 0, 1])]
    with pytest.raises(InputError, match="type int64"):
        Client("a", path_graph(3), Split(*masks), np.arange(3))


def test_a_split_of_the_wrong_length_is_refused() -> None:
    masks = [np.zeros(4, dtype=np.bool_)] * 3
    with pytest.raises(InputError, match="3 entries"):
        Client("a", path_graph(3), Split(*masks), np.arange(3))


# ---- folders ------------------------------------------------------------------------------------


def assert_same_client(a: Client, b: Client) -> None:
    assert a.name == b.name
    assert a.graph.equals(b.graph)
    assert a.edges_lost == b.edges_lost
    assert np.array_equal(a.node_ids, b.node_ids)
    for part in ("train", "val", "test"):
        assert np.array_equal(getattr(a.split, part), getattr(b.split, part))


def test_save_and_load(federation: Federation, tmp_path: Path) -> None:
    federation.save(tmp_path / "deep" / "saved")
    loaded = Federation.load(tmp_path / "deep" / "saved")
    assert (loaded.name, dict(loaded.settings)) == (federation.name, dict(federation.settings))
    for before, after in zip(federation.clients, loaded.clients, strict=True):
        assert_same_client(before, after)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["saved"]  # nothing temporary stays


def test_equal_federations_give_equal_files(federation: Federation, tmp_path: Path) -> None:
    for name in ("a", "b"):
        federation.save(tmp_path / name)
    manifests = [(tmp_path / name / "manifest.json").read_bytes() for name in ("a", "b")]
    assert manifests[0] == manifests[1]


def test_one_client_can_be_handed_over_alone(federation: Federation, tmp_path: Path) -> None:
    federation.save(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved" / "clients" / "south", tmp_path / "elsewhere")
    assert_same_client(Client.load(tmp_path / "elsewhere"), federation.clients[1])


@pytest.mark.parametrize("file", ["graph.npz", "split.npz", "client.json"])
def test_a_changed_file_is_refused(federation: Federation, tmp_path: Path, file: str) -> None:
    federation.save(tmp_path / "saved")
    target = tmp_path / "saved" / "clients" / "north" / file
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    target.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        Federation.load(tmp_path / "saved")
    assert str(refusal.value) == f"{target} does not match the manifest: the file was changed after it was written"


def test_a_changed_file_of_one_client_alone_is_refused(federation: Federation, tmp_path: Path) -> None:
    federation.clients[0].save(tmp_path / "north")
    path_graph(4).to_npz(tmp_path / "north" / "graph.npz")
    assert Client.load(tmp_path / "north").graph.num_nodes == 4  # the same graph is the same file
    path_graph(5).to_npz(tmp_path / "north" / "graph.npz")
    with pytest.raises(InputError, match=r"graph\.npz does not"):
        Client.load(tmp_path / "north")


def test_a_missing_file_is_refused(federation: Federation, tmp_path: Path) -> None:
    federation.save(tmp_path / "saved")
    (tmp_path / "saved" / "clients" / "north" / "split.npz").unlink()
    with pytest.raises(InputError, match=r"split\.npz is missing"):
        Federation.load(tmp_path / "saved")


@pytest.mark.parametrize("key", ["name", "clients", "settings", "files"])
def test_a_manifest_with_a_hole_is_refused(federation: Federation, tmp_path: Path, key: str) -> None:
    federation.save(tmp_path / "saved")
    manifest = tmp_path / "saved" / "manifest.json"
    content = read_json(manifest)
    del content[key]
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f": {key} is missing"):
        Federation.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not readable JSON"),
        ("[]", "a JSON object"),
        ('{"format": 99}', "has format 99"),
    ],
)
def test_a_strange_manifest_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=sentence):
        Federation.load(tmp_path)


def test_a_folder_that_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="not a saved"):
        Federation.load(tmp_path)


def test_a_folder_with_content_is_never_overwritten(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty: choose"):
        federation.save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
