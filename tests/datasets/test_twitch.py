"""`twitch`: seven countries, one vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray import build_federation
from fedspray.cli.main import run_command
from fedspray.data.federation import Federation
from fedspray.datasets import DataFolders
from fedspray.datasets.twitch import COUNTRIES, NUM_IDS, Twitch, read_country
from fedspray.errors import InputError

HEAD = "id,days,mature,views,partner,new_id\n"
TARGET = [(2, False), (0, True), (1, True), (0, True), (3, False)]  # in any order; one is listed twice
FEATURES = {"1": [7, 7, 3169], "0": [0], "2": [7]}  # an id is listed twice; streamer 3 has none


def write_country(
    folder: Path, country: str, edges: str = "from,to\n2,0\n0,1\n", features: Any = FEATURES, target: Any = TARGET
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"9{node},5,{mature},1,False,{node}\n" for node, mature in target)
    (folder / f"musae_{country}_target.csv").write_text(HEAD + rows)
    (folder / f"musae_{country}_features.json").write_text(json.dumps(features))
    (folder / f"musae_{country}_edges.csv").write_text(edges)


def test_small_files(tmp_path: Path) -> None:
    write_country(tmp_path, "DE")
    graph = read_country(tmp_path, "DE")
    assert graph.labels.tolist() == [1, 1, 0, 0]
    assert graph.class_names == ("not mature", "mature")
    assert graph.edges.tolist() == [[0, 0], [1, 2]]  # streamer 3 follows nobody
    assert graph.num_features == NUM_IDS
    assert np.argwhere(graph.dense_features()).tolist() == [[0, 0], [1, 7], [1, 3169], [2, 7]]
    assert graph.dense_features().max() == 1


def test_an_id_has_the_same_column_everywhere(tmp_path: Path) -> None:
    for number, country in enumerate(COUNTRIES):
        write_country(
            tmp_path / "twitch",
            country,
            features={"0": [number, 100]},
            target=[(0, True), (1, True)],
            edges="from,to\n0,1\n",
        )
    federation = Federation.from_graphs(Twitch().graphs(DataFolders(cache=tmp_path / "cache", data=tmp_path)))
    assert [client.name for client in federation.clients] == list(COUNTRIES)
    assert federation.task.class_names == ("not mature", "mature")  # although nobody is not mature
    for number, client in enumerate(federation.clients):
        assert np.flatnonzero(client.graph.dense_features()[0]).tolist() == [number, 100]
        assert client.graph.labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("edges.csv", {"edges": "from,to\n0,4\n"}),
        ("edges.csv", {"edges": "a,b\n0,1\n"}),
        ("edges.csv", {"edges": ""}),
        ("features.json", {"features": {"0": [3170]}}),
        ("features.json", {"features": {"4": [0]}}),
        ("features.json", {"features": {"zero": [0]}}),
        ("features.json", {"features": {"0": ["a"]}}),
        ("features.json", {"features": {"0": 5}}),
        ("features.json", {"features": [[0]]}),
        ("target.csv", {"target": [(0, "maybe"), (1, True)]}),
        ("target.csv", {"target": [(0, True), (2, True)]}),
        ("target.csv", {"target": [(0, True), (0, False)]}),
    ],
)
def test_bad_file_is_named(kind: str, other: dict[str, Any], tmp_path: Path) -> None:
    write_country(tmp_path, "FR", **other)
    with pytest.raises(InputError, match=rf"musae_FR_{kind} is not a readable file of Twitch \(") as caught:
        read_country(tmp_path, "FR")
    assert "\n" not in str(caught.value)


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for country in COUNTRIES:
        write_country(tmp_path / "twitch" / "raw", country)
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path))
    assert run_command(["inspect", "--dataset", "twitch"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "set 'twitch' hold 4" in error


@pytest.mark.data
def test_real_files(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    federation = build_federation("twitch", seed=1)
    assert sum(client.graph.num_nodes for client in federation.clients) == 36_890
    assert all(client.graph.labelled.all() for client in federation.clients)
    used = np.sum([np.asarray(client.graph.features.sum(axis=0)).ravel() for client in federation.clients], axis=0)
    assert used.min() > 0  # every id of the vocabulary occurs somewhere
    assert federation.settings == {"dataset": "twitch", "split_seed": 1}
