"""Forms that are found by playing with two nodes are those of every client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from play import build
from toys import ragged_federation, stack

from fedspray.data.federation import Task
from fedspray.deploy.forms import Forms, difference, fault_of_counts, fault_of_uplink, form_of
from fedspray.engine.rounds import start
from fedspray.engine.worker import Request, Worker


@pytest.mark.parametrize("backbone", ["gcn", "sgc", "sage", "mlp", "gat"])
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("fedspray", {}), ("fedspray-plus", {}), ("fedlit", {}), ("fedavg", {"sample_nodes": 1})],
)
def test_the_forms_of_real_clients(algorithm: str, settings: dict[str, Any], backbone: str) -> None:
    federation = ragged_federation()
    own = build(algorithm, backbone=backbone, **settings)
    forms = Forms.of(own, federation.task, torch.float64)
    downlink = own.broadcast(start(own, federation.task, 3, torch.float64).server, (2,))
    assert form_of(downlink) == forms.downlink
    worker = Worker(
        own, federation.task, stack(federation, ids=[2]), torch.zeros(federation.clients[2].graph.num_nodes).numpy(), 3
    )
    uplink, counts = worker.handle(Request(1), downlink)
    assert form_of(uplink) == forms.uplink
    assert form_of(counts) == forms.counts
    assert {"evaluation.buckets", "evaluation.ranks", "evaluation.round"} <= {name for name, *_ in forms.detail}


def test_differences_in_words() -> None:
    wanted = form_of({"a": torch.zeros(1, 2), "b": torch.zeros(1)})
    assert difference(form_of({"a": torch.zeros(1, 2)}), wanted) == "b is missing"
    assert difference(form_of({"a": torch.zeros(1, 3), "b": torch.zeros(1)}), wanted) == (
        "a has type and shape ['torch.float32', (1, 3)], but ['torch.float32', (1, 2)] is needed"
    )
    assert difference((*wanted, ("c", "torch.int32", (1,))), wanted) == "'c' is not part of it"


def test_numbers_that_cannot_be() -> None:
    task = Task(4, 3)
    assert (
        fault_of_uplink({"w": torch.tensor([[1e11, -5.0]]), "num_train": torch.zeros(1), "none": torch.zeros(1, 0)})
        is None
    )
    assert fault_of_uplink({"w": torch.tensor([[-1e13]])}) == "w has numbers that are too large to be a model's"
    assert fault_of_counts({"evaluation.majority": torch.tensor([-1])}, task) is None
    assert fault_of_counts({"evaluation.ranks": torch.tensor([[-1.0]])}, task) is not None
