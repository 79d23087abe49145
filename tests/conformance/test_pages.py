"""Every algorithm has a page, and what can be checked of it is true."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from play import Play, build

from fedspray import algorithms
from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.nn.tree import num_bytes

DOCS = Path(__file__).parents[2] / "docs"
VARIANTS = {"fedspray-plus", "fedspray-no-proxies", "fedspray2-shared"}
"""They are described on the pages of FedSpray and FedSpray 2."""
PAGES = [name for name in algorithms.names() if name not in VARIANTS]

DEVIATIONS = r"^## (Deviations|Choices|Where .* differ|Where this differs|Settings: text, released code, default)"


def page(name: str) -> str:
    return (DOCS / "algorithms" / f"{name}.md").read_text()


def played(name: str) -> Play:
    """A round with the sizes of PubMed and the default GCN: 500 features, 64 units, 3 classes."""
    graph = Graph.from_arrays(np.eye(6, 500), np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]), [0, 1, 2, 0, 1, 2])
    clients = Federation.from_graphs({"a": graph}, name="tiny").clients
    return Play(build(name), GraphBatch.from_clients(clients, [0], dtype=torch.float32), rounds=1)


def bytes_sent(name: str) -> tuple[int, int]:
    """Down and up, per client and round."""
    game = played(name)
    return num_bytes(game.message), num_bytes(game.uplinks[0])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_a_reader_looks_for(name: str) -> None:
    text = page(name)
    idea = text.split("## The idea in five lines\n")[-1].split("\n## ")[0].split("```")[0]
    lines = [line for line in idea.splitlines() if line and not line.startswith("#")]
    assert 3 <= len(lines) <= 6
    assert re.search(r"^    \S.*[←=+]", text, flags=re.MULTILINE), "no formula"
    assert f"--algorithm {name}" in text
    assert re.search(DEVIATIONS, text, flags=re.MULTILINE)
    for section in ("## What travels", "## When to use it"):
        assert section in text
    assert f"(algorithms/{name}.md)" in (DOCS / "index.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_the_bytes_are_right(name: str) -> None:
    down, up = bytes_sent(name)
    travels = page(name).split("## What travels")[1].split("\n## ")[0]
    assert {f"{down:,}", f"{up:,}"} <= set(re.findall(r"[\d,]*\d", travels))


def test_the_bytes_of_fedspray_plus_are_right() -> None:
    extra = [more - plain for plain, more in zip(bytes_sent("fedspray"), bytes_sent("fedspray-plus"), strict=True)]
    assert "52 bytes more go" in page("fedspray")
    assert extra == [4, 52]


def test_the_bytes_of_fedspray2_shared_are_right() -> None:
    """Those of FedAvg's GNN more, both ways."""
    extra = [more - plain for plain, more in zip(bytes_sent("fedspray2"), bytes_sent("fedspray2-shared"), strict=True)]
    assert extra == [bytes_sent("fedavg")[0]] * 2
    assert f"{extra[0]:,} bytes more" in page("fedspray2")


@pytest.mark.parametrize("name", PAGES)
def test_every_setting_preset_and_diagnostic_is_on_the_page(name: str) -> None:
    found = algorithms.find(name)
    known = {f.name for f in fields(Algorithm)}
    if name == "gcfl-plus":
        known |= {f.name for f in fields(algorithms.find("gcfl"))}
    words = set(re.findall(r"\w+(?:-\w+)*", page(name)))
    assert {f.name for f in fields(found)} - known - words == set()
    assert set(found.presets) - words == set()
    described = words | set(re.findall(r"\w+", page("gcfl"))) if name == "gcfl-plus" else words
    assert set(played(name).record()) - described == set()
