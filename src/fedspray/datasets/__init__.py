"""Public data sets, and the generator `banks`.

The folder is the registry: every module here with a tuple ``CARDS`` is a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedspray import plugins
from fedspray.datasets._files import DataFolders
from fedspray.datasets.base import ClientGraphs, DatasetCard, FederationCard
from fedspray.errors import InputError, unknown

if TYPE_CHECKING:
    from fedspray.data.graph import Graph

__all__ = ["DataFolders", "DatasetCard", "FederationCard", "catalogue", "generators", "load", "names"]

DRAWN = ("banks",)
"""Modules of data sets that are drawn from settings. They import NumPy inside functions to keep ``--help`` fast."""


def catalogue() -> dict[str, DatasetCard | FederationCard]:
    """Every data set, by name."""
    modules = (plugins.load_module(__name__, "data set", name) for name in plugins.names(__name__))
    cards = [card for module in modules for card in module.CARDS]
    return {card.name: card for card in sorted(cards, key=lambda card: card.name)}


def names() -> list[str]:
    """Every name that ``--dataset`` takes."""
    return list(catalogue())


def generators() -> dict[str, type[ClientGraphs]]:
    """The data sets that have settings, by name, without importing the others."""
    cards = [card for name in DRAWN for card in plugins.load_module(__name__, "data set", name).CARDS]
    return {card.name: card.source for card in cards}


def load(name: str, folders: DataFolders | None = None) -> Graph:
    """Reads a data set that is one graph, downloading it if it is not on this machine, and checks its counts."""
    card = catalogue().get(name)
    if card is None:
        raise unknown("data set", name, names())
    if isinstance(card, FederationCard):
        raise InputError(f"the data set {name!r} has one graph per client: use build_federation")
    return card.load(folders)
