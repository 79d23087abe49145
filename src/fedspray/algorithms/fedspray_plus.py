"""FedSpray+: FedSpray whose predictions also listen to the shared feature head.

The feature head q is trained and shared anyway, and the paper throws it away at prediction time. Here a
prediction is the renormalised mix (1-w) log ŷ + w log q. The weight w is chosen on validation data: each
client counts its correct validation predictions for every w of a fixed list, the counts are added up over
clients and (fading) over rounds, and the best w goes down with the next message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspray.algorithms.fedspray import FedSpray
from fedspray.backbones.base import setting


@dataclass(frozen=True, kw_only=True)
class FedSprayPlus(FedSpray):
    """FedSpray with blended predictions."""

    summary: ClassVar[str] = "FedSpray, predictions blended with the shared feature head (weight by validation)"
    citation: ClassVar[str] = "this project, on Fu et al., KDD 2024"

    blend: float | str = setting("auto", "weight of the feature head in predictions: a number, or auto (by validation)")
