"""Each attack where it must succeed, and where it must not do better than a guess."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray import algorithms, attacks
from fedspray.attacks._labels import as_shares, scored
from fedspray.attacks._playing import Campaign, with_few
from fedspray.attacks.features import reconstructed
from fedspray.attacks.membership import area, found_at
from fedspray.cli.main import run_command
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.experiment import RunSettings
from fedspray.report.html import write_report
from fedspray.seeds import generator

CLASSES, FEATURES = 3, 40


def federation(
    skew: float, clients: int = 6, nodes: int = 60, *, random_labels: bool = False, split: str = "40/30/30"
) -> Federation:
    """Clients of which a share ``skew`` of the nodes has one class, the client's own; features go with classes."""
    graphs = {}
    for k in range(clients):
        draw = generator(3, "attacked", k)
        own = draw.random(nodes) < skew
        labels = np.where(own, k % CLASSES, np.arange(nodes) % CLASSES)
        features = draw.random((nodes, FEATURES)) < 0.15
        if not random_labels:
            features[:, :CLASSES] = np.eye(CLASSES, dtype=bool)[labels]
        edges = np.stack([np.arange(nodes), (np.arange(nodes) + CLASSES) % nodes])
        graphs[f"c{k}"] = Graph.from_arrays(features.astype(np.float32), edges, labels, num_classes=CLASSES)
    return Federation.from_graphs(graphs, name="attacked", seed=0, split=split)


def scores(
    attacked: Federation, algorithm: str, attack: str, link: str = "", backbone: str = "gcn", **values: Any
) -> dict[tuple[int | None, str], tuple[float, float]]:
    settings = RunSettings(backbone=backbone, values={"rounds": 3, "hidden": 16, **values})
    rows = Campaign(attacked, settings).rows([algorithm], [link], [attack])
    return {(row["nodes"], row["measure"]): (row["value"], row["guess"]) for row in rows}


def test_all_attacks_are_listed_with_a_summary() -> None:
    assert set(attacks.names()) == {"evaluation", "features", "labels", "membership"}
    assert all(attacks.find(name).summary for name in attacks.names())


# ---- label distributions --------------------------------------------------------------------------


def test_scores_of_a_guess_by_hand() -> None:
    given = federation(0.0, clients=2)
    truth = np.stack([as_shares(c.train_class_counts[None].astype(float))[0] for c in given.clients])
    exact, order = scored(truth, given, "x")
    assert exact.value == 0
    assert order.value == pytest.approx(1)
    moved = truth + np.array([[0.1, -0.1, 0.0], [0.1, -0.1, 0.0]])
    assert scored(moved, given, "x")[0].value == pytest.approx(0.1)


@pytest.mark.parametrize("algorithm", ["fedspray", "fedproto"])
def test_class_shares_are_the_distribution(algorithm: str) -> None:
    found = scores(federation(0.6), algorithm, "labels")
    assert found[None, "total variation"][0] < 1e-6 < 0.2 < found[None, "total variation"][1]
    assert found[None, "rank correlation"][0] == pytest.approx(1)


def test_the_gradient_of_a_bias_gives_counts_away() -> None:
    found = scores(federation(0.6), "fedspray2", "labels")
    value, guess = found[None, "total variation"]
    assert value < guess / 3
    assert found[None, "rank correlation"][0] > 0.9


def test_the_drift_of_weights_goes_with_labels() -> None:
    assert (
        scores(federation(0.6, clients=9), "fedavg", "labels", rounds=6, hidden=64)[None, "rank correlation"][0] > 0.7
    )


@pytest.mark.parametrize(
    ("algorithm", "attack"), [("fedspray", "labels"), ("fedavg", "labels"), ("fedavg", "evaluation")]
)
def test_sums_say_nothing_of_single_clients(algorithm: str, attack: str) -> None:
    found = scores(federation(0.6), algorithm, attack, "secure-sum")
    value, guess = found[None, "total variation"]
    assert value > 0.9 * guess
    assert found[None, "rank correlation"][0] < 0.1


def test_evaluation_counts_are_the_distribution_unless_they_stay() -> None:
    given = federation(0.6)
    assert scores(given, "fedavg", "evaluation")[None, "total variation"][0] == 0
    value, guess = scores(given, "fedavg", "evaluation", "dp epsilon=8")[None, "total variation"]
    assert value == pytest.approx(guess)


def test_with_noise_for_a_small_epsilon_labels_are_not_found() -> None:
    found = scores(federation(0.6), "fedspray2", "labels", "dp epsilon=0.5")
    value, guess = found[None, "total variation"]
    assert value > 0.7 * guess


# ---- membership -----------------------------------------------------------------------------------


