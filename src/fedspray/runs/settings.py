"""What a run is: one object, echoed into every result.

A setting is a field of the algorithm, of its backbone, or of the rounds; its name alone says which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from fedspray import algorithms, backbones
from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Roster
from fedspray.engine.rounds import RoundSettings
from fedspray.errors import InputError, unknown

DTYPES = ("float32", "float64")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides a run's result, beside its data."""

    algorithm: str = "fedspray"
    backbone: str = "gcn"
    preset: str | None = None
    """A named set of the algorithm's settings, for instance `paper`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults (and from the preset)."""
    backbone_of: Mapping[str, str] = field(default_factory=dict)
    """Clients that use another backbone, by name."""
    seeds: tuple[int, ...] = (0,)
    keep_split: bool = False
    """Use the federation's own splits for every seed, instead of drawing them from the seed."""
    dtype: str = DTYPES[0]
    """Of weights and messages."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is {self.dtype!r}, but must be {' or '.join(DTYPES)}")
        if not self.seeds:
            raise InputError("seeds is empty, but at least one seed is needed")
        for seed in self.seeds:
            if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
                raise InputError(f"seeds contain {seed!r}, but must be whole numbers from 0 on")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds are {list(self.seeds)}, but each may be given once")

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def build(self) -> tuple[Algorithm[Any, Any], RoundSettings]:
        """The algorithm with its backbone, and the rounds."""
        given = {**self._preset(), **self.values}
        algorithm_class, backbone_class = algorithms.find(self.algorithm), backbones.find(self.backbone)
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
                others = [f.name for f in fields(self) if f.name != "values"]
                if name in others:
                    raise InputError(f"{name} is not a setting: it has a flag, a key and an argument of its own")
                raise unknown("setting", name, owners, elsewhere=others)
            parts[owners[name]][name] = parse(name, value, _kinds(owners[name])[name])
        backbone = backbones.make(self.backbone, **parts[backbone_class])
        return algorithm_class(backbone=backbone, **parts[algorithm_class]), RoundSettings(**parts[RoundSettings])

    def build_for(self, roster: Roster) -> tuple[list[Algorithm[Any, Any]], RoundSettings]:
        """Each client's algorithm: the same, but for the backbones that `backbone_of` names."""
        algorithm, rounds = self.build()
        asked = max(1, round(rounds.participation * roster.num_clients))
        if rounds.min_clients is not None and rounds.min_clients > asked:
            raise InputError(f"min_clients is {rounds.min_clients}, but only {asked} clients train in a round")
        if roster.task.num_features == 0:
            raise InputError(f"{roster.name} has no node features here, but training needs them")
        for client in self.backbone_of:
            if client not in roster.clients:
                raise unknown("client", client, roster.clients)
        if self.backbone_of and not algorithm.shares_gnn:
            return [self._with_backbone(algorithm, name) for name in roster.clients], rounds
        if self.backbone_of:
            raise InputError(
                f"{self.algorithm} averages the clients' GNNs, so all need the same backbone, "
                f"but backbone_of is {dict(self.backbone_of)}"
            )
        return [algorithm] * roster.num_clients, rounds

    def of_client(self, name: str) -> RunSettings:
        """The settings from one client's view: its own backbone and no other."""
        return replace(self, backbone=self.backbone_of.get(name, self.backbone), backbone_of={})

    def _with_backbone(self, algorithm: Algorithm[Any, Any], client: str) -> Algorithm[Any, Any]:
        if client not in self.backbone_of:
            return algorithm
        name = self.backbone_of[client]
        kinds = _kinds(backbones.find(name))
        given = {**self._preset(), **self.values}
        chosen = {key: parse(key, value, kinds[key]) for key, value in given.items() if key in kinds}
        return replace(algorithm, backbone=backbones.make(name, **chosen))

    def _preset(self) -> Mapping[str, Any]:
        if self.preset is None:
            return {}
        presets = algorithms.find(self.algorithm).presets
        if self.preset not in presets:
            raise unknown(f"preset of {self.algorithm}", self.preset, presets)
        return presets[self.preset]


def refuse_text(settings: RunSettings) -> None:
    """Refuses a number in quotation marks: in Python it is a slip, while flags are text before they are read."""
    read = describe(*settings.build())
    for name, value in settings.values.items():
        if isinstance(value, str) and not isinstance(read[name], str):
            raise InputError(f"{name} is the text {value!r}, but must not be in quotation marks: {read[name]!r}")


def check_meaning(algorithm: str, names: Iterable[str]) -> None:
    """Refuses settings that have no meaning to an algorithm."""
    ignored = algorithms.find(algorithm).ignores
    for name in names:
        if name in ignored:
            raise InputError(f"{name} has no meaning to {algorithm}, which ignores {', '.join(sorted(ignored))}")


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


def parse(name: str, value: Any, kind: str) -> Any:
    """A setting's value, from text (command line) or from a value that has a type already (TOML, Python)."""
    wanted = [part.strip() for part in kind.split("|")]
    text = str(value).strip()
    if "None" in wanted and (value is None or text.lower() == "none"):
        return None
    if "bool" in wanted and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number, convert in (("int", int), ("float", float)):
        if number in wanted and not isinstance(value, bool):
            try:
                found = convert(text)
            except ValueError:
                continue
            if not math.isfinite(found):
                raise InputError(f"{name} is {value!r}, but must be a finite number")
            return found
    if "str" in wanted and not isinstance(value, bool):
        return text
    allowed = {"int": "a whole number", "float": "a number", "bool": "true or false", "None": "none", "str": "text"}
    raise InputError(f"{name} is {value!r}, but must be {' or '.join(allowed.get(part, part) for part in wanted)}")


def _kinds(owner: type[Any]) -> dict[str, str]:
    """The type of each setting as text; it is text already where annotations are not evaluated."""
    return {f.name: f.type.__name__ if isinstance(f.type, type) else str(f.type) for f in fields(owner)}
