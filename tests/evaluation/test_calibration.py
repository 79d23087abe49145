"""Temperatures: by hand, and against a model whose confidence is known to be wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedspray.evaluation.calibration import expected_error, fit_temperature, loss_at, scaled


def test_the_temperature_makes_confidence_the_share_of_right_ones() -> None:
    """Every node says class 0 with logits (4, 0), and three of four are: softmax(4/T, 0) = (3/4, 1/4), T = 4/ln 3."""
    logits, labels = np.tile([4.0, 0.0], (4, 1)), np.array([0, 0, 0, 1])
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(4 / math.log(3), rel=1e-4)
    np.testing.assert_allclose(scaled(logits, found)[:, 0], 0.75, atol=1e-4)
    assert loss_at(found, logits, labels) < loss_at(1.0, logits, labels)


def test_a_model_that_is_always_right_gets_a_finite_temperature() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 2.0]])
    found = fit_temperature(logits, np.array([0, 1]))
    assert 0 < found < 0.5
    assert (scaled(logits, found).argmax(axis=1) == [0, 1]).all()


def test_logits_drawn_ten_times_too_large_are_scaled_back() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(20_000, 3))
    labels = (scaled(true, 1.0).cumsum(axis=1) > rng.random((20_000, 1))).argmax(axis=1)
    assert fit_temperature(10 * true, labels) == pytest.approx(10, rel=0.05)


def test_expected_error_by_hand() -> None:
    """Two steps of confidence: (0.95, 0.95) with one right is off by 0.9, (0.55) and right by 0.45."""
    found = expected_error(np.array([0.95, 0.95, 0.55]), np.array([True, False, True]))
    assert found == pytest.approx((0.9 + 0.45) / 3)
    assert expected_error(np.zeros(0), np.zeros(0, bool)) is None
