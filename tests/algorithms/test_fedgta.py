from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms._personal import ServerState
from fedspray.algorithms.fedgta import FedGTA
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Split, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError


def test_moments_and_confidence_by_hand() -> None:
    """Two nodes and an edge, Â = 1/2 everywhere; a is trained on (class 0), the model says (1/2, 1/2) of b.

    Y⁰: a = (1, 0), b = (1/2, 1/2).  α = 1/2.
    Step 1: Â Y⁰ = (3/4, 1/4);  a = ½(3/4, 1/4) + ½(1, 0) + (1, 0) = (15/8, 1/8);  b = (5/8, 3/8)
    Step 2: Â Y = (5/4, 1/4);   b = ½(5/4, 1/4) + ½(1/2, 1/2) = (7/8, 3/8)
    P: a = (1, 0), b = (p, 1-p) with p = σ(7/8 - 3/8).  Q with T = 2: b = (q, 1-q), q = σ(1/4).  Degrees with loops: 2.
    """
    graph = Graph.from_arrays(np.ones((2, 1)), np.array([[0], [1]]), [0, 1], num_classes=2)
    first, nobody = np.array([True, False]), np.zeros(2, dtype=bool)
    client = Client("A", graph, Split(first, ~first, nobody), np.arange(2))
    batch = GraphBatch.from_clients([client], [0], dtype=torch.float64)
    algorithm = FedGTA(
        backbone=backbones.make("sgc", lr=1e-12),
        local_epochs=1,
        propagation_steps=2,
        temperature=2.0,
        num_moments=2,
        moments="hybrid",
    )
    zeros = {"gnn.linear.weight": torch.zeros(1, 1, 2).double(), "gnn.linear.bias": torch.zeros(1, 2).double()}
    state = algorithm.init_clients(Task(1, 2), batch, 0)
    _, uplink = algorithm.client_update(state, zeros, batch, 0)
    p, q = 1 / (1 + math.exp(-1 / 2)), 1 / (1 + math.exp(-1 / 4))
    variance = ((1 - p) / 2) ** 2
    moments = [(1 + p) / 2, (1 - p) / 2, (1 + p**2) / 2, (1 - p) ** 2 / 2, 0, 0, variance, variance]
    assert uplink["moments"].tolist()[0] == pytest.approx(moments, abs=1e-9)
    confidence = 2 * 2 / math.e + 2 * (2 / math.e + q * math.log(q) + (1 - q) * math.log(1 - q))
    assert uplink["confidence"].item() == pytest.approx(confidence, abs=1e-9)


def test_similar_clients_are_averaged_by_confidence() -> None:
    """cos(0, 1) = 0.8 > 0.65, cos(1, 2) = 0.6 < 0.65, cos(0, 2) = 0: not transitive, client 2 stays alone."""
    algorithm = FedGTA(backbone=backbones.make("sgc"))
    server = ServerState({"w": torch.zeros(1)}, {"w": torch.zeros(0, 1)})
    uplink = {
        "gnn.w": torch.tensor([[1.0], [5.0], [9.0]]),
        "moments": torch.tensor([[1.0, 0.0], [8.0, 6.0], [0.0, 0.1]]),
        "confidence": torch.tensor([3.0, 1.0, 7.0]),
    }
    assert algorithm.server_update(server, uplink, (0, 1, 2)).gnn["w"].flatten().tolist() == [2, 2, 9]
    assert algorithm.diagnostics(server, uplink) == {
        "confidence": [3, 1, 7],
        "shares": [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]],
    }


def test_more_moments_leave_the_first_ones_as_they_are() -> None:
    batch = stack(ragged_federation())
    few, many = (Play(build("fedgta", num_moments=n), batch, rounds=1).uplinks[0]["moments"] for n in (2, 5))
    assert few.shape == (3, 2 * 3)
    assert torch.equal(few, many[:, :6])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"moments": "cubic"}, "moments is 'cubic'"),
        ({"propagation_share": 7.0}, "propagation_share is 7.0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        (
            {"num_moments": 0},
            "num_moments is 0, but must be at least 1",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedGTA(backbone=backbones.make("gcn"), **settings)
    assert str(caught.value).startswith(sentence)
