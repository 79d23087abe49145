from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from toys import ragged_federation

from fedspray import algorithms, backbones
from fedspray.engine import local
from fedspray.engine.local import choose_blocks


def federation_of(*sizes: int) -> Any:
    clients = [SimpleNamespace(graph=SimpleNamespace(num_nodes=size)) for size in sizes]
    return SimpleNamespace(num_clients=len(sizes), clients=clients)


def algorithms_of(*names: str) -> list[Any]:
    return [algorithms.find("fedspray")(backbone=backbones.make(name)) for name in names]


def test_small_clients_share_a_block_and_large_ones_do_not() -> None:
    assert choose_blocks(federation_of(1_000, 2_000, 3_000), algorithms_of(*["gcn"] * 3)) == [[0, 1, 2]]
    assert choose_blocks(federation_of(50_000, 60_000), algorithms_of("gcn", "gcn")) == [[0], [1]]
    equal = choose_blocks(federation_of(*[1_000] * 100), algorithms_of(*["gcn"] * 100))
    assert sorted(k for block in equal for k in block) == list(range(100))
    assert {len(block) for block in equal} == {33, 34}


def test_every_client_is_in_one_block_whatever_the_sizes() -> None:
    sizes = [10, 90_000, 10, 30_000, 30_000, 0, 5]
    blocks = choose_blocks(federation_of(*sizes), algorithms_of(*["gcn"] * 7))
    assert sorted(k for block in blocks for k in block) == list(range(7))
    totals = [sum(sizes[k] for k in block) for block in blocks]
    assert all(total < 1.5 * local.BLOCK_NODES or len(block) <= 2 for total, block in zip(totals, blocks, strict=True))


def test_other_backbones_are_other_blocks() -> None:
    assert choose_blocks(ragged_federation(), algorithms_of("gcn", "sage", "gcn")) == [[0, 2], [1]]
