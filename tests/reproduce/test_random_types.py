"""The control for FedLit in `experiments/`: everything as there, but types that say nothing."""

from __future__ import annotations

from typing import Any

import torch
from play import Play, build, same
from toys import ragged_federation, stack

CONTROL = "experiments.random_types:RandomTypes"


def played(name: str, **values: Any) -> Play:
    return Play(build(name, hidden=8, **values), stack(ragged_federation()), rounds=3)


def test_with_one_type_there_is_nothing_to_draw() -> None:
    control, fedlit = played(CONTROL, link_types=1), played("fedlit", link_types=1)
    assert same(control.server.gnn, fedlit.server.gnn)


def test_types_are_drawn_once_and_matched_with_themselves() -> None:
    play = played(CONTROL)
    server, batch, algorithm = play.server, play.batch, play.algorithm
    assert server.orders.tolist() == [[0, 1, 2, 3]] * 3
    assert torch.equal(server.type_counts.sum(dim=0).sum(), torch.tensor(float(batch.edges.shape[1])))
    centres = server.centres.expand(batch.num_clients, -1, -1)
    types = algorithm.assign_types(torch.zeros(batch.num_nodes, 8), centres, batch)
    found, _, counts = algorithm.find_types(torch.ones(batch.num_nodes, 8), centres, batch, seed=5)
    assert torch.equal(types, found)
    assert torch.equal(counts, server.type_counts)
    assert len(types.unique()) == 4
