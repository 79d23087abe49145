from __future__ import annotations

import pytest
import torch

from fedspray.engine.process import flush_denormals


def tiny() -> float:
    return float(torch.tensor([1e-40]).mul(1))


@pytest.mark.parametrize("before", [False, True])
def test_flush_denormals_inside_and_as_before_outside(before: bool) -> None:
    torch.set_flush_denormal(before)
    try:
        with flush_denormals():
            assert tiny() == 0
        assert (tiny() == 0) == before
        with pytest.raises(KeyError), flush_denormals():
            raise KeyError
        assert (tiny() == 0) == before
    finally:
        torch.set_flush_denormal(False)
