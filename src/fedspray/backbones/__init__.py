"""Backbones: one file each; `make` builds one by name."""

from __future__ import annotations

from typing import Any

from fedspray import plugins
from fedspray.backbones.base import Backbone
from fedspray.errors import unknown


def make(name: str, **settings: Any) -> Backbone:
    """The backbone called ``name``, or ``package.module:Class`` for a torch.nn.Module of one's own."""
    if ":" in name:
        settings["target"] = name
    return find(name)(**settings)


def find(name: str) -> type[Backbone]:
    """The class of the backbone called ``name``."""
    if ":" in name:
        from fedspray.backbones.module import ModuleBackbone

        return ModuleBackbone
    if name not in names():
        raise unknown("backbone", name, names())
    return plugins.load_class(__name__, "backbone", name, Backbone)


def names() -> list[str]:
    """The built-in backbones."""
    return [name for name in plugins.names(__name__) if name != "module"]
