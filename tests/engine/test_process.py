from __future__ import annotations

import pytest
import torch

from fedspray.engine.process import tiny_numbers_are_zero


def tiny() -> float:
    return float(torch.tensor([1e-40]).mul(1))


@pytest.mark.parametrize("before", [False, True])
def test_tiny_numbers_are_zero_inside_and_as_before_outside(before: bool) -> None:
    torch.set_flush_denormal(before)
    try:
        with tiny_numbers_are_zero():
            assert tiny() == 0
        assert (tiny() == 0) == before
        with pytest.raises(KeyError), tiny_numbers_are_zero():
            raise KeyError
        assert (tiny() == 0) == before
    finally:
        torch.set_flush_denormal(False)
