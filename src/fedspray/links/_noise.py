"""What links that add noise share: where a change is counted from, and where noise is drawn from."""

from __future__ import annotations

import torch
from torch import Tensor

from fedspray.links.base import Trip


def counted_from(value: Tensor, received: Tensor | None) -> Tensor:
    """What came down under the same name, or 0."""
    return received if received is not None and received.shape == value.shape else torch.zeros_like(value)


def noise_seed(trip: Trip) -> int:
    """What noise is drawn from: between organisations a secret of the client, since all know the run's seed."""
    return trip.seed if trip.secret is None else trip.secret
