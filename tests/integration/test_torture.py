"""Malformed inputs, for as long as a test may take; ``make torture`` plays ten thousand."""

from __future__ import annotations

import time

import pytest
from torture import torture


@pytest.mark.nightly
def test_malformed_inputs_are_refused_in_a_sentence() -> None:
    """Others on every day, so that the days add up."""
    assert torture(10_000, 25, first=int(time.time() // 86_400) * 10_000, apart_every=50) == []
