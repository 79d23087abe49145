from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspray.data.federation import Federation
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.data.splits import SplitRule, draw_split
from fedspray.errors import InputError


def labelled_graph(labels: list[int]) -> Graph:
    return Graph.from_arrays(np.ones((len(labels), 1)), np.zeros((2, 0)), labels, num_classes=2)


@given(st.integers(1, 200), st.sampled_from(["10/10/80", "60/20/20", "80/0/20", "33.3/33.3/33.4", "100/0/0"]))
def test_other_shares(num_nodes: int, text: str) -> None:
    graph = labelled_graph([0] * num_nodes)
    split, usual = draw_split(graph, 0, "a", SplitRule(text)), draw_split(graph, 0, "a")
    masks = np.stack([split.train, split.val, split.test])
    assert (masks.sum(axis=0) == 1).all()
    for mask, percent in zip(masks, text.split("/"), strict=True):
        assert abs(int(mask.sum()) - float(percent) * num_nodes / 100) <= 1
    both = split.train & usual.train  # nodes have the same order under all shares
    assert both.sum() == min(split.train.sum(), usual.train.sum())


@pytest.mark.parametrize("text", ["40/30", "40/30/40", "0/50/50", "-10/60/50", "a/b/c", "", "nan/5/5", 40, "9/9/9/73"])
def test_shares_that_make_no_split_are_refused(text: Any) -> None:
    with pytest.raises(InputError, match="three percentages"):
        SplitRule(text)


def test_a_federation_remembers_its_shares(tmp_path: Path) -> None:
    graphs = {"a": labelled_graph([0] * 20), "b": labelled_graph([1] * 40)}
    federation = Federation.from_graphs(graphs, split="60/20/20")
    assert federation.settings == {"split": "60/20/20", "split_seed": 0}
    federation.save(tmp_path / "saved")
    for known in (federation, Federation.load(tmp_path / "saved")):
        assert [int(c.split.train.sum()) for c in known.with_split(5).clients] == [12, 24]
        usual = known.with_split(5, split="40/30/30")
        assert usual.settings == {"split_seed": 5}
        assert usual.split_fingerprint() == Federation.from_graphs(graphs, seed=5).split_fingerprint()


def test_a_split_of_the_whole_graph_knows_no_clients() -> None:
    """However the graph is cut, a node is in the same part; the shares are those of the whole."""
    graph = labelled_graph([i % 2 if i % 5 else UNLABELLED for i in range(100)])
    halves, thirds = ([np.arange(50), np.arange(50, 100)], [np.arange(k, 100, 3) for k in range(3)])
    parts = [part_of_nodes(Federation.from_graph(graph, cut, split_scope="graph", seed=1)) for cut in (halves, thirds)]
    assert parts[0] == parts[1]
    assert np.bincount(list(parts[0].values())).tolist() == [20, 32, 24, 24]  # unlabelled; 40, 30 and 30% of 80
    assert part_of_nodes(Federation.from_graph(graph, halves, seed=1)) != parts[0]


def part_of_nodes(federation: Federation) -> dict[int, int]:
    """By node of the whole graph: 1 for training, 2 for validation, 3 for test, 0 for none."""
    found: dict[int, int] = {}
    for client in federation.clients:
        parts = client.split.train + 2 * client.split.val + 3 * client.split.test
        found |= dict(zip(client.node_ids.tolist(), parts.tolist(), strict=True))
    return found


def test_a_whole_graph_needs_one_graph() -> None:
    separate = Federation.from_graphs([labelled_graph([0] * 5), labelled_graph([1] * 6)])
    with pytest.raises(InputError, match="cut from one"):
        separate.with_split(0, split_scope="graph")
    with pytest.raises(InputError, match="unknown split-scope 'site'"):
        separate.with_split(0, split_scope="site")
    with pytest.raises(InputError, match="a client alone"):
        draw_split(separate.clients[0].graph, 0, "a", SplitRule(split_scope="graph"))
