"""MessageSchema that are found by playing with two nodes are those of every client."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
import torch
from play import build
from toys import ragged_federation, worker_of

from fedspray.algorithms.fedgta import FedGTA
from fedspray.algorithms.fedspray import FedSpray
from fedspray.data.federation import Task
from fedspray.deploy.messages.schema import (
    MessageSchema,
    contradiction,
    difference,
    fault_of_counts,
    fault_of_uplink,
)
from fedspray.deploy.messages.wire import freeze
from fedspray.engine.layouts import layout_of
from fedspray.engine.rounds import start
from fedspray.engine.worker import Request
from fedspray.messages import mean


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "sage", "mlp", "gat"])
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("fedspray", {}), ("fedspray-plus", {}), ("fedspray2", {}), ("fedlit", {}), ("fedavg", {"sample_nodes": 1})],
)
def test_the_schema_of_real_clients(algorithm: str, settings: dict[str, Any], backbone: str) -> None:
    federation = ragged_federation()
    own = build(algorithm, backbone=backbone, **settings)
    schema = MessageSchema.of(own, federation.task, torch.float64)
    downlink = own.broadcast(start(own, federation.task, 3, torch.float64).server, (2,))
    assert layout_of(downlink) == schema.downlink
    worker = worker_of(own, federation, [2], seed=3)
    uplink, counts = worker.handle(Request(1), downlink)
    assert layout_of(uplink) == schema.uplink
    assert layout_of(counts) == schema.counts
    assert {"evaluation.buckets", "evaluation.ranks", "evaluation.round"} <= {name for name, *_ in schema.detail}


def test_differences_in_words() -> None:
    wanted = layout_of({"a": torch.zeros(1, 2), "b": torch.zeros(1)})
    assert difference(layout_of({"a": torch.zeros(1, 2)}), wanted) == "b is missing"
    assert difference(layout_of({"a": torch.zeros(1, 3), "b": torch.zeros(1)}), wanted) == (
        "a has type and shape ['torch.float32', (1, 3)], but ['torch.float32', (1, 2)] is needed"
    )
    assert difference((*wanted, ("c", "torch.int32", (1,))), wanted) == "'c' is not part of it"


DECLARED = {"w": mean("weights"), **FedSpray.uplink, "confidence": FedGTA.uplink["confidence"]}


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("w", [1e6, -1e6], [1.1e6, -9e11, nan]),
        ("confidence", [1e9, -1e9, 0.5], [1.1e9]),  # a sum over nodes
        ("num_train", [0, 53, 1e9], [-1, 0.5, 9e11]),
        ("class_ratios", [0, 0.5, 1.00001], [-0.1, 1.1]),
    ],
)
def test_numbers_of_updates(name: str, allowed: list[float], refused: list[float]) -> None:
    for value in allowed:
        assert fault_of_uplink({name: torch.tensor([[0.0, value]])}, DECLARED) is None
    for value in refused:
        assert (fault_of_uplink({name: torch.tensor([[0.0, value]])}, DECLARED) or "").startswith(name)
    assert fault_of_uplink({name: torch.zeros(1, 0)}, DECLARED) is None


CONFUSION = torch.zeros(1, 3, 3, 3, dtype=torch.int32)
CONFUSION[0, 0] = torch.tensor([[2, 0, 0], [3, 1, 0], [0, 0, 0]])  # 2 and 4 training nodes
CONFUSION[0, 2] = torch.tensor([[1, 1, 0], [0, 0, 3], [0, 0, 1]])  # 2, 3 and 1 test nodes
DETAIL = {
    "evaluation.confusion": CONFUSION,
    "evaluation.loss": torch.rand(1, 3),
    "evaluation.majority": torch.tensor([1]),
    "evaluation.buckets": torch.tensor([[[2, 5], [0, 0], [0, 0], [0, 0], [0, 0], [0, 1]]]),
    "evaluation.ranks": torch.tensor([[[8.0, 8], [4.5, 9], [0, 5]]]),  # 2·4, 3·3 and 1·5 pairs
    "evaluation.round": torch.tensor([4]),
}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("confusion", -CONFUSION),
        ("confusion", CONFUSION * 500_000_000),
        ("confusion", 2 * CONFUSION),
        ("loss", torch.tensor([[1e13, 0, 0]])),
        ("majority", torch.tensor([0])),
        ("majority", torch.tensor([-1])),
        ("majority", torch.tensor([3])),
        ("buckets", torch.tensor([[[6, 5], [0, 0], [0, 0], [0, 0], [0, 0], [0, 1]]])),
        ("buckets", torch.tensor([[[2, 5], [0, 0], [0, 0], [0, 0], [0, 0], [0, 2]]])),
        ("ranks", torch.tensor([[[8.5, 8], [4.5, 9], [0, 5]]])),
        ("ranks", torch.tensor([[[8.0, 8], [4.5, 1e18], [0, 5]]])),
        ("round", torch.tensor([5])),
    ],
)
def test_counts_that_nothing_counted_can_have(part: str, value: torch.Tensor) -> None:
    assert fault_of_counts(DETAIL, Task(4, 3), 4) is None
    assert fault_of_counts({**DETAIL, f"evaluation.{part}": value}, Task(4, 3), 4) is not None


def test_an_update_cannot_claim_more_nodes_than_are_evaluated() -> None:
    assert contradiction({"num_train": torch.tensor([6.0])}, DETAIL, DECLARED) is None
    assert contradiction({"num_train": torch.tensor([7.0])}, DETAIL, DECLARED) == (
        "num_train is 7, but evaluation.confusion counts 6 training nodes"
    )
    assert contradiction({"num_train": torch.tensor([7.0])}, {}, DECLARED) is None, "the first round evaluates nothing"


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
def test_no_honest_message_is_too_large(backbone: str) -> None:
    """Also none of the most classes and features: the bound is of arrays, names and what describes them."""
    algorithm = build("fedspray", backbone=backbone)
    schema = MessageSchema.of(algorithm, Task(500, 40), torch.float32)
    for part in ("downlink", "uplink", "counts", "detail"):
        rows = getattr(schema, part)
        arrays = {
            f"counts.{name}": torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch."))).numpy()
            for name, dtype, shape in rows
        }
        size = sum(value.nbytes for value in arrays.values())
        assert size < len(freeze(arrays)) <= schema.most_bytes(part) <= size + 1100 * (1 + len(rows))
