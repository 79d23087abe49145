"""From objects and classes to the names and settings used in run folders, cells and commands.

An object of a built-in class stands for its name and its non-default settings, so running it is running it by
name, bit for bit. Arguments of the call beat what objects carry: ``backbone=`` replaces an algorithm's own
backbone as a whole, and a setting given by name replaces an object's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedspray import algorithms, plugins
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import Backbone
from fedspray.backbones.module import BUILT, ModuleBackbone
from fedspray.display import changed
from fedspray.errors import InputError, described

AnyAlgorithm = str | Algorithm[Any, Any] | type[Algorithm[Any, Any]]
AnyBackbone = str | Backbone | type[Backbone] | type[nn.Module]

DEFAULT_BACKBONE = "gcn"


@dataclass(frozen=True)
class Chosen:
    """An algorithm with its backbone, by name."""

    algorithm: str
    backbone: str
    values: Mapping[str, Any]
    """Settings of both."""

    @classmethod
    def of(
        cls,
        algorithm: AnyAlgorithm,
        backbone: AnyBackbone | None = None,
        preset: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Chosen:
        """From names, objects or classes; without ``backbone`` an algorithm object has its own."""
        name, own = algorithm_named(algorithm)
        if preset is not None and isinstance(algorithm, Algorithm):
            raise InputError(
                f"preset is {preset!r}, but {algorithm!r} has all its settings: pass the algorithm by name or class"
            )
        if backbone is None:
            backbone = algorithm.backbone if isinstance(algorithm, Algorithm) else DEFAULT_BACKBONE
        net, of_net = backbone_named(backbone)
        if preset is not None and isinstance(backbone, Backbone):  # the object wins, even over its own defaults
            decided = algorithms.find(name).presets.get(preset, {})
            of_net |= {key: getattr(backbone, key) for key in decided if key in backbone.__dataclass_fields__}
        return cls(name, net, {**own, **of_net, **(values or {})})

    @property
    def of_session(self) -> list[str]:
        """Classes that no other process can import."""
        names = (self.algorithm, self.backbone)
        return [name.partition(":")[2] for name in names if name.startswith(f"{plugins.SESSION}:")]


def algorithm_named(given: AnyAlgorithm) -> tuple[str, dict[str, Any]]:
    """The name of an algorithm, and an object's non-default settings."""
    if isinstance(given, str):
        return given, {}
    found = given if isinstance(given, type) else type(given)
    if not issubclass(found, Algorithm):
        raise InputError(f"the algorithm is {described(given)}, but must be a name, an Algorithm or its class")
    return plugins.name_of("fedspray.algorithms", "algorithm", found), _settings(given, "backbone")


def backbone_named(given: AnyBackbone) -> tuple[str, dict[str, Any]]:
    """The name of a backbone, and an object's non-default settings."""
    if isinstance(given, str):
        return given, {}
    if isinstance(given, ModuleBackbone):
        return given.target, _settings(given, "target")
    found = given if isinstance(given, type) else type(given)
    if not issubclass(found, Backbone) and not (isinstance(given, type) and issubclass(found, nn.Module)):
        raise InputError(
            f"the backbone is {described(given)}, but must be a name, a Backbone, or the class of a torch.nn.Module, "
            f"{BUILT}"
        )
    return plugins.name_of("fedspray.backbones", "backbone", found), _settings(given)


def backbones_named(given: Mapping[str, AnyBackbone]) -> dict[str, str]:
    """The names of some clients' backbones."""
    names = {}
    for client, backbone in given.items():
        names[client], values = backbone_named(backbone)
        if values:
            raise InputError(
                f"backbone_of[{client!r}] is {backbone!r}, but clients share the settings of `backbone`: "
                f"pass only the name or class"
            )
    return names


def _settings(given: object, *without: str) -> dict[str, Any]:
    if isinstance(given, type):
        return {}
    return {name: value for name, value in changed(given).items() if name not in without}
