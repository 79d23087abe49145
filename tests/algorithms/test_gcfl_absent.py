"""GCFL with clients that do not take part in every round."""

from __future__ import annotations

from dataclasses import replace

import torch
from algorithms.clusters import clusters, directions, linear, step
from play import Play, build
from toys import permuted_federation, stack

from fedspray.seeds import generator


def test_absent_clients_join_the_part_that_they_resemble() -> None:
    """Clients 6 and 7 were away when the cluster was cut; 8 and 9 were never heard of before."""
    algorithm, server = linear()
    server = step(algorithm, server, [6, 7], directions([1, -1]))
    server = step(algorithm, server, range(6), directions([1, 1, 1, 1, -1, -1]))
    assert clusters(algorithm, server) == [[0, 1, 2, 3, 6, 7], [4, 5]]
    assert torch.equal(  # until then they have the model of the larger part
        algorithm.broadcast(server, [0, 7, 9])["gnn.linear.weight"], server.gnn["linear.weight"][[0, 0, 0]]
    )
    waiting = step(algorithm, server, [0, 7], directions([1, -1]))  # nobody of the other part to compare with
    assert clusters(algorithm, waiting)[1] == [4, 5]
    ids = [0, 4, 6, 7, 8, 9]
    after = step(algorithm, waiting, ids, directions([1, -1, 1, -1, 1, -1], noise=0.05))
    assert clusters(algorithm, after) == [[0, 1, 2, 3, 6, 8], [4, 5, 7, 9]]
    once_more = step(algorithm, after, ids, directions([1, 1, 1, 1, 1, 1]))  # settled: they do not wander
    assert clusters(algorithm, once_more) == clusters(algorithm, after)


def test_a_client_that_is_moved_brings_its_update_not_its_model() -> None:
    algorithm, server = linear(min_members=99)
    away = step(algorithm, server, range(4), directions([1, 1, 1, 1]))
    apart = step(replace(algorithm, min_members=3), away, range(4), directions([1, 1, -1, -1]))
    assert clusters(algorithm, apart) == [[0, 1], [2, 3]]
    updates = directions([1, -1, -1], noise=0.05)
    after = step(algorithm, apart, [0, 2, 4], updates)
    assert clusters(algorithm, after)[1] == [2, 3, 4]
    moved = torch.cat([(after.gnn[name][1] - apart.gnn[name][1]).flatten() for name in apart.gnn])
    assert torch.allclose(moved, updates[1:].mean(dim=0), rtol=0, atol=1e-12)


def test_two_thirds_of_the_clients_in_each_round() -> None:
    """Whoever they are, all clients end up with their own kind."""
    federation = permuted_federation()
    game = Play(build("gcfl", hidden=8, warmup=10), *(stack(federation, [k]) for k in range(6)))
    for index in range(60):
        game.round(index, generator(3, "half", index).choice(6, size=4, replace=False).tolist())
    found = game.record()["clusters"]
    assert len(found) > 1
    assert not any(min(members) < 3 <= max(members) for members in found)
