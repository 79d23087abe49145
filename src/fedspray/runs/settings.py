"""From the settings of a run to its objects.

A setting is a field of the algorithm, of its backbone, or of the rounds; its name tells which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from fedspray import algorithms, backbones, links
from fedspray.algorithms._shift import shifted
from fedspray.algorithms.base import Algorithm
from fedspray.backbones.base import Backbone
from fedspray.data.federation import Roster
from fedspray.engine.device import find_device
from fedspray.errors import InputError, unknown
from fedspray.evaluation import selection
from fedspray.experiment import RoundSettings, RunSettings
from fedspray.files import Json
from fedspray.knob import kind_of, parse
from fedspray.links.base import Link
from fedspray.memory import check_memory


@dataclass(frozen=True, eq=False)
class Resolved:
    """The settings of a run as objects: `resolve` makes them once."""

    settings: RunSettings
    algorithm: Algorithm[Any, Any]
    """The server's, and that of every client without its own backbone."""
    rounds: RoundSettings
    links: tuple[Link, ...] = ()
    """The steps that messages pass between clients and server."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and messages."""
        found: torch.dtype = getattr(torch, self.settings.dtype)
        return found

    @property
    def device(self) -> torch.device:
        """Where clients train; refused if it doesn't exist."""
        return find_device(self.settings.device)

    @property
    def values(self) -> dict[str, Any]:
        """Every setting with its value."""
        return values_of(self.algorithm, self.rounds)

    def spent(self, round_index: int) -> Json:
        """What links say of the privacy that was given away by the end of a round."""
        return {name: value for link in self.links for name, value in link.spent(round_index).items()}

    def for_clients(self, roster: Roster) -> list[Algorithm[Any, Any]]:
        """Each client's algorithm: the same, except for the backbones in `backbone_of`."""
        asked, least = max(1, round(self.rounds.participation * roster.num_clients)), self.rounds.min_clients
        if least is not None and least > asked:
            raise InputError(f"min_clients is {least}, but only {asked} clients train in a round")
        if roster.task.num_features == 0:
            raise InputError(f"{roster.name} has no node features, but training needs them")
        others = self.settings.backbone_of
        for client in others:
            if client not in roster.clients:
                raise unknown("client", client, roster.clients)
        if others and self.algorithm.shares_gnn:
            raise InputError(
                f"{self.settings.algorithm} averages the clients' GNNs, so all need the same backbone, "
                f"but backbone_of is {dict(others)}"
            )
        own = {name: replace(self.algorithm, backbone=_backbone(self.settings, name)) for name in {*others.values()}}
        for each in (self.algorithm, *own.values()):
            each.check(roster.task)
            _check_memory(each.backbone, roster)
        return [own[others[name]] if name in others else self.algorithm for name in roster.clients]

    def refuse_text(self) -> None:
        """Refuses a number in quotes: in Python it is a mistake, while flags are text anyway."""
        for name, value in self.settings.values.items():
            read = self.values[name]
            if isinstance(value, str) and not isinstance(read, str):
                raise InputError(f"{name} is the text {value!r}, but must be {read!r}, without quotes")


