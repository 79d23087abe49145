"""FedSpray: federated graph learning that does right by minority nodes.

The public API; everything else may change. Names are imported when they are first used, so that
``import fedspray`` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspray.data.batch import GraphBatch
    from fedspray.data.federation import Client, Federation, Split, Task
    from fedspray.data.graph import UNLABELLED, Graph
    from fedspray.data.statistics import describe
    from fedspray.errors import InputError, MissingDataError
    from fedspray.federate import build_federation
    from fedspray.runs.models import PersonalModel
    from fedspray.runs.result import RunResult
    from fedspray.runs.run import run

__all__ = [
    "UNLABELLED",
    "Client",
    "Federation",
    "Graph",
    "GraphBatch",
    "InputError",
    "MissingDataError",
    "PersonalModel",
    "RunResult",
    "Split",
    "Task",
    "build_federation",
    "describe",
    "run",
]

_HOMES = {
    "fedspray.data.batch": ("GraphBatch",),
    "fedspray.data.federation": ("Client", "Federation", "Split", "Task"),
    "fedspray.data.graph": ("UNLABELLED", "Graph"),
    "fedspray.data.statistics": ("describe",),
    "fedspray.errors": ("InputError", "MissingDataError"),
    "fedspray.federate": ("build_federation",),
    "fedspray.runs.models": ("PersonalModel",),
    "fedspray.runs.result": ("RunResult",),
    "fedspray.runs.run": ("run",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedspray")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'fedspray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
