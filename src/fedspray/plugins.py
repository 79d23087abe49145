"""Plug-ins by name: the folder is the registry.

A backbone, algorithm or partitioner is one module in its package; its public name is the module's
name with '-' for '_'. ``package.module:Name`` reaches code outside this project.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from fedspray.errors import InputError, unknown

SESSION = "__main__"
"""The module of a notebook or script: no other process can import its classes."""


def names(package: str) -> list[str]:
    """The public names in a plug-in package, without importing them: its modules, and its `VARIANTS`."""
    modules = [info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    found = [name.replace("_", "-") for name in modules if name != "base" and not name.startswith("_")]
    return sorted([*found, *variants(package)])


def variants(package: str) -> Mapping[str, str]:
    """A package's names for plug-ins with other defaults, each with its ``module:Class``."""
    found: Mapping[str, str] = getattr(importlib.import_module(package), "VARIANTS", {})
    return found


def load_module(package: str, kind: str, name: str) -> ModuleType:
    """The module of one plug-in of this project."""
    if name not in names(package):
        raise unknown(kind, name, names(package))
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def load_class(package: str, kind: str, name: str, base: type) -> type[Any]:
    """The class of a plug-in: the one subclass of ``base`` that its module defines, or ``package.module:Name``."""
    if ":" in name:
        return load_outside(kind, name, base)
    if name in variants(package):
        return load_outside(kind, f"{package}.{variants(package)[name]}", base)
    module = load_module(package, kind, name)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    found = [each for each in found if not any(each is not other and issubclass(each, other) for other in found)]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define exactly one {base.__name__}, but defines {len(found)}")
    return found[0]


def name_of(package: str, kind: str, found: type) -> str:
    """The name under which `load_class` finds a class."""
    module, name = found.__module__, found.__qualname__
    for variant, home in variants(package).items():
        if f"{module}:{name}" == f"{package}.{home}":
            return variant
    if module.startswith(f"{package}."):
        return module.removeprefix(f"{package}.").replace("_", "-")
    if getattr(sys.modules.get(module), name, None) is not found:
        raise InputError(
            f"{kind} {name!r} is no longer the class of that name in {module!r}: define it at the top of a module or "
            "notebook, and recreate the object whenever you redefine the class"
        )
    return f"{module}:{name}"


def settings_of(plugin: Any) -> dict[str, Any]:
    """The settings of a data set or partitioner stored in a federation; those added later only if not neutral."""
    values = {each.name: (getattr(plugin, each.name), each.metadata.get("neutral", ...)) for each in fields(plugin)}
    return {name: value for name, (value, neutral) in values.items() if neutral is ... or value != neutral}


def load_outside(kind: str, name: str, base: type) -> type[Any]:
    """The subclass of ``base`` named ``package.module:Name``; also finds modules in the current folder."""
    module_name, _, attribute = name.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module_name) or not attribute.isidentifier():
        raise InputError(f"{kind} {name!r} is not a name: write your own code as package.module:Name")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a module in the current folder, as `python -m` would find it
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{kind} {name!r}: the module {module_name!r} cannot be imported ({error})") from None
    except Exception as error:  # the user's code may raise anything; --debug shows where
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"{kind} {name!r}: the module {module_name!r} cannot be imported ({said})") from error
    value = getattr(module, attribute, None)
    if not isinstance(value, type) and module_name == SESSION:
        raise InputError(
            f"{kind} {attribute!r} was defined in another session: define it here too, or move it into a file"
        )
    if not isinstance(value, type):
        found = "" if value is None else f", only a {type(value).__name__} of that name"
        raise InputError(f"{kind} {name!r}: the module {module_name!r} has no class {attribute!r}{found}")
    if not issubclass(value, base):
        raise InputError(f"{kind} {name!r} is not derived from {base.__name__}")
    return value
