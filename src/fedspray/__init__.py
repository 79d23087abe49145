"""FedSpray: federated graph learning that does right by minority nodes.

The public API is what ``__init__.pyi`` lists; everything else may change. Names are imported when they are first used,
so that ``import fedspray`` and the command line start fast.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedspray")
    return _load(name)


class _Package(ModuleType):
    """Keeps the function `report` when Python imports the package of the same name."""

    @property
    def report(self) -> Any:
        return _load("report")

    @report.setter
    def report(self, package: ModuleType) -> None:
        """``import fedspray.report`` changes nothing here."""


sys.modules[__name__].__class__ = _Package
