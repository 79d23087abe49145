"""Each trap is told when it is there, and not when it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import fedspray as fs
from fedspray import run
from fedspray.cli.main import run_command
from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.data.reading import read_federation
from fedspray.data.traps import TrapWarning, find_traps
from fedspray.errors import InputError

N = 200
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, size=N)
FEATURES = RNG.normal(size=(N, 6)) + 0.5 * LABELS[:, None]
DAYS = RNG.permutation(N)


def kinds(
    features: object = FEATURES,
    labels: object = LABELS,
    num_classes: int = 3,
    split: Callable[[Client], Split] | None = None,
) -> list[str]:
    graph = Graph.from_arrays(features, RNG.integers(0, N, size=(2, 400)), labels, num_classes=num_classes)  # type: ignore[arg-type]
    made = Federation.from_graph(graph, [np.arange(0, N, 2), np.arange(1, N, 2)])
    if split is not None:
        clients = tuple(Client(c.name, c.graph, split(c), c.node_ids) for c in made.clients)
        made = Federation("given", clients)
    return [trap.kind for trap in find_traps(made)]


def with_column(values: object) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.column_stack([FEATURES, np.asarray(values, np.float64)])


def test_sound_data_has_none() -> None:
    assert kinds() == []
    assert kinds(sp.csr_array(FEATURES * (FEATURES > 1))) == []


@pytest.mark.parametrize(
    ("kind", "there", "not_there"),
    [
        ("scale", 50_000 * RNG.normal(size=N), RNG.normal(size=N) * 20),
        ("constant", np.full(N, 7.0), np.r_[np.full(N - 1, 7.0), 8.0]),
        ("time", 1_600_000_000 + 86_400 * DAYS, (1_600_000_000 + 86_400 * DAYS) / 1e9),
        ("time", 1_600_000_000_000 + 86_400_000 * DAYS, np.where(DAYS % 2, 1e11, -1e11)),
        ("time", 20_240_100 + DAYS % 28 + 1, 20_241_300 + DAYS),
        ("leak", LABELS == 1, np.where(RNG.random(N) < 0.2, RNG.integers(0, 2, N), LABELS == 1)),
        ("leak", LABELS + 0.01 * RNG.normal(size=N), LABELS + RNG.normal(size=N)),
    ],
)
def test_columns(kind: str, there: object, not_there: object) -> None:
    two = np.where(LABELS == 1, 1, 0)  # two classes, so that a column that knows one of them knows both
    labels, number = (two, 2) if np.asarray(there).dtype == np.bool_ else (LABELS, 3)
    assert kind in kinds(with_column(there), labels, number)
    assert kind not in kinds(with_column(not_there), labels, number)


def test_a_sparse_column_that_gives_the_label_away() -> None:
    words = sp.csr_array((RNG.random((N, 80)) < 0.1).astype(float))
    two = np.where(LABELS == 1, 1, 0)
    assert kinds(words, two, 2) == []
    assert kinds(sp.hstack([words, sp.csr_array(two[:, None].astype(float))]), two, 2) == ["leak"]


def test_classes() -> None:
    assert kinds(labels=LABELS + 1, num_classes=4) == ["first class"]
    assert kinds(num_classes=4) == ["phantom class"]
    assert kinds(labels=np.where(LABELS == 2, -1, LABELS)) == ["phantom class"]


@pytest.mark.parametrize(
    ("names", "number", "expected"),
    [
        (("high", "low", "Low "), 1, ["alike classes", "lone class"]),
        (("high", "low", "Low "), 2, ["alike classes"]),
        (("high", "low", "slow"), 2, []),
        (None, 1, ["lone class"]),
    ],
)
def test_mistyped_labels(names: tuple[str, ...] | None, number: int, expected: list[str]) -> None:
    labels = LABELS % 2
    labels[: 2 * number : 2] = 2
    graph = Graph.from_arrays(FEATURES, RNG.integers(0, N, size=(2, 400)), labels, num_classes=3, class_names=names)
    train, odd = np.arange(N) < N // 2, np.arange(N) % 2 == 1
    made = Federation("one", (Client("a", graph, Split(train, ~train & odd, ~train & ~odd), np.arange(N)),))
    assert [trap.kind for trap in find_traps(made)] == expected


def test_splits() -> None:
    nobody = np.zeros(N // 2, np.bool_)
    everybody = ~nobody
    half = np.arange(N // 2) % 2 == 0

    def rare(client: Client) -> Split:
        train = client.graph.labels != 2
        return Split(train & half, train & ~half, ~train)

    assert kinds(split=rare) == ["untrained class"]
    assert kinds(split=lambda c: Split(half, ~half, nobody)) == ["empty split"]
    assert kinds(split=lambda c: Split(half, nobody, ~half)) == ["empty split"]
    assert kinds(split=lambda c: Split(nobody, nobody, everybody)) == ["empty split", "empty split"]
    first = kinds(split=lambda c: Split(half if c.name == "client_00" else nobody, ~half, nobody))
    assert first == ["empty split", "empty split"]
    assert kinds(split=lambda c: c.split) == []


def test_nobody_trains_on_an_empty_training_split(tmp_path: Path) -> None:
    for name in ("a", "b"):
        nobody = np.zeros(20, np.bool_)
        arrays = {"train_mask": nobody, "val_mask": nobody, "test_mask": ~nobody, "y": np.arange(20) % 2}
        arrays |= {"x": RNG.normal(size=(20, 3)), "edge_index": RNG.integers(0, 20, (2, 40))}
        np.savez(tmp_path / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    federation = read_federation(tmp_path)
    with pytest.raises(InputError, match=r"no client of .* has a training node"):
        run(federation, rounds=1, keep_split=True)
    assert run(federation, rounds=1).overall is not None  # a split that is drawn has training nodes


def with_time_stamps() -> fs.Federation:
    """Banks, one of whose features is a time stamp."""
    graphs = {}
    for client in fs.build_federation("banks", nodes=200, clients=2).clients:
        features = client.graph.dense_features().copy()
        features[:, 0] = 1_700_000_000 + np.arange(len(features)) * 1000
        graphs[client.name] = replace(client.graph, features=features)
    return fs.Federation.from_graphs(graphs, name="ours")


def test_python_warns_before_training(tmp_path: Path) -> None:
    ours = with_time_stamps()
    with pytest.warns(TrapWarning, match="time"):
        fs.run(ours, "local", rounds=1, hidden=4, progress=False)
    with pytest.warns(TrapWarning, match="time"):
        fs.compare(ours, ["local"], rounds=1, seeds=1, out=tmp_path / "study", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.run(fs.build_federation("banks", nodes=200), "local", rounds=1, hidden=4, progress=False)


def test_compare_says_traps_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_time_stamps().save(tmp_path / "ours")
    words = ["--dataset", str(tmp_path / "ours"), "--rounds", "1", "--seeds", "2", "--jobs", "1", "--bootstrap", "0"]
    places = ["--cells", str(tmp_path / "cells"), "--out", str(tmp_path / "study")]
    methods = ["--algorithm", "local", "--algorithm", "fedavg"]
    assert run_command(["compare", *words, *places, *methods]) == 0
    said = capsys.readouterr().err
    assert said.count("warning: ") == len(find_traps(with_time_stamps()))
    assert "time" in said
