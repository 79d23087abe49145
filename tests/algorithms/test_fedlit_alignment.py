"""FedLit's server: which of a client's link types is which of its own, and what is averaged with what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from play import Play, build, same, take_in
from torch import Tensor
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.fedlit import ClientState, FedLit, ServerState
from fedspray.data.batch import GraphBatch
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message


def renamed(values: Any) -> dict[str, Tensor]:
    """The channels of all clients in another order: in a message or in moments."""
    return {
        name: value[:, [2, 0, 1]] if "channels." in name or name in ("centres", "type_counts") else value
        for name, value in values.items()
    }


@dataclass(frozen=True, kw_only=True)
class Renaming(FedLit):
    """FedLit in which client 0 names its types otherwise in every round, after training."""

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        client, uplink = super().client_update(client, message, batch, seed)
        if batch.client_ids != (0,):
            return client, uplink
        memory = client.optimizer
        return ClientState({}, AdamState(renamed(memory.first), renamed(memory.second), memory.step)), renamed(uplink)


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_matching_undoes_a_permutation_and_moves_the_moments_along(backbone: str) -> None:
    """One client (not the one with most edges, which names them first) names its types otherwise: nothing changes."""
    federation = ragged_federation()
    algorithm, batches = build("fedlit", backbone, hidden=8, link_types=3), [stack(federation, [k]) for k in range(3)]
    plain, other = (Play(each, *batches) for each in (algorithm, Renaming(backbone=algorithm.backbone, link_types=3)))
    for index in range(3):
        plain.round(index)
        other.round(index)
    assert same(plain.server.gnn, other.server.gnn, 1e-10)
    assert torch.allclose(plain.server.centres, other.server.centres, rtol=0, atol=1e-10)
    assert not torch.equal(plain.server.orders[0], other.server.orders[0])
    assert not same(plain.clients[0].optimizer, other.clients[0].optimizer, 1e-10)
    other.algorithm = plain.algorithm  # what the client sends in its own words must be the same again
    plain.round(9)
    other.round(9)
    assert same(plain.uplinks[-1], other.uplinks[-1], 1e-10)
    assert same(plain.clients[0].optimizer, other.clients[0].optimizer, 1e-10)


@pytest.mark.parametrize("backbone", backbones.names())
def test_renaming_types_everywhere_leaves_predictions(backbone: str) -> None:
    game = Play(build("fedlit", backbone, hidden=8, link_types=3), stack(ragged_federation()), rounds=3)
    order, server, logits = torch.tensor([1, 2, 0]), game.server, game.logits()
    gnn = {name: value[order] if name.startswith("channels.") else value for name, value in server.gnn.items()}
    game.server = replace(server, gnn=gnn, centres=server.centres[order])
    assert torch.allclose(logits, game.logits(), rtol=0, atol=1e-10)
    game.server = replace(server, gnn=gnn)
    if backbone != "mlp":  # without messages the types do not reach the logits
        assert not torch.allclose(logits, game.logits())


def test_averages_by_hand() -> None:
    """T = 2, centres in the plane. Client 0: 10 training nodes, both types; client 1: 30, type 0 only, named 1."""
    algorithm = build("fedlit", link_types=2)
    server = ServerState(
        gnn={"project.weight": torch.zeros(1), "channels.conv1.weight": torch.full((2, 1), -1.0)},
        centres=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        orders=torch.zeros(0, 2, dtype=torch.int64),
        cosines=torch.zeros(0, 2),
        type_counts=torch.zeros(0, 2),
    )
    uplink = {
        "gnn.project.weight": torch.tensor([[4.0], [8.0]]),
        "gnn.channels.conv1.weight": torch.tensor([[[1.0], [2.0]], [[30.0], [5.0]]]),
        "centres": torch.tensor([[[2.0, 0.0], [0.0, 4.0]], [[0.0, 1.0], [4.0, 0.0]]]),
        "type_counts": torch.tensor([[6.0, 2.0], [0.0, 7.0]]),
        "num_train": torch.tensor([10.0, 30.0]),
    }
    after = take_in(algorithm, server, uplink, (0, 3))
    assert after.gnn["project.weight"].item() == pytest.approx(7)
    # type 0: (10·1 + 30·5) / 40 = 4; type 1: client 0 alone
    assert after.gnn["channels.conv1.weight"].flatten().tolist() == pytest.approx([4, 2])
    assert after.centres.tolist() == [[3.0, 0.0], [0.0, 4.0]]
    assert after.orders.tolist() == [[0, 1], [0, 1], [0, 1], [1, 0]]  # clients 1 and 2 sent nothing
    assert after.type_counts.tolist() == [[6.0, 2.0], [7.0, 0.0]]
    assert algorithm.broadcast(after, (1, 3, 5))["order"].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert algorithm.diagnostics(after, uplink) == {
        "type_shares": [[0.75, 0.25], [1.0, 0.0]],
        "clients_without_type": [0, 1],
        "empty_types": [],
        "matching_cosine": [1.0, 1.0],
    }
    uniform = take_in(replace(algorithm, branch_weights="uniform"), server, uplink, (0, 3))
    assert uniform.gnn["channels.conv1.weight"].flatten().tolist() == pytest.approx([3, 2])
    nobody = take_in(algorithm, server, {**uplink, "num_train": torch.zeros(2)}, (0, 3))
    assert nobody.gnn["project.weight"].item() == 0
    assert nobody.gnn["channels.conv1.weight"].flatten().tolist() == [-1, -1]


def test_the_first_reference_is_the_client_with_most_edges() -> None:
    game = Play(build("fedlit", hidden=8, link_types=3), stack(ragged_federation()), rounds=1)
    most = int(game.uplinks[0]["type_counts"].sum(dim=1).argmax())
    assert most == 1
    assert game.server.orders[most].tolist() == [0, 1, 2]
    assert game.server.cosines[most].tolist() == pytest.approx([1, 1, 1])
