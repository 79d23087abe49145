"""What links share that look at updates: where a change is counted from."""

from __future__ import annotations

import torch
from torch import Tensor


def counted_from(value: Tensor, received: Tensor | None) -> Tensor:
    """What came down under the same name, or 0."""
    return received if received is not None and received.shape == value.shape else torch.zeros_like(value)
