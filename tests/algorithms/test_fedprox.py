from __future__ import annotations

import pytest
import torch
from algorithms.test_ditto import play
from toys import ragged_federation

from fedspray import backbones
from fedspray.algorithms.fedprox import FedProx, squared_distance
from fedspray.errors import InputError


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_no_proximal_term_is_fedavg_bit_for_bit(backbone: str) -> None:
    federation = ragged_federation()
    prox = play("fedprox", federation, backbone, proximal_weight=0.0)
    average = play("fedavg", federation, backbone)
    assert all(torch.equal(prox.server.gnn[name], value) for name, value in average.server.gnn.items())


def test_the_gradient_is_mu_times_the_gap() -> None:
    own = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)}
    centre = {"a": torch.tensor([0.5, 4.0])}
    distances = squared_distance(own, centre)
    assert distances.tolist() == [0.25 + 4.0, 6.25 + 0.0]
    (0.1 / 2 * distances).sum().backward()  # type: ignore[no-untyped-call]
    assert own["a"].grad is not None
    assert torch.allclose(own["a"].grad, 0.1 * (own["a"].detach() - centre["a"]))


def test_rounding_is_not_pulled_back() -> None:
    own = {"a": torch.full((1, 3), 1e-9, dtype=torch.float64, requires_grad=True)}
    squared_distance(own, {"a": torch.zeros(3, dtype=torch.float64)}).sum().backward()  # type: ignore[no-untyped-call]
    assert own["a"].grad is not None
    assert not own["a"].grad.any()


def test_clients_stay_nearer_the_stronger_the_pull() -> None:
    """Clients with unlike data and many local steps, where FedAvg's drift apart."""
    distances = []
    for weight in (0.0, 1.0, 10.0):
        game = play("fedprox", ragged_federation(), local_epochs=30, proximal_weight=weight)
        distances.append(sum(game.algorithm.diagnostics(game.server, game.uplinks[-1])["distance"]))
    assert distances[0] > 1.2 * distances[1]
    assert distances[1] > 1.5 * distances[2]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="proximal_weight is -1, but must be at least 0"):
        FedProx(backbone=backbones.make("gcn"), proximal_weight=-1)
