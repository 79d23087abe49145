from __future__ import annotations

import pytest
import torch

from fedspray.nn import edges


@pytest.mark.parametrize("representation", edges.REPRESENTATIONS)
def test_types_do_not_depend_on_direction_or_length(representation: str) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 4, generator=draw)
    pairs = torch.stack([torch.randint(0, 20, (50,), generator=draw), torch.randint(0, 20, (50,), generator=draw)])
    centres = torch.randn(3, 8, generator=draw)
    vectors = edges.edge_vectors(hidden, pairs, representation)
    assert torch.equal(vectors, edges.edge_vectors(hidden, pairs.flip(0), representation))
    types = edges.assign(vectors, centres)
    assert torch.equal(types, edges.assign(8 * vectors, centres))
    assert torch.equal(types, edges.assign(vectors, centres * torch.tensor([[1.0], [4.0], [0.5]])))
    assert set(types.tolist()) == {0, 1, 2}


def test_symmetric_vectors_do_not_depend_on_the_order_of_nodes() -> None:
    hidden, pairs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1], [2, 5]])
    order = torch.tensor([5, 3, 4, 0, 2, 1])
    renamed = torch.empty_like(hidden)
    renamed[order] = hidden
    assert torch.equal(edges.edge_vectors(hidden, pairs, "sym"), edges.edge_vectors(renamed, order[pairs], "sym"))


def test_means_and_empty_types_by_hand() -> None:
    vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    old = torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]])
    centres, counts = edges.mean_by_type(vectors, torch.tensor([0, 0, 2]), old)
    assert centres.tolist() == [[2.0, 0.0], [8.0, 8.0], [0.0, 5.0]]
    assert counts.tolist() == [2.0, 0.0, 1.0]


def test_first_centres() -> None:
    draw = torch.Generator().manual_seed(0)
    planted = torch.tensor([[10.0, 0.0], [0.0, 10.0], [-10.0, 0.0]])
    vectors = planted[torch.randint(0, 3, (90,), generator=draw)] + 0.1 * torch.randn(90, 2, generator=draw)
    for seed in range(5):
        found = edges.first_centres(vectors, 3, seed, 0)
        _, cosines = edges.match(found, planted)
        assert cosines.min() > 0.99
    few = edges.first_centres(vectors[:1].expand(4, -1), 3, 0, 0)  # one different edge, three types
    assert torch.isfinite(few).all()
    assert (few - vectors[0]).abs().max() < 1e-4
    assert not edges.first_centres(vectors[:0], 3, 0, 0).any()


def test_matching_is_one_to_one_and_the_best_of_all() -> None:
    """The largest entry first would pair (0, 0) and leave cos -1 for the rest; together 0.8 + 0.6 is more."""
    reference = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    centres = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    order, cosines = edges.match(centres, reference)
    assert order.tolist() == [1, 0]  # 0 + 0.8 beats 1 - 0.6
    assert cosines.tolist() == pytest.approx([0.0, 0.8])
