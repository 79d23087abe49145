"""Calibration: temperatures that fit a model's confidence to its accuracy on validation nodes.

Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017: softmax(logits / T) with one
number T. It changes confidences and never a decision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedspray.evaluation.counting import CALIBRATION_BINS

_RANGE = (-3.0, 3.0)
"""Of log10 T, so that a model that is right on every validation node gets a finite one."""


def fit_temperature(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The T with the smallest mean cross-entropy of logits [n, C] / T; n is at least 1."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda power: loss_at(10**power, logits, labels), bounds=_RANGE, method="bounded")
    return float(10**found.x)


def loss_at(temperature: float, logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The mean cross-entropy with this temperature."""
    return float(-np.log(np.maximum(scaled(logits, temperature)[np.arange(len(labels)), labels], 1e-300)).mean())


def scaled(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """softmax(logits / T): [n, C]."""
    powers = logits / temperature
    exponentials = np.exp(powers - powers.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def expected_error(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> float | None:
    """The mean distance of confidence and accuracy, over equal steps of confidence; None without a node."""
    if not len(confidence):
        return None
    step = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return float(np.abs(np.bincount(step, weights=confidence - correct)).sum() / len(confidence))
