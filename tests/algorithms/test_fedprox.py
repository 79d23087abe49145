from __future__ import annotations

import pytest
from play import play, same
from toys import ragged_federation

from fedspray import backbones
from fedspray.algorithms.fedprox import FedProx
from fedspray.errors import InputError


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_no_proximal_term_is_fedavg_bit_for_bit(backbone: str) -> None:
    federation = ragged_federation()
    prox = play("fedprox", federation, backbone, proximal_weight=0.0)
    average = play("fedavg", federation, backbone)
    assert same(prox.server, average.server)


def test_clients_stay_nearer_the_stronger_the_pull() -> None:
    """Clients with unlike data and many local steps, where FedAvg's drift apart."""
    distances = []
    for weight in (0.0, 1.0, 10.0):
        game = play("fedprox", ragged_federation(), local_epochs=30, proximal_weight=weight)
        distances.append(sum(game.record()["distance"]))
    assert distances[0] > 1.2 * distances[1]
    assert distances[1] > 1.5 * distances[2]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="proximal_weight is -1, but must be at least 0"):
        FedProx(backbone=backbones.make("gcn"), proximal_weight=-1)
