"""What a layer of one's own costs: a class for it and a class for its backbone, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from play import Play, build
from torch import Tensor
from torch_geometric.nn import GINConv
from toys import ragged_federation, stack

from fedspray import testing
from fedspray.backbones.base import LayeredBackbone
from fedspray.data.federation import Task
from fedspray.data.rows import NodeRows
from fedspray.nn import ops
from fedspray.nn.layers import Edges, Layer


@dataclass(frozen=True)
class SumLayer(Layer):
    """Σ over a node and its neighbours of H W, plus b."""

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor | None, edges: Edges, rows: NodeRows) -> Tensor:
        moved = ops.transform(rows, inputs, weights["weight"])
        source, target = edges.edge_index_with_loops
        summed = torch.zeros_like(moved).index_add(0, target, moved[source])
        return summed + ops.per_row(weights["bias"], rows)


@dataclass(frozen=True)
class SumGNN(LayeredBackbone):
    """Sums instead of means."""

    def layer(self, *, last: bool = False) -> Layer:
        return SumLayer()


def test_it_equals_pyg() -> None:
    """GIN with ε = 0 and one linear map."""
    batch = stack(ragged_federation(), [1])
    backbone = SumGNN(hidden=8, layers=1)
    params = backbone.init_params(Task(5, 3), batch, seed=0)
    linear = torch.nn.Linear(5, 3).double()
    conv = GINConv(linear)  # which draws the weights once more
    linear.weight.data, linear.bias.data = params["conv1.weight"][0].T, params["conv1.bias"][0]
    assert torch.allclose(backbone.logits(params, batch), conv(batch.rows.features, batch.edge_index))


@pytest.mark.parametrize("name", ["fedavg", "fedspray", "fedlit", "fedstar"])
def test_every_algorithm_can_use_it(name: str) -> None:
    """Also those that build a network of their own of its layers; stacked as alone, with sparse features."""
    algorithm = replace(build(name), backbone=SumGNN(hidden=8, init="glorot"))
    testing.stacked_as_alone(algorithm)
    game = Play(algorithm, stack(ragged_federation(sparse=True)), rounds=2)
    other = Play(build(name, hidden=8, init="glorot"), stack(ragged_federation(sparse=True)), rounds=2)
    assert not torch.allclose(game.logits(), other.logits(), rtol=0, atol=1e-3)
