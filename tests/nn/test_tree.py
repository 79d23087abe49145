from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from toys import ragged_federation, stack

from fedspray.nn import tree
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Params, training_only


@dataclass(frozen=True)
class State:
    weights: Params
    proxies: Tensor = training_only(per_train_node=True)
    optimizer: AdamState = training_only(per_train_node=True)


def example() -> tuple[State, list[int]]:
    batch = stack(ragged_federation())
    rows = len(batch.train)
    proxies = torch.arange(rows * 2, dtype=torch.float64).view(rows, 2)
    optimizer = AdamState({"node": proxies + 1}, {"node": proxies + 2}, torch.tensor([3.0, 3.0, 3.0]))
    return State({"w": torch.arange(6.0).view(3, 2)}, proxies, optimizer), list(batch.train_rows.sizes)


def test_flatten_names_every_tensor_and_restore_puts_them_back() -> None:
    state, _ = example()
    flat = tree.flatten(state)
    assert list(flat) == ["weights.w", "proxies", "optimizer.first.node", "optimizer.second.node", "optimizer.step"]
    again = tree.restore(state, flat)
    assert all(torch.equal(a, b) for a, b in zip(tree.flatten(again).values(), flat.values(), strict=True))


def test_split_cuts_each_tensor_along_its_own_axis_and_loses_nothing() -> None:
    state, sizes = example()
    parts = tree.split(state, stack(ragged_federation()))
    assert [len(part.proxies) for part in parts] == sizes
    assert [part.optimizer.step.tolist() for part in parts] == [[3.0]] * 3
    assert torch.equal(parts[1].weights["w"], torch.tensor([[2.0, 3.0]]))
    flats = [tree.flatten(part) for part in parts]
    for name, value in tree.flatten(state).items():
        assert torch.equal(torch.cat([flat[name] for flat in flats]), value)


def test_a_snapshot_for_prediction_leaves_out_what_only_training_needs() -> None:
    state, _ = example()
    kept = tree.for_prediction(state)
    assert list(tree.flatten(kept)) == ["weights.w"]
    restored = tree.restore(state, tree.flatten(kept))
    assert restored.proxies is None
    assert restored.optimizer is None


def test_bytes_count_every_client_even_of_an_expanded_view() -> None:
    message = {"w": torch.zeros(3).expand(4, 3), "n": torch.zeros(4, dtype=torch.int64)}
    assert tree.num_bytes(message) == 4 * 3 * 4 + 4 * 8


def test_parts_of_a_message() -> None:
    message = tree.prefixed("gnn", {"a.b": torch.ones(1)}) | {"gnnx.c": torch.ones(1)}
    assert list(tree.part_of(message, "gnn")) == ["a.b"]
