"""How clients' rows become what the server's step receives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedspray import algorithms, messages
from fedspray.messages import addends, combine, each, from_sums, key_of, mean, total
from fedspray.nn.tree import Message

DECLARED: messages.Declared = {
    "gnn.*": mean("weights"),
    "gnn.own.*": each("some of them", "it is told apart"),
    "vectors": mean("one for each class", weight="shares"),
    "num_train": total("nodes"),
    "shares": total("of each class"),
    "text": "what an outside algorithm says",
}


def by_sums(declared: messages.Declared, rows: Message) -> Message:
    """What a protocol gives that can only add."""
    own = {name: value for name, value in rows.items() if key_of(declared, name).fate == "each"}
    return from_sums(declared, {k: v.sum(dim=0) for k, v in addends(declared, rows).items()}, own)


def test_each_key_meets_its_fate() -> None:
    rows = {
        "gnn.w": torch.tensor([[1.0], [4.0]]),
        "gnn.own.w": torch.tensor([[5.0], [6.0]]),
        "vectors": torch.tensor([[[1.0], [2.0], [0.0]], [[3.0], [7.0], [0.0]]]),
        "num_train": torch.tensor([1.0, 2.0]),
        "shares": torch.tensor([[0.5, 1.0, 0.0], [0.5, 0.0, 0.0]]),
        "text": torch.tensor([[8.0], [9.0]]),
    }
    for found in (combine(DECLARED, rows), by_sums(DECLARED, rows)):
        assert {name: value.tolist() for name, value in found.items()} == {
            "gnn.w": [3.0],  # (1·1 + 2·4) / 3
            "gnn.own.w": [[5.0], [6.0]],
            "vectors": [[2.0], [2.0], [0.0]],  # a class that nobody has: 0
            "num_train": 3.0,
            "shares": [1.0, 1.0, 0.0],
            "text": [[8.0], [9.0]],
        }


def test_where_nobody_has_training_nodes_a_mean_is_zero() -> None:
    rows = {"gnn.w": torch.tensor([[1.0, 2.0], [4.0, 5.0]]), "num_train": torch.zeros(2)}
    for found in (combine(DECLARED, rows), by_sums(DECLARED, rows)):
        assert found["gnn.w"].tolist() == [0.0, 0.0]


def test_a_mere_text_is_for_each_client() -> None:
    assert key_of(DECLARED, "text").fate == "each"
    assert key_of(DECLARED, "text").text == "what an outside algorithm says"


_values = st.floats(-100, 100, width=32)


@given(
    values=arrays(np.float32, (4, 3, 2), elements=_values),
    weights=arrays(np.float32, (4,), elements=st.integers(0, 1000).map(float)),
    shares=arrays(np.float32, (4, 3), elements=st.sampled_from([0.0, 0.125, 0.5, 1.0])),
)
def test_a_mean_is_a_ratio_of_sums(values: Any, weights: Any, shares: Any) -> None:
    rows = {
        name: torch.from_numpy(value).double()
        for name, value in (("gnn.w", values), ("vectors", values), ("num_train", weights), ("shares", shares))
    }
    plain, added = combine(DECLARED, rows), by_sums(DECLARED, rows)
    for name, value in plain.items():
        assert torch.allclose(value, added[name], rtol=1e-6, atol=1e-6), name
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_declares_every_key(name: str) -> None:
    declared = algorithms.find(name).uplink
    for key in messages.fates(declared).values():
        assert key.text
        assert (key.fate == "each") == bool(key.reason)
        assert key.weight is None or key.weight in declared


NEED_ROWS = {"fed-pub", "fedaux", "fedgta", "fedlit", "gcfl", "gcfl-plus"}


def test_which_algorithms_need_the_rows_of_a_model() -> None:
    """Small numbers aside, all others learn from means and sums."""
    found = {
        name
        for name in algorithms.names()
        for key in messages.fates(algorithms.find(name).uplink).values()
        if key.fate == "each" and key.kind is messages.WEIGHTS
    }
    assert found == NEED_ROWS


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_key_that_is_not_finite(bad: float) -> None:
    message = {"a": torch.ones(2), "b": torch.tensor([1.0, bad]), "c": torch.tensor([1])}
    assert messages.not_finite(message) == "b"
    assert messages.not_finite({"a": torch.ones(2)}) is None
