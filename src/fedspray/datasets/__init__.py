"""Public data sets, and the generator `banks`.

The folder is the registry: every module here with a tuple ``CARDS`` is a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedspray import plugins
from fedspray.datasets._files import DataFolders
from fedspray.datasets.base import DatasetCard
from fedspray.errors import unknown

if TYPE_CHECKING:
    from fedspray.data.graph import Graph

__all__ = ["DataFolders", "DatasetCard", "catalogue", "load", "names"]

GENERATED = "banks"
"""The data set that is drawn, not read: it comes as separate clients, see `fedspray.datasets.banks`."""


def catalogue() -> dict[str, DatasetCard]:
    """Every data set that is one graph, by name."""
    modules = (plugins.load_module(__name__, "data set", name) for name in plugins.names(__name__))
    cards = [card for module in modules for card in getattr(module, "CARDS", ())]
    return {card.name: card for card in sorted(cards, key=lambda card: card.name)}


def names() -> list[str]:
    """Every name that ``--dataset`` takes."""
    return sorted([*catalogue(), GENERATED])


def load(name: str) -> Graph:
    """Reads one data set, downloading it if it is not on this machine, and checks its published counts."""
    cards = catalogue()
    if name not in cards:
        raise unknown("data set", name, cards)
    return cards[name].load()
