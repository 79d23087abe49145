from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toys import fast, ragged_federation

from fedspray import algorithms, backbones
from fedspray.engine import local
from fedspray.engine.local import LocalEngine, choose_blocks
from fedspray.engine.rounds import run_rounds, start
from fedspray.experiment import RoundSettings
from fedspray.federate import build_federation


def federation_of(*sizes: int) -> Any:
    clients = [SimpleNamespace(graph=SimpleNamespace(num_nodes=size, is_sparse=False)) for size in sizes]
    return SimpleNamespace(num_clients=len(sizes), clients=clients)


def algorithms_of(*names: str) -> list[Any]:
    return [algorithms.find("fedspray")(backbone=backbones.make(name)) for name in names]


def test_small_clients_share_a_block_and_large_ones_do_not() -> None:
    assert choose_blocks(federation_of(1_000, 2_000, 3_000), algorithms_of(*["gcn"] * 3)) == [[0, 1, 2]]
    assert choose_blocks(federation_of(50_000, 60_000), algorithms_of("gcn", "gcn")) == [[0], [1]]
    equal = choose_blocks(federation_of(*[1_000] * 100), algorithms_of(*["gcn"] * 100))
    assert sorted(k for block in equal for k in block) == list(range(100))
    assert {len(block) for block in equal} == {33, 34}


def test_threads_get_a_block_each_if_it_is_worth_it() -> None:
    seven, gcn = federation_of(*[5_000] * 7), algorithms_of(*["gcn"] * 7)
    assert choose_blocks(seven, gcn) == [[0, 1, 2, 3, 4, 5, 6]]
    assert choose_blocks(seven, gcn, at_once=2) == [[0, 1, 2], [3, 4, 5, 6]]
    assert len(choose_blocks(seven, gcn, at_once=8)) == 2  # of 15,000 nodes or more
    assert choose_blocks(federation_of(10_000, 10_000), gcn, at_once=2) == [[0, 1]]
    large = choose_blocks(federation_of(*[1_000] * 100), algorithms_of(*["gcn"] * 100), at_once=2)
    assert [len(block) for block in large] == [25] * 4  # three would leave a thread without work


@pytest.mark.parametrize("name", fast(["fedspray", "fedavg", "fedlit"], "fedspray"))
def test_blocks_trained_at_the_same_time_have_the_same_bits(name: str) -> None:
    def train(threads: int) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
        federation = build_federation("banks", clients=6, nodes=3_000)
        algorithm = algorithms.find(name)(backbone=backbones.make("gcn"))
        engine = LocalEngine(federation, [algorithm] * 6, 0, blocks=[[0, 1], [2], [3, 4, 5]], threads=threads)
        records: list[dict[str, Any]] = []
        begin = start(algorithm, federation.task, 0, torch.float32)
        run_rounds(
            algorithm,
            engine,
            RoundSettings(rounds=3),
            0,
            begin,
            on_record=records.append,
            on_round=lambda _: None,
        )
        return records, engine.tensors(3)

    try:
        (one, first), (several, second) = train(1), train(3)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
    for mine, other in zip(one, several, strict=True):
        for part in ("train", "val", "test"):
            assert mine[part] == other[part]
    assert all(first[key].equal(second[key]) for key in first | second)


def test_every_client_is_in_one_block_whatever_the_sizes() -> None:
    sizes = [10, 90_000, 10, 30_000, 30_000, 0, 5]
    blocks = choose_blocks(federation_of(*sizes), algorithms_of(*["gcn"] * 7))
    assert sorted(k for block in blocks for k in block) == list(range(7))
    totals = [sum(sizes[k] for k in block) for block in blocks]
    assert all(total < 1.5 * local.BLOCK_NODES or len(block) <= 2 for total, block in zip(totals, blocks, strict=True))


def test_other_backbones_are_other_blocks() -> None:
    assert choose_blocks(ragged_federation(), algorithms_of("gcn", "sage", "gcn")) == [[0, 2], [1]]


@pytest.mark.parametrize("name", fast(algorithms.names(), "fedspray", "fedspray2", "fedavg"))
def test_dense_and_sparse_clients_are_other_blocks_and_train_together(name: str) -> None:
    dense, sparse = ragged_federation(), ragged_federation(sparse=True)
    mixed = replace(dense, clients=(dense.clients[0], sparse.clients[1], dense.clients[2]))
    algorithm = algorithms.find(name)(backbone=backbones.make("gcn", hidden=8))
    losses = []
    for federation, blocks in ((dense, [[0, 1, 2]]), (mixed, [[0, 2], [1]])):
        engine = LocalEngine(federation, [algorithm] * 3, 0, dtype=torch.float64)
        assert engine.blocks == blocks
        records: list[dict[str, Any]] = []
        run_rounds(
            algorithm,
            engine,
            RoundSettings(rounds=2),
            0,
            start(algorithm, federation.task, 0, torch.float64),
            on_record=records.append,
            on_round=lambda _: None,
        )
        losses.append([record["clients"][str(k)]["val"]["loss"] for record in records for k in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
