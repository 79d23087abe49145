from __future__ import annotations

import numpy as np

from fedspray.data.minority import is_minority, majority_class


def test_the_most_frequent_class_and_on_a_tie_the_lowest() -> None:
    assert majority_class(np.array([[1, 5, 5], [0, 0, 2], [0, 0, 0]])).tolist() == [1, 2, -1]
    assert majority_class(np.array([3.0, 4.0])).tolist() == 1
    assert majority_class(np.zeros((2, 0))).tolist() == [-1, -1]


def test_minority_nodes_are_all_others_and_nobody_is_one_without_a_majority() -> None:
    assert is_minority(np.array([0, 1, 2]), 1).tolist() == [True, False, True]
    assert is_minority(np.array([0, 1, 2]), -1).tolist() == [False, False, False]
    assert is_minority(np.array([[0, 1]]), np.array([[0], [-1]])).tolist() == [[False, True], [False, False]]
