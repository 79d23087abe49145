"""FedSpray without structure proxies (S = 0): the paper's ablation, its Table 3.

All class and node proxies are 0 and stay 0; everything else is FedSpray.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspray.algorithms.fedspray import FedSpray
from fedspray.backbones.base import setting


@dataclass(frozen=True, kw_only=True)
class FedSprayNoProxies(FedSpray):
    """The ablation of FedSpray."""

    summary: ClassVar[str] = "FedSpray with all structure proxies 0: what the proxies are worth"

    use_proxies: bool = setting(False, "False: all class and node proxies are 0 and untrained (the ablation)")