def test_area_and_rate_by_hand() -> None:
    assert area(np.array([3.0, 1.0]), np.array([2.0, 1.0])) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    others = np.arange(200.0)
    assert found_at(np.array([500.0, 0.0, 198.5, 197.0]), others) == 0.5  # one of a hundred others is above 197


def test_a_model_that_learns_by_heart_gives_its_training_nodes_away() -> None:
    given = federation(0.0, clients=3, nodes=120, random_labels=True, split="50/0/50")  # the last round is kept
    found = scores(given, "local", "membership", backbone="mlp", rounds=40, lr=0.02)
    assert found[None, "AUC"][0] > 0.8
    assert found[None, "found at 1% false alarms"][0] > 0.02


def test_a_model_that_learned_nothing_gives_nothing_away() -> None:
    given = federation(0.0, clients=3, nodes=240, random_labels=True)
    assert scores(given, "local", "membership", lr=1e-9)[None, "AUC"][0] == pytest.approx(0.5, abs=0.08)


# ---- features -------------------------------------------------------------------------------------


def test_rows_of_a_relu_layer_are_reconstructed() -> None:
    draw = generator(5, "rows")
    rows, weights = draw.normal(size=(3, 30)), draw.normal(size=(30, 200))
    active = rows @ weights > 0
    deltas = active * draw.normal(size=(3, 200))
    found = reconstructed(rows.T @ deltas, deltas.sum(axis=0), 3)
    wanted = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert (found @ wanted.T).max(axis=0) == pytest.approx(1, abs=1e-3)


def test_rows_of_another_gradient_are_not() -> None:
    draw = generator(6, "rows")
    found = reconstructed(draw.normal(size=(300, 64)), draw.normal(size=64), 1)
    assert abs(found @ draw.normal(size=300)) / np.sqrt(300) < 0.25


def test_one_training_node_is_read_off_the_gradient() -> None:
    found = scores(federation(0.2), "fedspray2", "features")
    assert found[1, "cosine"][0] > 0.999
    assert found[1, "cosine"][1] < 0.7
    assert found[4, "cosine"][0] > found[4, "cosine"][1]
    assert found[1, "in the span"][0] > 0.999


def test_noise_hides_the_node() -> None:
    found = scores(federation(0.2), "fedspray2", "features", "dp epsilon=1")
    value, guess = found[1, "cosine"]
    assert value < guess + 0.1


def test_few_training_nodes_are_left() -> None:
    given = federation(0.2)
    few = with_few(given, 2, seed=0)
    for client, before in zip(few.clients, given.clients, strict=True):
        assert client.split.train.sum() == 2
        assert not (client.split.train & ~before.split.train).any()


# ---- the command ----------------------------------------------------------------------------------


def test_the_command_writes_a_table_and_the_report_of_a_run_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--dataset", "banks", "--clients", "3", "--nodes", "60", "--rounds", "2", "--set", "hidden=4"]
    assert (
        run_command(["attack", *data, "--algorithm", "gcfl", "--link", "secure-sum", "--out", str(tmp_path / "a.csv")])
        == 0
    )
    (row,) = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert row["source"].startswith("refused: secure-sum gives the server sums only")
    assert row["command"].startswith("fedspray attack --dataset banks")
    run = tmp_path / "run"
    assert run_command(["run", *data, "--algorithm", "fedavg", "--link", "dp epsilon=2", "--out", str(run)]) == 0
    assert run_command(["attack", "--run", str(run), "--attack", "labels"]) == 0
    links = {line["link"] for line in csv.DictReader((run / "attacks.csv").read_text().splitlines())}
    assert links == {"", "dp epsilon=2"}
    write_report([run], tmp_path / "page.html")
    assert "Attacks on fedavg" in (tmp_path / "page.html").read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    "wrong", [["--attack", "nobody"], ["--link", "nothing"], ["--out", "a.txt"], ["--run", "nowhere"]]
)
def test_bad_input_is_refused(wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = [] if wrong[0] == "--run" else ["--dataset", "banks", "--clients", "2", "--nodes", "40", "--rounds", "1"]
    assert run_command(["attack", *data, "--algorithm", "local", *wrong]) in (2, 3)
    assert list(tmp_path.iterdir()) == []


def test_every_algorithm_can_be_attacked() -> None:
    """What each sends is read by the attacks that can; the others find nothing."""
    rows = Campaign(federation(0.5, clients=3, nodes=30), RunSettings(values={"rounds": 1, "hidden": 4})).rows(
        algorithms.names(), [""], ["labels", "features"]
    )
    found = {(row["algorithm"], row["attack"]) for row in rows}
    assert {name for name, attack in found if attack == "labels"} == set(algorithms.names()) - {"local"}
    assert {name for name, attack in found if attack == "features"} >= {"fedavg", "fedspray", "fedspray2", "scaffold"}
