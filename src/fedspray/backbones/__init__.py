"""Backbones: one file each; `make` builds one by name."""

from __future__ import annotations

from typing import Any

from fedspray import plugins
from fedspray.backbones.base import Backbone
from fedspray.errors import InputError, unknown
from fedspray.nn.layers import Layer


def make(name: str, **settings: Any) -> Backbone:
    """The backbone called ``name``, or your own ``package.module:Class``: a Backbone or a torch.nn.Module."""
    found = find(name)
    if "target" in found.__dataclass_fields__:  # the wrapper of a torch.nn.Module
        settings["target"] = name
    return found(**settings)


def find(name: str) -> type[Backbone]:
    """The class of the backbone called ``name``."""
    if ":" in name:
        from fedspray.backbones.module import ModuleBackbone

        found = plugins.load_outside("backbone", name, object)
        return found if issubclass(found, Backbone) else ModuleBackbone
    if name not in names():
        raise unknown("backbone", name, names())
    return plugins.load_class(__name__, "backbone", name, Backbone)


def layer_of(backbone: Backbone, algorithm: str) -> Layer:
    """The layer of ``backbone``, for an algorithm that builds its own network."""
    layer = backbone.inner_layer()
    if layer is None:
        name = getattr(backbone, "target", type(backbone).__name__)
        known = [each for each in names() if find(each)().inner_layer() is not None]
        raise InputError(f"backbone is {name!r}, but {algorithm} builds its own network only for {', '.join(known)}")
    return layer


def names() -> list[str]:
    """The built-in backbones."""
    return [name for name in plugins.names(__name__) if name != "module"]
