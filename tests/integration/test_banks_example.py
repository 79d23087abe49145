"""examples/banks: the commands of its README, as they stand there, and what an independent reader makes of them."""

from __future__ import annotations

import csv
import math
import re
import shlex
import shutil
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from fedspray.cli.main import run_command
from fedspray.data.graph import Graph
from fedspray.runs.models import PersonalModel
from fedspray.runs.trained_on import PARTS

EXAMPLE = Path(__file__).parents[2] / "examples" / "banks"


def commands(number: int) -> list[list[str]]:
    """The commands of one block of the README, line by line."""
    block = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)[number]
    return [shlex.split(line)[1:] for line in block.splitlines()]


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open() as stream:
        return list(csv.DictReader(stream))


def features_of(row: dict[str, str], described: list[dict[str, Any]]) -> list[float]:
    """A row's features by the saved schema, written down a second time without the package."""
    found: list[float] = []
    for entry in described:
        for column in entry["columns"]:
            text = row[column] if row[column] not in ("", "n/a") else None
            if entry["kind"] == "category":
                found += [float(text == word) for word in entry["vocabulary"]]
                found.append(float(text is not None and text not in entry["vocabulary"]))
            elif entry["kind"] in ("numeric", "date"):
                value = entry["mean"] if text is None else _number(text, entry["kind"])
                found.append((value - entry["mean"]) / entry["sd"])
            if entry.get("flag"):
                found.append(float(text is None))
    return found


def seen_in(model: PersonalModel) -> list[str]:
    assert model.trained_on is not None
    return [PARTS[part] for part in model.trained_on.parts]


def _number(text: str, kind: str) -> float:
    if kind == "numeric":
        return float(text)
    return (datetime.fromisoformat(text) - datetime(2000, 1, 1)).total_seconds() / (365.25 * 86_400)


@pytest.mark.slow
def test_five_commands_from_csv_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "banks")
    monkeypatch.chdir(tmp_path / "banks")
    five = commands(0)
    assert len(five) == 5
    for command in five:
        assert run_command(command) == 0
    assert "three-banks" in Path("report.html").read_text()

    # the same again from the raw files, by a reader of our own
    schema = tomllib.loads(Path("three-banks/schema.toml").read_text())
    people = [*rows_of("data/north/new-customers.csv"), *rows_of("data/north/customers.csv")]
    place = {row["customer"]: i for i, row in enumerate(people)}
    weights: dict[tuple[int, int], float] = {}
    for row in [*rows_of("data/north/transfers.csv"), *rows_of("data/north/new-transfers.csv")]:
        pair = tuple(sorted((place[row["payer"]], place[row["payee"]])))
        weights[pair] = weights.get(pair, 0.0) + float(row["amount"])  # type: ignore[index, arg-type]
    features = [features_of(row, schema["features"]) for row in people]
    logs = [math.log1p(weight) for weight in weights.values()]
    labels = [("business", "household").index(row["segment"]) if "segment" in row else -1 for row in people]
    graph = Graph.from_arrays(features, np.array(list(weights)).T, labels, edge_weights=logs)
    model = PersonalModel.load("run/seed-0/models/north")
    parts = dict(
        zip(Graph.from_npz("three-banks/clients/north/graph.npz").node_names or (), seen_in(model), strict=True)
    )
    trained = np.array([parts.get(row["customer"]) == "train" for row in people])
    assert trained.sum() == 224
    expected = model.predict(graph, trained)[:40]
    found = rows_of("predictions.csv")
    assert [row["node"] for row in found] == [row["customer"] for row in people[:40]]
    shown = np.array([[float(row[f"probability_{name}"]) for name in ("business", "household")] for row in found])
    np.testing.assert_allclose(shown, expected, atol=2e-6)
    truth = {row["customer"]: row["segment"] for row in rows_of("data/north/new-customers-truth.csv")}
    right = np.mean([truth[row["node"]] == row["prediction"] for row in found])
    assert right == np.mean(
        [(p.argmax() == 1) == (truth[n] == "household") for n, p in zip(truth, expected, strict=True)]
    )
    assert right > 0.8

    again = five[4][:-1]
    assert run_command([*again, "predictions.parquet"]) == 0
    kept = duckdb.execute("SELECT node, prediction FROM 'predictions.parquet'").fetchall()
    assert kept == [(row["node"], row["prediction"]) for row in found]


def test_banks_that_add_up_their_counts_get_the_scales_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "banks")
    monkeypatch.chdir(tmp_path / "banks")
    for command in commands(0)[:2]:
        assert run_command(command) == 0
    (count,), (merge, build) = commands(1), commands(2)
    for name in ("north", "south", "west"):
        assert run_command([word.replace("north", name) for word in count]) == 0
    assert run_command(merge) == 0
    assert run_command(build) == 0
    pooled, agreed = (
        {entry["columns"][0]: entry for entry in tomllib.loads(Path(file).read_text())["features"]}
        for file in ("three-banks/schema.toml", "agreed.toml")
    )
    for column in ("income", "balance", "age", "since"):
        for key in ("mean", "sd"):
            assert math.isclose(agreed[column][key], pooled[column][key], rel_tol=1e-9)
    assert agreed["region"]["vocabulary"] == pooled["region"]["vocabulary"]
    alone, together = Graph.from_npz("north/graph.npz"), Graph.from_npz("three-banks/clients/north/graph.npz")
    assert alone.node_names == together.node_names
    np.testing.assert_allclose(alone.dense_features(), together.dense_features(), atol=1e-5)
