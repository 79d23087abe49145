"""Public data sets as tables: imported, they are what the built-in readers give, and train to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedspray import build_federation, datasets, run
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.tables import asking

PUBMED = """format = 1
name = "pubmed"
[nodes]
files = "papers.csv"
id = "paper"
label = "topic"
client = "owner"
[edges]
files = "citations.csv"
source = "from"
target = "to"
[[features]]
columns = "w*"
kind = "numeric"
missing = 0
"""
TWITCH = Path(__file__).parents[2] / "examples" / "twitch.toml"


def bare(graph: Graph) -> Graph:
    return replace(graph, node_names=None, feature_names=None, class_names=None)


@pytest.mark.slow
@pytest.mark.data
def test_pubmed_written_out_as_tables_trains_to_the_same_bits(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    whole, cut = datasets.load("pubmed"), build_federation("pubmed")
    owner = np.full(whole.num_nodes, "", dtype=object)
    for client in cut.clients:
        owner[client.node_ids] = client.name
    dense = whole.dense_features()
    with (tmp_path / "papers.csv").open("w") as stream:
        stream.write(",".join(["paper", *(f"w{i}" for i in range(whole.num_features)), "topic", "owner"]) + "\n")
        for i in range(whole.num_nodes):
            cells = ("" if value == 0 else repr(float(value)) for value in dense[i])
            stream.write(f"PMID-{i},{','.join(cells)},{whole.labels[i]},{owner[i]}\n")
    pairs = "".join(f"PMID-{u},PMID-{v}\n" for u, v in whole.edges.T)
    (tmp_path / "citations.csv").write_text("from,to\n" + pairs)
    (tmp_path / "schema.toml").write_text(PUBMED)
    done = asking.make(asking.Files(tmp_path / "schema.toml"), tmp_path / "out", None, strict=True)
    assert done.traps == []
    made = Federation.load(tmp_path / "out")
    for ours, theirs in zip(made.clients, cut.clients, strict=True):
        assert (ours.name, ours.edges_lost) == (theirs.name, theirs.edges_lost)
        assert bare(ours.graph).equals(bare(theirs.graph))
    results = [run(federation, rounds=2).summary() for federation in (made, cut)]
    assert results[0]["models"] == results[1]["models"]  # hashes of every client's model
    assert results[0]["minority"] == results[1]["minority"]


@pytest.mark.slow
@pytest.mark.data
def test_twitch_as_published_goes_through_a_short_schema(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    text = TWITCH.read_text()
    assert len(text.splitlines()) <= 30
    (tmp_path / "twitch.toml").write_text(text.replace('"musae', f'"{real_data}/twitch/musae'))
    asking.make(asking.Files(tmp_path / "twitch.toml"), tmp_path / "out", None, strict=True)
    made, known = Federation.load(tmp_path / "out"), build_federation("twitch")
    for ours, theirs in zip(made.clients, known.clients, strict=True):
        assert ours.name == theirs.name
        assert bare(ours.graph).equals(bare(theirs.graph))
