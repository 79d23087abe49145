from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import awkward_federation, ragged_federation, stack

from fedspray import backbones
from fedspray.backbones.base import LayeredBackbone
from fedspray.data.federation import Task
from fedspray.nn.channels import split_edges
from fedspray.nn.layers import closest_width
from fedspray.nn.tree import part_of
from fedspray.seeds import generator


@pytest.mark.parametrize("backbone", ["gcn", "sage", "gat", "mlp"])
def test_layers_are_those_of_the_backbone(backbone: str) -> None:
    """A backbone of two layers, and two of the layers that networks with channels are built of, with its weights."""
    batch, plain = stack(ragged_federation()), backbones.make(backbone, hidden=8)
    assert isinstance(plain, LayeredBackbone)
    params = plain.init_params(Task(batch.num_features, batch.num_classes), batch, 0, common=False)
    layer = backbones.layer_of(plain, "a test")
    features = batch.rows.features
    assert isinstance(features, torch.Tensor)
    hidden = layer.activate(layer(part_of(params, f"{plain.layer_name}1"), features, batch, batch.rows))
    expected = plain.layer(last=True)(part_of(params, f"{plain.layer_name}2"), hidden, batch, batch.rows)
    assert torch.allclose(plain.logits(params, batch), expected, rtol=0, atol=1e-12)


def test_a_channel_of_all_edges_is_the_batch() -> None:
    for federation in (ragged_federation(), awkward_federation()):
        batch = stack(federation)
        (channel,) = split_edges(batch, torch.zeros(batch.edges.shape[1], dtype=torch.int64), 1)
        for name in ("gcn_adjacency", "mean_adjacency"):
            ours, whole = getattr(channel, name), getattr(batch, name)
            assert torch.allclose(ours.matrix.to_dense(), whole.matrix.to_dense(), rtol=0, atol=1e-12)
            assert torch.equal(ours.transpose.to_dense(), ours.matrix.to_dense().T)
            assert ours.matrix.crow_indices().dtype == ours.matrix.col_indices().dtype == torch.int32
        pairs = {tuple(pair) for pair in channel.edge_index_with_loops.T.tolist()}
        assert pairs == {tuple(pair) for pair in batch.edge_index_with_loops.T.tolist()}


def test_a_channel_of_all_edges_has_their_weights() -> None:
    batch = stack(ragged_federation())
    batch = replace(batch, edge_weights=0.1 + 3 * generator(0, "weights").random((batch.edges.shape[1],)))
    (channel,) = split_edges(batch, torch.zeros(batch.edges.shape[1], dtype=torch.int64), 1)
    for name in ("gcn_adjacency", "mean_adjacency"):
        ours, whole = getattr(channel, name), getattr(batch, name)
        assert torch.allclose(ours.matrix.to_dense(), whole.matrix.to_dense(), rtol=0, atol=1e-12)
        assert torch.equal(ours.transpose.to_dense(), ours.matrix.to_dense().T)
    plain = replace(batch, edge_weights=np.ones(batch.edges.shape[1]))
    assert torch.equal(plain.gcn_adjacency.matrix.values(), stack(ragged_federation()).gcn_adjacency.matrix.values())


def test_every_edge_is_in_exactly_one_channel() -> None:
    batch = stack(ragged_federation())
    types = torch.from_numpy(generator(0, "types").integers(0, 3, size=batch.edges.shape[1]))
    found = []
    for channel in split_edges(batch, types, 3, self_loops=False):
        source, target = channel.edge_index_with_loops
        found += [(u, v) for u, v in zip(source.tolist(), target.tolist(), strict=True) if u < v]
        isolated = channel.degrees == 0
        assert not channel.gcn_adjacency.matrix.to_dense()[isolated].any()
        assert torch.isfinite(channel.gcn_adjacency.matrix.values()).all()
    assert sorted(found) == sorted(map(tuple, batch.edges.T.tolist()))


@pytest.mark.parametrize(
    ("target", "step", "expected"),
    [
        (110, 1, 10),  # 10·11 exactly
        (120, 1, 10),  # 110 is nearer than 132
        (121, 1, 10),  # as near to 110 as to 132: the smaller
        (122, 1, 11),
        (1, 1, 1),  # nothing is smaller than one unit
        (130, 8, 8),  # 72 is nearer than 272
        (200, 8, 16),
    ],
)
def test_the_closest_width(target: int, step: int, expected: int) -> None:
    assert closest_width(lambda width: width * (width + 1), target, step) == expected
