"""Robust means: by hand, against attackers, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import permuted_federation

import fedspray
from fedspray import algorithms, links
from fedspray.algorithms.fedavg import FedAvg
from fedspray.data.federation import Federation
from fedspray.errors import InputError
from fedspray.links.base import Link, Trip
from fedspray.messages import Declared, combine, mean, total
from fedspray.nn.tree import Message
from fedspray.testing import flip_labels

DECLARED: Declared = {
    "gnn.*": mean("weights"),
    "num_train": total("nodes"),
    "vectors": mean("by class", weight="shares"),
    "shares": total("of classes"),
}


def rows(*values: float) -> Message:
    """Clients with one weight each, and 1, 2, … training nodes."""
    return {
        "gnn.w": torch.tensor(values, dtype=torch.float32)[:, None],
        "num_train": torch.arange(1.0, len(values) + 1),
    }


def combined(text: str, message: Message, **received: torch.Tensor) -> dict[str, Any]:
    sent = {name.replace("_", "."): value for name, value in received.items()}
    return {name: value.tolist() for name, value in links.make(text).combine(DECLARED, message, sent).items()}


@pytest.mark.parametrize(
    ("text", "weight", "nodes"),
    [
        ("robust rule=median", 3.0, 15.0),  # five times the middle of 1 … 5
        ("robust rule=trimmed", 3.0, 15.0),  # (2 + 3 + 4) / 3
        ("robust rule=krum", (1 * 1 + 2 * 2 + 3 * 3 + 4 * 4) / 10, 10.0),  # without the last, weighted
        ("robust rule=clip", (1 + 2 + 3 + 3 + 3) / 5, 15.0),  # lengths of at most 3
    ],
)
def test_each_rule_by_hand(text: str, weight: float, nodes: float) -> None:
    found = combined(text, rows(1, 2, 3, 4, 1000))
    assert found["gnn.w"] == pytest.approx([weight])
    assert found["num_train"] == pytest.approx(nodes)


def test_clip_counts_from_what_was_sent() -> None:
    """Changes of 1, 1, 1, 1 and 90 from 10."""
    found = combined("robust rule=clip", rows(11, 11, 11, 11, 100), gnn_w=torch.full((5, 1), 10.0))
    assert found["gnn.w"] == pytest.approx([11.0])


def test_means_by_class_are_over_those_that_have_the_class() -> None:
    message = {
        "vectors": torch.tensor([[[1.0], [9.0]], [[2.0], [9.0]], [[3.0], [9.0]], [[50.0], [5.0]]]),
        "shares": torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]),
    }
    found = combined("robust rule=median", message)
    assert found["vectors"] == [[2.5], [5.0]]  # the middle of 1, 2, 3, 50, and of 5 alone


@given(st.lists(st.floats(-10, 10, width=32), min_size=7, max_size=7), st.floats(-1e5, 1e5, width=32))
def test_bad_clients_cannot_leave_the_range_of_the_good(good: list[float], bad: float) -> None:
    for rule in ("median", "trimmed"):
        found = combined(f"robust rule={rule} bad=2", rows(*good, bad, bad))["gnn.w"][0]
        assert min(good) - 1e-4 <= found <= max(good) + 1e-4


def test_without_bad_clients_equal_updates_stay_what_they_are() -> None:
    message = {"gnn.w": torch.full((6, 2), 1.5), "num_train": torch.full((6,), 4.0)}
    for rule in ("median", "trimmed", "clip", "krum"):
        link = links.make(f"robust rule={rule}")
        if rule != "krum":  # which leaves one out
            assert link.combine(DECLARED, message, {})["num_train"] == combine(DECLARED, message)["num_train"]
        assert torch.equal(link.combine(DECLARED, message, {})["gnn.w"], combine(DECLARED, message)["gnn.w"])


def test_what_is_absurd_is_refused_by_name() -> None:
    link = links.make("robust absurd=10")
    assert link.faults(DECLARED, rows(1, 1, 1, 11, float("nan")), {}) == {
        3: "its update is 11 times as long as the median one",
        4: "its update is not finite",
    }
    assert link.faults(DECLARED, rows(1, 1, 1, 9), {}) == {}


# ---- runs ---------------------------------------------------------------------------------------------------


def run(*chain: str, algorithm: str = "fedavg", **values: Any) -> Any:
    given: dict[str, Any] = {"rounds": 25, "hidden": 16, "lr": 0.01, "init": "glorot", "progress": False, **values}
    return fedspray.run(half(), algorithm, link=list(chain), **given).seeds[0]


def half() -> Any:
    """Nine clients of one kind."""
    clients = permuted_federation(120).clients[:3]
    graphs = {f"c{i}{j}": client.graph for j in range(3) for i, client in enumerate(clients)}
    return Federation.from_graphs(graphs, name="half")


@pytest.mark.slow
def test_robust_means_hold_where_the_plain_one_collapses() -> None:
    """Two of nine clients turn their updates round, five times as long."""
    attack = "attackers clients=1,5 factor=5"
    clean, plain = run().metrics["overall"], run(attack).metrics["overall"]
    assert plain < clean - 0.2
    for rule in ("median", "trimmed", "krum"):
        assert run(attack, f"robust rule={rule} bad=2").metrics["overall"] > clean - 0.05, rule


def test_nonsense_is_refused_by_name_and_the_round_goes_on() -> None:
    found = run("attackers clients=2 kind=nan", rounds=2)
    assert all(list(record["failed"]) == ["c20"] for record in found.records)
    assert all(2 not in record["trained"] for record in found.records)
    found = run("attackers clients=2 kind=scale factor=1e4", "robust rule=median", rounds=2)
    assert all("times as long" in record["failed"]["c20"] for record in found.records)


def test_clients_with_wrong_labels() -> None:
    federation = half()
    wrong = flip_labels(federation, ["c00", "c10"])
    for mine, other in zip(federation.clients, wrong.clients, strict=True):
        flips = mine.name in ("c00", "c10")
        assert (other.graph.labels == (2 - mine.graph.labels if flips else mine.graph.labels)).all()
    with pytest.raises(InputError, match="nobody"):
        flip_labels(federation, ["nobody"])


def test_attackers_change_updates_and_nothing_else() -> None:
    link = links.make("attackers clients=0 kind=scale factor=3")
    message = {"gnn.w": torch.tensor([[2.0]]), "num_train": torch.tensor([5.0])}
    trip = Trip(0, 1, 0, FedAvg.uplink, torch.float32, 5, received={"gnn.w": torch.tensor([[1.0]])})
    sent, _ = link.to_server(message, {}, trip)
    assert {name: value.tolist() for name, value in sent.items()} == {"gnn.w": [[4.0]], "num_train": [5.0]}
    honest, _ = link.to_server(message, {}, Trip(1, 1, 0, FedAvg.uplink, torch.float32, 5))
    assert honest is message


@pytest.mark.parametrize(
    ("algorithm", "chain", "sentence"),
    [
        ("gcfl", ["robust"], "gnn.*, num_train"),
        ("fedavg", ["robust", "secure-sum"], "secure-sum gives"),
        ("fedavg", ["robust bad=0"], "bad is 0"),
        ("fedavg", ["robust rule=mean"], "rule is 'mean'"),
        ("fedavg", ["attackers clients=a"], "clients is 'a'"),
    ],
)
def test_refused(algorithm: str, chain: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        links.chain(chain, algorithms.find(algorithm).uplink)
    assert sentence in str(caught.value)


def test_too_few_clients_for_a_rule() -> None:
    with pytest.raises(InputError, match="4 clients sent updates"):
        links.make("robust bad=2").combine(DECLARED, rows(1, 2, 3, 4), {})
    assert issubclass(links.find("robust"), Link)
