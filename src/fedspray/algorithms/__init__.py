"""Algorithms: one file each."""

from __future__ import annotations

from typing import Any

from fedspray import plugins
from fedspray.algorithms.base import Algorithm

VARIANTS = {
    "fedspray-plus": "fedspray:FedSprayPlus",
    "fedspray-no-proxies": "fedspray:FedSprayNoProxies",
    "fedspray2-shared": "fedspray2:FedSpray2Shared",
}
"""Names for variants of an algorithm: at home in that algorithm's file."""


def find(name: str) -> type[Algorithm[Any, Any]]:
    """The class of the algorithm called ``name``, or ``package.module:Class``."""
    return plugins.load_class(__name__, "algorithm", name, Algorithm)


def names() -> list[str]:
    """The built-in algorithms."""
    return plugins.names(__name__)
