"""`Partitioner`: the contract for cutting one graph into clients.

A partitioner is one module here with one frozen dataclass. Its fields are its settings, each with a
one-line description under ``metadata["help"]`` and perhaps limits, as `knob` makes them; its one method returns
the node ids of every client: disjoint, within the graph, ascending, the same for the same graph, settings and
seed. Nodes may be left out. The module's name, with '-' for '_', is the public name. Its fields are flags and
keys of an experiment, so a module imports NumPy inside functions, to keep ``--help`` fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from fedspray.knob import check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph


class Partitioner(ABC):
    """Cuts one graph into clients."""

    is_drawn: ClassVar[bool] = True
    """Whether it uses ``--partition-seed``."""
    lists_nodes: ClassVar[bool] = False
    """Whether it names nodes of the graph as read, so that no step may drop nodes first."""

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def partition(self, graph: Graph, seed: int) -> dict[str, NDArray[np.int64]]:
        """The ascending node ids of each client, by the client's name."""


def name_parts(parts: Iterable[NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Names the parts ``client_00`` …, with their nodes in ascending order."""
    import numpy as np

    from fedspray.data.federation import name_clients

    return dict(name_clients(np.sort(np.asarray(part, dtype=np.int64)) for part in parts))


def largest_first(membership: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The groups of ``membership`` [N], largest first, ties by their smallest node."""
    import numpy as np

    order = np.argsort(membership, kind="stable")
    starts = np.flatnonzero(np.diff(membership[order])) + 1
    return sorted(np.split(order, starts), key=lambda nodes: (-len(nodes), nodes[0]))
