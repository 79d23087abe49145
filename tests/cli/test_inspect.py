from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray.cli.main import run_command
from fedspray.data.federation import Federation
from fedspray.data.graph import UNLABELLED, Graph


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A federation of two: a triangle with a tail, and a client without labels."""
    edges = [[0, 0, 1, 2], [1, 2, 2, 3]]
    labelled = Graph.from_arrays(np.zeros((5, 1)), edges, [0, 0, 0, 1, 1])
    blank = Graph.from_arrays(np.zeros((2, 1)), [[0], [1]], [UNLABELLED] * 2, num_classes=2)
    Federation.from_graphs({"house": labelled, "blank": blank}, name="toy").save(tmp_path / "toy")
    return tmp_path / "toy"


def inspect_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_command(["inspect", *arguments, "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_json_alone_goes_to_standard_output(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = inspect_json(capsys, "--dataset", str(saved))
    assert (content["name"], content["average_nodes"], content["average_edges"]) == ("toy", 3.5, 2.5)
    house, blank = content["clients"]
    assert house["label_counts"] == [3, 2]
    assert house["majority_homophily"] == pytest.approx(8 / 9)
    assert blank["majority_class"] is None


def test_what_was_tidied_in_ones_own_graph_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(
        tmp_path / "mine.npz", x=np.eye(4), edge_index=np.array([[0, 0, 1, 2, 3], [0, 1, 2, 3, 2]]), y=[0, 1, 0, 1]
    )
    assert run_command(["inspect", "--dataset", str(tmp_path / "mine.npz"), "--clients", "2", "--json"]) == 0
    captured = capsys.readouterr()
    sentence = "1 edge from a node to itself left out, 2 edges given one way only taken both ways"
    assert captured.err.splitlines()[0] == f"mine.npz: {sentence}"
    assert json.loads(captured.out)["settings"]["tidied"] == sentence


def test_the_table_shows_every_client(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", "--dataset", str(saved)]) == 0
    captured = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in captured.out.splitlines() if line.split()}
    assert rows["house"] == ["5", "4", "0", "1", "0", "3", "2", "0.89", "0.00", "0.000"]
    assert rows["blank"] == ["2", "1", "0", "0", "n/a", "0", "0", "n/a", "n/a", "n/a"]
    assert max(map(len, captured.out.splitlines())) <= 80
    assert captured.err == "warning: feature '0' has one value for every node\n"  # of a user's own data


def test_files(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    files = [str(folder / name) for name in ("clients.csv", "clients.json", "clients.png")]
    content = inspect_json(capsys, "--dataset", str(saved), "--csv", files[0], "--out", files[1], "--plot", files[2])
    rows = list(csv.DictReader(io.StringIO((folder / "clients.csv").read_text())))
    assert [row["name"] for row in rows] == ["house", "blank"]
    assert (rows[0]["label_count_0"], rows[0]["label_count_1"]) == ("3", "2")
    assert float(rows[0]["majority_homophily"]) == pytest.approx(8 / 9)
    assert (rows[1]["majority_class"], rows[1]["class_homophily_0"]) == ("", "")
    assert json.loads((folder / "clients.json").read_text()) == content
    assert (folder / "clients.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.iterdir())) == 3  # nothing temporary stays


def test_written_files_are_reported_beside_the_result(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["inspect", "--dataset", str(saved), "--csv", str(tmp_path / "a.csv"), "--json"]) == 0
    captured = capsys.readouterr()
    assert "wrote" in captured.err
    json.loads(captured.out)


@pytest.mark.parametrize(
    ("option", "file", "sentence"),
    [
        ("--plot", "picture.gif", "ends in '.gif'"),
        ("--csv", "table", "ends in 'nothing'"),
        ("--out", "toy", "ends in 'nothing'"),
        ("--out", "toy/manifest.json/a.json", "manifest.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    option: str, file: str, sentence: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The data set does not exist: nobody gets as far as noticing.
    assert run_command(["inspect", "--dataset", "nothing.npz", option, str(saved.parent / file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {option} ")
    assert sentence in error


def test_banks_need_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    content = inspect_json(capsys, "--dataset", "banks", "--clients", "3", "--nodes", "600")
    assert (content["num_clients"], content["total_nodes"]) == (3, 600)
    assert all(client["majority_homophily"] > client["minority_homophily"] for client in content["clients"])


# ---- the published client splits ----------------------------------------------------------------

TABLE_1 = {
    "client_01": (1, 1384, 384, 0.91, 0.33),
    "client_06": (1, 1263, 152, 0.97, 0.24),
    "client_03": (2, 2001, 286, 0.92, 0.17),
    "client_05": (2, 1236, 97, 0.98, 0.48),
    "client_08": (1, 1160, 140, 0.95, 0.41),
    "client_02": (0, 934, 467, 0.84, 0.47),
    "client_12": (2, 948, 806, 0.83, 0.70),
}
"""Table 1 of the FedSpray paper (KDD 2024), PubMed: majority class, majority and minority nodes, their homophily."""


@pytest.fixture
def data_environment(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return real_data


def published(data: Path, dataset: str, folder: str) -> list[str]:
    return ["--dataset", dataset, "--partitioner", "files", "--partition-dir", str(data / "partitions" / folder)]


@pytest.mark.data
def test_pubmed_reproduces_table_1(data_environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = inspect_json(capsys, *published(data_environment, "pubmed", "PubMed"))
    keys = ("majority_class", "majority_nodes", "minority_nodes")
    ours = {
        client["name"]: (
            *(client[key] for key in keys),
            *(round(client[f"{who}_homophily"], 2) for who in ("majority", "minority")),
        )
        for client in content["clients"]
    }
    assert ours == TABLE_1


@pytest.mark.data
@pytest.mark.parametrize(
    ("dataset", "folder", "expected"),
    [
        ("pubmed", "PubMed", (7, 1608, 3600)),
        ("physics", "Physics", (12, 2651, 14790)),
        ("flickr", "Flickr", (20, 4441, 14331)),
    ],
)
def test_published_splits_have_the_published_averages(
    dataset: str,
    folder: str,
    expected: tuple[int, int, int],
    data_environment: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The paper's table of data sets: clients, average nodes, average edges."""
    content = inspect_json(capsys, *published(data_environment, dataset, folder))
    averages = (round(content["average_nodes"]), round(content["average_edges"]))
    assert (content["num_clients"], *averages) == expected
    assert len(content["clients"]) == expected[0]


@pytest.mark.data
@pytest.mark.usefixtures("data_environment")
def test_louvain_makes_clients_whose_minority_is_among_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    content = inspect_json(capsys, "--dataset", "pubmed", "--partitioner", "louvain", "--clients", "7")
    assert content["num_clients"] == 7
    for client in content["clients"]:
        assert client["majority_homophily"] > client["minority_homophily"]
        assert math.isfinite(client["label_divergence"])


def test_one_of_each_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Federation.from_graphs([Graph.from_arrays(np.ones((9, 1)), [[0], [1]], np.zeros(9))]).save(tmp_path / "one")
    run_command(["inspect", "--dataset", str(tmp_path / "one")])
    assert capsys.readouterr().out.splitlines()[0].strip() == "federation: 1 client, 1 feature, 1 class"
