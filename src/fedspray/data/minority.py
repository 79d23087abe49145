"""Majority and minority: the one definition.

A client's *majority class* is its most frequent one, ties go to the lowest. Its *minority nodes* are those of every
other class. Training and evaluation count the training nodes of a split, which is all a method may know. The statistics
of a federation (`fedspray inspect`) count all labelled nodes: they describe the data, not a split. A
client without a node to count has no majority class and no minority nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""The majority class of a client without a node to count."""


def majority_class(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Each client's majority class, from its nodes of each class: [..., C] → [...]."""
    if counts.shape[-1] == 0:
        return np.full(counts.shape[:-1], NONE)
    return np.where(counts.sum(axis=-1) > 0, counts.argmax(axis=-1), NONE)


def is_minority(labels: NDArray[np.int64], majority: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Whether nodes of these classes are minority nodes, where this is the majority class."""
    return np.asarray((np.asarray(majority) != NONE) & (labels != majority))
