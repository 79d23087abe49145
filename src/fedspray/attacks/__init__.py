"""Attacks: what can be inferred from what clients send, one file each; `find` gives one by its name."""

from __future__ import annotations

from fedspray import plugins
from fedspray.attacks.base import Attack


def find(name: str) -> type[Attack]:
    """The class of the attack called ``name``, or ``package.module:Class``."""
    return plugins.load_class(__name__, "attack", name, Attack)


def names() -> list[str]:
    """The built-in attacks."""
    return plugins.names(__name__)
