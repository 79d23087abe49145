"""`fedspray import`, `fedspray schema` and predictions from raw tables, as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedspray.cli.main import run_command
from fedspray.data.federation import Client
from fedspray.data.graph import Graph

EXAMPLE = Path(__file__).parents[2] / "examples" / "banks"
SCHEMA = """format = 1
[nodes]
files = "nodes.csv"
id = "id"
label = "y"
[edges]
files = "edges.csv"
source = "a"
target = "b"
[[features]]
columns = "v"
kind = "numeric"
scale = "standard"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"n{i},{i % 4},{'yes' if i % 3 else 'no'}" for i in range(12)]
    Path("nodes.csv").write_text("\n".join(["id,v,y", *rows, "n12,odd,no", "n13,1"]) + "\n")
    Path("edges.csv").write_text("a,b\n" + "".join(f"n{i},n{(i + 1) % 12}\n" for i in range(12)) + "n1,ghost\n")
    Path("schema.toml").write_text(SCHEMA)
    return tmp_path


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert run_command([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_client_and_a_graph(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = summary(capsys, "import", "--schema", "schema.toml", "--client", "north", "--out", "north")
    assert (made["kind"], made["num_nodes"], made["num_edges"]) == ("client", 12, 12)
    assert made["problems"] == {"unreadable": 1, "bad value": 1, "edge to an unknown node": 1}
    assert Client.load("north").graph.node_names == tuple(f"n{i}" for i in range(12))
    single = summary(capsys, "import", "--schema", "schema.toml", "--out", "one.npz")
    assert single["kind"] == "graph"
    assert Graph.from_npz("one.npz").equals(Client.load("north").graph)


def test_one_is_not_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["import", "--schema", "schema.toml", "--out", "one.npz"]) == 0
    told = capsys.readouterr()
    assert "12 edges, 1 feature, 2 classes" in told.out + told.err
    assert "1 row skipped: bad value" in told.err
    assert run_command(["schema", "check", "schema.toml"]) == 0
    assert "1 entry for features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schema", "schema.toml", "--out", "new", "--client", "c", "--strict"], "nodes.csv, line 15: "),
        (["--schema", "schema.toml", "--out", "new"], "--client NAME"),
        (["--schema", "nothing.toml", "--out", "new"], "nothing.toml"),
        (["--schema", "schema.toml"], "--out"),
        (["--schema", "schema.toml", "--out", "new", "--suggest", "other.toml"], "--suggest"),
        (["--nodes", "nodes.csv", "--out", "new"], "--schema is missing"),
        (["--schema", "schema.toml", "--nodes", ".", "--out", "new"], "is a folder"),
        (["--schema", "schema.toml", "--out", "new", "--client", "../up"], "not a client"),
        (["--schema", "schema.toml", "--out", "new", "--memory", "much"], "memory is 'much'"),
        (["--graph", "nodes.csv", "--out", "new"], "must end in one of"),
        (["--schema", "schema.toml", "--out", "edges.csv"], "exists already"),
    ],
)
def test_a_refusal_is_one_sentence_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    before = {file.name for file in folder.iterdir()}
    assert run_command(["import", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert said in error
    assert {file.name for file in folder.iterdir()} == before


def test_traps_are_said_before_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = SCHEMA.replace("[edges]", 'client = "bank"\n[edges]').replace('scale = "standard"\n', "")
    Path("schema.toml").write_text(schema)
    rows = [f"n{i},{1_600_000_000 + 9_999 * i},{'yes' if i % 3 else 'no'},b{i % 2}" for i in range(40)]
    Path("nodes.csv").write_text("\n".join(["id,v,y,bank", *rows]) + "\n")
    made = summary(capsys, "import", "--schema", "schema.toml", "--out", "banks-of-ours")
    traps: Any = made["traps"]
    kinds = {trap["kind"] for trap in traps}
    assert kinds == {"scale", "time"}
    assert run_command(["run", "--dataset", "./banks-of-ours", "--rounds", "1", "--out", "run"]) == 0
    assert "'v' looks like" in " ".join(capsys.readouterr().err.split())
    assert run_command(["run", "--dataset", "banks", "--nodes", "200", "--rounds", "1", "--out", "other"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_schemas_are_compared_counted_and_merged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.toml").write_text(SCHEMA.replace('"standard"', '"log"'))
    assert summary(capsys, "schema", "diff", "schema.toml", "schema.toml")["same"] is True
    differences: Any = summary(capsys, "schema", "diff", "schema.toml", "other.toml")["differences"]
    assert [(found["where"], found["what"]) for found in differences] == [("feature 'v'", "scale")]
    for site in ("one", "two"):
        counted = ["schema", "count", "schema.toml", "--site", site, "--out", f"{site}.json", "--minimum", "4"]
        assert run_command(counted) == 0
        assert Path(f"{site}.json").read_text().strip() in capsys.readouterr().out
    assert run_command(["schema", "merge", "schema.toml", "one.json", "two.json", "--out", "agreed.toml"]) == 0
    assert run_command(["schema", "check", "agreed.toml"]) == 0
    assert "mean = 1.5\n" in Path("agreed.toml").read_text()  # of 0, 1, 2, 3 again and again
    assert 'classes = ["no", "yes"]' in Path("agreed.toml").read_text()
