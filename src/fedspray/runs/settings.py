"""From the settings of a run to the objects that carry it out.

A setting is a field of the algorithm, of its backbone, or of the rounds; its name alone says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from fedspray import algorithms, backbones
from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Roster
from fedspray.errors import InputError, unknown
from fedspray.evaluation import selection
from fedspray.experiment import RoundSettings, RunSettings, kind_of, parse


def torch_dtype(settings: RunSettings) -> torch.dtype:
    """The type of weights and messages as torch knows it."""
    found: torch.dtype = getattr(torch, settings.dtype)
    return found


def build(settings: RunSettings) -> tuple[Algorithm[Any, Any], RoundSettings]:
    """The algorithm with its backbone, and the rounds."""
    given = {**_preset(settings), **settings.values}
    algorithm_class, backbone_class = algorithms.find(settings.algorithm), backbones.find(settings.backbone)
    owners: dict[str, type[Any]] = {}
    for owner in (RoundSettings, backbone_class, algorithm_class):
        own = {f.name: owner for f in fields(owner) if f.name not in ("backbone", "target")}
        for name in sorted(set(own) & set(owners)):
            raise InputError(
                f"{name} is a setting of {owner.__name__} and of {owners[name].__name__}, "
                "but a name must mean one thing: rename one of them"
            )
        owners |= own
    parts: dict[type[Any], dict[str, Any]] = {RoundSettings: {}, backbone_class: {}, algorithm_class: {}}
    for name, value in given.items():
        if name not in owners:
            others = [f.name for f in fields(settings) if f.name != "values"]
            if name in others:
                raise InputError(f"{name} is not a setting: it has a flag, a key and an argument of its own")
            raise unknown("setting", name, owners, elsewhere=others)
        parts[owners[name]][name] = parse(name, value, _kinds(owners[name])[name])
    backbone = backbones.make(settings.backbone, **parts[backbone_class])
    rounds = RoundSettings(**parts[RoundSettings])
    selection.check(rounds.selection)
    return algorithm_class(backbone=backbone, **parts[algorithm_class]), rounds


def build_for(settings: RunSettings, roster: Roster) -> tuple[list[Algorithm[Any, Any]], RoundSettings]:
    """Each client's algorithm: the same, but for the backbones that `backbone_of` names."""
    algorithm, rounds = build(settings)
    asked = max(1, round(rounds.participation * roster.num_clients))
    if rounds.min_clients is not None and rounds.min_clients > asked:
        raise InputError(f"min_clients is {rounds.min_clients}, but only {asked} clients train in a round")
    if roster.task.num_features == 0:
        raise InputError(f"{roster.name} has no node features here, but training needs them")
    for client in settings.backbone_of:
        if client not in roster.clients:
            raise unknown("client", client, roster.clients)
    if settings.backbone_of and not algorithm.shares_gnn:
        return [_with_backbone(settings, algorithm, name) for name in roster.clients], rounds
    if settings.backbone_of:
        raise InputError(
            f"{settings.algorithm} averages the clients' GNNs, so all need the same backbone, "
            f"but backbone_of is {dict(settings.backbone_of)}"
        )
    return [algorithm] * roster.num_clients, rounds


def _with_backbone(settings: RunSettings, algorithm: Algorithm[Any, Any], client: str) -> Algorithm[Any, Any]:
    if client not in settings.backbone_of:
        return algorithm
    name = settings.backbone_of[client]
    kinds = _kinds(backbones.find(name))
    given = {**_preset(settings), **settings.values}
    chosen = {key: parse(key, value, kinds[key]) for key, value in given.items() if key in kinds}
    return replace(algorithm, backbone=backbones.make(name, **chosen))


def _preset(settings: RunSettings) -> Mapping[str, Any]:
    if settings.preset is None:
        return {}
    presets = algorithms.find(settings.algorithm).presets
    if settings.preset not in presets:
        raise unknown(f"preset of {settings.algorithm}", settings.preset, presets)
    return presets[settings.preset]


def refuse_text(settings: RunSettings) -> None:
    """Refuses a number in quotation marks: in Python it is a slip, while flags are text before they are read."""
    read = describe(*build(settings))
    for name, value in settings.values.items():
        if isinstance(value, str) and not isinstance(read[name], str):
            raise InputError(f"{name} is the text {value!r}, but must not be in quotation marks: {read[name]!r}")


def check_meaning(algorithm: str, names: Iterable[str], backbone: str | None = None) -> None:
    """Refuses settings that an algorithm, or the backbone if one is given, would ignore."""
    found = algorithms.find(algorithm)
    unused = frozenset() if backbone is None else backbones.find(backbone).ignores
    if found.own_network:  # it takes the width from the backbone's settings
        unused -= {"hidden"}
    for name in names:
        if name in found.ignores:
            raise InputError(f"{name} has no meaning to {algorithm}, which ignores {', '.join(sorted(found.ignores))}")
        if name in unused:
            raise InputError(f"{name} is set, but {backbone} ignores {' and '.join(sorted(unused))}: leave it out")


def describe(algorithm: Algorithm[Any, Any], rounds: RoundSettings | None = None) -> dict[str, Any]:
    """All settings with their values, flat, as JSON."""
    values = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if f.name != "backbone"}
    backbone = algorithm.backbone
    values |= {f.name: getattr(backbone, f.name) for f in fields(backbone) if f.name != "target"}
    return values | ({} if rounds is None else {f.name: getattr(rounds, f.name) for f in fields(rounds)})


def deciding(algorithm: Algorithm[Any, Any], rounds: RoundSettings | None = None) -> dict[str, Any]:
    """The settings that tell results apart: all of `describe`, but later ones only where they are not neutral."""
    parts = (algorithm, algorithm.backbone, *(() if rounds is None else (rounds,)))
    classes = [each for part in parts for each in reversed(type(part).__mro__) if is_dataclass(each)]
    neutral = {f.name: f.metadata["neutral"] for each in classes for f in fields(each) if "neutral" in f.metadata}
    return {k: v for k, v in describe(algorithm, rounds).items() if k not in neutral or v != neutral[k]}


def _kinds(owner: type[Any]) -> dict[str, str]:
    return {f.name: kind_of(f) for f in fields(owner)}
