"""The first guess at a schema: what each column is taken for, and that it can be used as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.tables import asking
from fedspray.tables.schema import Schema


def write(folder: Path, rows: int = 300) -> asking.Files:
    rng = np.random.default_rng(0)
    kinds = ["id,seen,income,balance,opened,stamp,region,note,flag,branch,verdict,empty,defaulted"]
    for i in range(rows):
        bad = bool(rng.random() < 0.3)
        income = "NA" if rng.random() < 0.1 else f"{rng.normal(50, 10):.2f}"
        region = rng.choice(["north", "south", "west"])
        note = " ".join(rng.choice(["late", "good", "new", "paid", "old"], 4))
        kinds.append(
            f"K{i},{i % 7},{income},{rng.lognormal(5, 3):.3f},20{10 + i % 10}-03-0{1 + i % 9},"
            f"{1_500_000_000 + 977 * i},{region},{note},{i % 2},{'' if i % 5 else 'hq'},"
            f"{'write off' if bad else 'fine'},x,{'yes' if bad else 'no'}"
        )
    (folder / "customers.csv").write_text("\n".join(kinds) + "\n")
    pairs = rng.integers(0, rows, (400, 2))
    lines = "".join(f"K{u},K{v},{rng.lognormal():.2f}\n" for u, v in pairs)
    (folder / "transfers.csv").write_text("payer,payee,amount\n" + lines)
    return asking.Files(nodes=[str(folder / "customers.csv")], edges=[str(folder / "transfers.csv")])


def test_every_column_is_taken_for_what_it_is(tmp_path: Path) -> None:
    asking.write_suggestion(write(tmp_path), tmp_path / "schema.toml")
    schema = Schema.load(tmp_path / "schema.toml")
    kinds = {column: (f.kind, f.scale) for f in schema.features for column in f.columns}
    assert kinds == {
        "seen": ("numeric", "standard"),
        "income": ("numeric", "standard"),
        "balance": ("numeric", "log"),
        "opened": ("date", "standard"),
        "stamp": ("date", "standard"),
        "region": ("category", "none"),
        "note": ("text", "none"),
        "flag": ("numeric", "none"),
        "branch": ("drop", "none"),
        "verdict": ("drop", "none"),  # the label follows from it
        "empty": ("drop", "none"),
    }
    nodes = schema.nodes
    assert (nodes.id, nodes.label, nodes.classes) == ("id", "defaulted", ("no", "yes"))
    assert nodes.missing == ("", "NA")
    assert (schema.edges.source, schema.edges.target, schema.edges.weight) == ("payer", "payee", "amount")
    assert nodes.files == ("customers.csv",)
    done = asking.make(asking.Files(tmp_path / "schema.toml"), tmp_path / "out.npz", None, strict=True)
    assert (done.summary()["num_nodes"], done.traps) == (300, [])
    assert Graph.from_npz(tmp_path / "out.npz").schema is not None


def test_numbered_columns_become_one_entry(tmp_path: Path) -> None:
    header = ",".join(["paper", *(f"w{i}" for i in range(40)), "topic"])
    rows = [",".join([f"p{i}", *(str((i * j) % 3) for j in range(40)), str(i % 4)]) for i in range(50)]
    (tmp_path / "n.csv").write_text("\n".join([header, *rows]) + "\n")
    asking.write_suggestion(asking.Files(nodes=[str(tmp_path / "n.csv")]), tmp_path / "schema.toml")
    schema = Schema.load(tmp_path / "schema.toml")
    assert [feature.columns for feature in schema.features] == [("w*",)]
    assert (schema.nodes.id, schema.nodes.label) == ("paper", "topic")


def test_edges_alone(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("from to\n1 2\n2 3\n")
    asking.write_suggestion(asking.Files(edges=[str(tmp_path / "e.txt")]), tmp_path / "schema.toml")
    assert Schema.load(tmp_path / "schema.toml").nodes.structure
    done = asking.make(asking.Files(edges=[str(tmp_path / "e.txt")]), tmp_path / "e.npz", None, strict=True)
    assert (done.summary()["num_nodes"], done.summary()["num_edges"]) == (3, 2)


def test_nothing_is_overwritten_or_guessed_behind_ones_back(tmp_path: Path) -> None:
    files = write(tmp_path)
    (tmp_path / "schema.toml").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        asking.write_suggestion(files, tmp_path / "schema.toml")
    with pytest.raises(InputError, match="--schema is missing"):
        asking.make(files, tmp_path / "out.npz", None, strict=True)
    assert not (tmp_path / "out.npz").exists()