def resolve(settings: RunSettings | Resolved) -> Resolved:
    """From names and values to the algorithm with its backbone, and the rounds; resolved settings pass through."""
    if isinstance(settings, Resolved):
        return settings
    algorithm_class, backbone_class = algorithms.find(settings.algorithm), backbones.find(settings.backbone)
    owners: dict[str, type[Any]] = {}
    for owner in (RoundSettings, backbone_class, algorithm_class):
        own = {f.name: owner for f in fields(owner) if f.name not in ("backbone", "target")}
        for name in sorted(set(own) & set(owners)):
            raise InputError(
                f"{name} is a setting of {owner.__name__} and of {owners[name].__name__}, "
                "but a name must have one meaning: rename one of them"
            )
        owners |= own
    given = _given(settings)
    for name in given:
        others = [f.name for f in fields(settings) if f.name != "values"]
        if name in others:
            raise InputError(f"{name} is not a setting: use its own flag, key or argument")
        if name not in owners:
            raise unknown("setting", name, owners, elsewhere=others)
    rounds = RoundSettings(**_read(given, RoundSettings))
    selection.check(rounds.selection)
    backbone = _backbone(settings, settings.backbone)
    if given.get("prior_shift", 0) not in (0, "0"):
        algorithm_class = shifted(algorithm_class)
    algorithm = algorithm_class(backbone=backbone, **_read(given, algorithm_class))
    chain = links.chain(settings.link, algorithm.uplink)
    if settings.baseline is not None and any(link.only_sums or link.hides_evaluation for link in chain):
        raise InputError(
            f"baseline is {settings.baseline!r}, which is compared client by client, but with "
            f"{settings.link[-1].split()[0]} figures of single clients exist only at the clients: use only one of them"
        )
    fitted = tuple(link.for_run(algorithm, rounds, chain) for link in chain)
    return Resolved(settings, algorithm, rounds, fitted)


def _check_memory(backbone: Backbone, roster: Roster) -> None:
    """Refuses models that cannot fit, whatever is done with them: the weights of one client, and their gradients."""
    width, task = backbone.hidden, roster.task
    weights = width * (task.num_features + task.num_classes + width * max(0, backbone.layers - 2))
    check_memory(f"a model with hidden {width:,} and layers {backbone.layers:,}", 8 * (weights + backbone.layers))


def _backbone(settings: RunSettings, name: str) -> Backbone:
    return backbones.make(name, **_read(_given(settings), backbones.find(name)))


def _given(settings: RunSettings) -> dict[str, Any]:
    """The non-default values, the preset's first."""
    presets = algorithms.find(settings.algorithm).presets
    if settings.preset is not None and settings.preset not in presets:
        raise unknown(f"preset of {settings.algorithm}", settings.preset, presets)
    return {**presets.get(settings.preset or "", {}), **settings.values}


def _read(given: Mapping[str, Any], owner: type[Any]) -> dict[str, Any]:
    """The settings of one owner, checked by type."""
    return {f.name: parse(f.name, given[f.name], kind_of(f)) for f in fields(owner) if f.name in given}


def check_meaning(algorithm: str, names: Iterable[str], backbone: str | None = None) -> None:
    """Refuses settings that an algorithm, or the backbone if one is given, would ignore."""
    found = algorithms.find(algorithm)
    unused = frozenset() if backbone is None else backbones.find(backbone).ignores
    if found.own_network:  # it takes the width from the backbone's settings
        unused -= {"hidden"}
    for name in names:
        if name in found.ignores:
            raise InputError(f"{algorithm} ignores {name}: it uses none of {', '.join(sorted(found.ignores))}")
        if name in unused:
            raise InputError(f"{name} is set, but {backbone} ignores {' and '.join(sorted(unused))}: remove it")


def values_of(algorithm: Algorithm[Any, Any], rounds: RoundSettings | None = None) -> dict[str, Any]:
    """All settings with their values, flat, as JSON."""
    values = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if f.name != "backbone"}
    backbone = algorithm.backbone
    values |= {f.name: getattr(backbone, f.name) for f in fields(backbone) if f.name != "target"}
    return values | ({} if rounds is None else {f.name: getattr(rounds, f.name) for f in fields(rounds)})


def deciding(algorithm: Algorithm[Any, Any], rounds: RoundSettings | None = None) -> dict[str, Any]:
    """The settings that identify a result: all of `values_of`, later ones only if neither neutral nor ignored."""
    parts = (algorithm, algorithm.backbone, *(() if rounds is None else (rounds,)))
    classes = [each for part in parts for each in reversed(type(part).__mro__) if is_dataclass(each)]
    neutral = {f.name: f.metadata["neutral"] for each in classes for f in fields(each) if "neutral" in f.metadata}
    silent = {k for k, v in values_of(algorithm, rounds).items() if k in neutral and v == neutral[k]}
    silent |= neutral.keys() & algorithm.ignores
    return {k: v for k, v in values_of(algorithm, rounds).items() if k not in silent}
