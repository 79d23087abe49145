from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedspray.report.projection import explore, project, similarity
from fedspray.runs.proxies import ClassProxies


def test_projection_keeps_distances_of_points_in_a_plane() -> None:
    corners = np.array([[0.0, 0.0], [6.0, 0.0], [6.0, 2.0], [0.0, 2.0]])
    tilted = corners @ np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])  # two orthonormal directions in space
    flat, explained = project(tilted)
    assert np.linalg.norm(flat[0] - flat[2]) == pytest.approx(np.sqrt(40))
    assert np.ptp(flat, axis=0) == pytest.approx([6, 2])
    assert explained == pytest.approx([0.9, 0.1])  # variances 9 and 1


def test_cosines_by_hand() -> None:
    vectors = np.array([[1.0, 0.0], [3.0, 3.0], [0.0, 0.0], [0.0, 1.0]])
    matrix = similarity(vectors, np.array([True, True, True, False]))
    assert matrix[0][:2] == pytest.approx([1, np.sqrt(0.5)], abs=5e-4)
    assert matrix[0][2] is None  # a vector of length 0 has no direction
    assert matrix[3] == [None] * 4  # a class that the client does not hold


def proxies() -> ClassProxies:
    own = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [9.0, 9.0]]])
    return ClassProxies(
        clients=torch.tensor([0, 2]),
        sent=torch.tensor([[2.0, 0.0], [0.0, 0.0]]),
        own=own,
        weight=torch.tensor([[0.5, 0.5], [1.0, 0.0]]),
        aligned=torch.tensor([[7 / 3, 0.0], [0.0, 1.0]]),
    )


def test_explorer_shows_the_classes_that_clients_hold() -> None:
    shown = explore(proxies(), [1, 1, 1])
    assert shown is not None
    assert shown["clients"] == [0, 2]
    everything, first, second = shown["planes"]
    assert [(point["client"], point["class"]) for point in everything["own"]] == [(0, 0), (2, 0), (0, 1)]
    assert [point["moved"] for point in first["own"]] == pytest.approx([1, 1])
    assert len(second["own"]) == 1  # client 2 has no node of class 1: its vector is not its own
    assert first["explained"][0] == pytest.approx(1)  # they differ in one coordinate only
    moves = shown["similarity"]["moves"]
    assert moves[1][0] == pytest.approx([1, -1])  # class 0: one went left, one right
    assert moves[2][0] == [pytest.approx(1), None]
    assert moves[0][0] == pytest.approx([1, -1])  # the mean over the classes that have a value
    assert shown["similarity"]["proxies"][1][0] == pytest.approx([1, 1])


def test_of_very_many_clients_the_largest_are_shown() -> None:
    num_clients = 300
    sizes = [2 if client >= 250 else 1 for client in range(num_clients)]
    shares = torch.full((num_clients, 2), 0.5)  # what a client weighs says nothing about its size
    own = torch.randn(num_clients, 2, 4, generator=torch.Generator().manual_seed(0))
    shown = explore(ClassProxies(torch.arange(num_clients), torch.zeros(2, 4), own, shares, own.mean(dim=0)), sizes)
    assert shown is not None
    assert shown["of"] == num_clients
    assert shown["clients"] == [*range(50), *range(250, 300)]  # 100: 6 * 100² numbers fit
    assert len(shown["planes"][1]["own"]) == 100
    assert np.shape(shown["similarity"]["moves"]) == (3, 100, 100)
    assert len(json.dumps(shown)) < 600_000


def test_an_ablation_without_proxies_has_nothing_to_show() -> None:
    zero = torch.zeros(2, 3)
    assert explore(ClassProxies(torch.tensor([0]), zero, zero[None], torch.ones(1, 2), zero), [1]) is None
