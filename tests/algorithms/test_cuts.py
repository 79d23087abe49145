from __future__ import annotations

import pytest
import torch
from play import build

from fedspray.algorithms._cuts import cosines, linkage_cut, minimum_cut, similarity_gap


def test_cosines_and_an_update_of_zero() -> None:
    updates = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 1.0], [0.0, 0.0]])
    root = 2**-0.5
    expected = [[1, 0, -root, 0], [0, 1, root, 0], [-root, root, 1, 0], [0, 0, 0, 0]]
    assert torch.allclose(cosines(updates), torch.tensor(expected))


def test_the_minimum_cut_of_a_small_graph() -> None:
    """Two triangles with strong edges, joined by one weak edge (0.5); absent edges weigh 0."""
    weights = torch.zeros(6, 6)
    for i, j in [(0, 2), (2, 4), (0, 4), (1, 3), (3, 5), (1, 5)]:
        weights[i, j] = weights[j, i] = 2.0
    weights[4, 5] = weights[5, 4] = 0.5
    part = minimum_cut(weights)
    assert sorted([part.nonzero()[:, 0].tolist(), (~part).nonzero()[:, 0].tolist()]) == [[0, 2, 4], [1, 3, 5]]


def test_unrelated_clients_are_tied_together_by_cos_plus_1_only() -> None:
    """Two pairs that agree inside (cos 0.5) and not across (cos 0): with cos+1 a single client is the cheapest cut."""
    similarities = torch.eye(4) + 0.5 * torch.eye(4)[[1, 0, 3, 2]]
    weights = {cut: build("gcfl", cut=cut)._cost(similarities) for cut in ("relu", "cos+1")}
    sizes = {cut: int(minimum_cut(weight).sum()) for cut, weight in weights.items()}
    assert sizes["relu"] == 2
    assert sizes["cos+1"] in (1, 3)
    assert linkage_cut(similarities).tolist() == [True, True, False, False]


def test_linkage_cuts_in_two_even_where_all_are_equally_far_apart() -> None:
    part = linkage_cut(torch.eye(3))
    assert 0 < int(part.sum()) < 3
    assert similarity_gap(torch.eye(3), part) == 0


def test_rounding_below_minus_1_is_not_a_negative_weight() -> None:
    weights = build("gcfl", cut="cos+1")._cost(torch.tensor([[1.0, -1.0 - 1e-7], [-1.0 - 1e-7, 1.0]]))
    assert weights.min() == 0


def test_the_gap() -> None:
    s = torch.tensor([[1.0, 0.9, 0.1, 0.2], [0.9, 1.0, 0.3, 0.4], [0.1, 0.3, 1.0, 0.5], [0.2, 0.4, 0.5, 1.0]])
    pairs = torch.tensor([True, True, False, False])
    assert similarity_gap(s, pairs) == pytest.approx((0.9 + 0.5) / 2 - (0.1 + 0.2 + 0.3 + 0.4) / 4)
    single = torch.tensor([True, False, False, False])
    assert similarity_gap(s, single) == pytest.approx((0.3 + 0.4 + 0.5) / 3 - (0.9 + 0.1 + 0.2) / 3)
    assert similarity_gap(s[:2, :2], torch.tensor([True, False])) == pytest.approx(1 - 0.9)
