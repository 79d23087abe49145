"""Rows of tables and their cells: an experiment with one seed each, and the key of its result.

The key is a hash of everything that decides the result: every setting with its value (so a preset and the
same values by hand are one cell), the clients' graphs and splits, and `RESULT_VERSION`. Names of tables and
paths are not in it, so two studies that need the same cell share it. A setting added later is included
only if it differs from its neutral value (`setting(…, neutral=…)`), so older keys stay valid.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from fedspray import algorithms
from fedspray.data.federation import Federation
from fedspray.errors import InputError
from fedspray.experiment import Data, Experiment, RunSettings
from fedspray.federate import open_data
from fedspray.files import Json
from fedspray.runs.settings import Resolved, deciding, resolve
from fedspray.studies.results import CellResult

RESULT_VERSION = 1
"""Raise it when, and only when, the same settings, data and seed give other numbers than before."""


@dataclass(frozen=True, kw_only=True)
class Named(Experiment):
    """An experiment under its names in tables."""

    dataset: str
    """The data set's name in tables."""
    method: str
    """The method's name in tables: the algorithm's, or one given to it with certain settings."""
    label: str = ""
    """Settings that were changed, for people."""

    @property
    def backbone(self) -> str:
        """The backbone's name."""
        return self.run.backbone

    made: Resolved | None = field(default=None, compare=False, repr=False)
    """The objects of a run that differs at most in its seeds."""

    @cached_property
    def resolved(self) -> Resolved:
        """What is run, as objects."""
        if self.made is None or replace(self.made.settings, seeds=self.run.seeds) != self.run:
            return resolve(self.run)
        return replace(self.made, settings=self.run)

    @property
    def settings(self) -> Json:
        """Every setting with its value."""
        return self.resolved.values

    def __getstate__(self) -> Json:
        """Without the objects: a worker finds their classes by name."""
        return {name: value for name, value in vars(self).items() if name != "resolved"} | {"made": None}


@dataclass(frozen=True, kw_only=True)
class Row(Named):
    """A row of a table: its cells differ in the seed alone."""

    ended: tuple[Cell, ...] = ()
    """How its cells ended; none before they are run."""

    @property
    def place(self) -> tuple[str, str]:
        """What methods are compared within."""
        return self.dataset, self.backbone

    @property
    def results(self) -> dict[int, CellResult]:
        """Of the finished cells, by seed."""
        return {cell.seed: cell.result for cell in self.ended if cell.result is not None}

    def with_values(self, values: Mapping[str, Any]) -> Row:
        """The same row with some settings changed."""
        words = [self.label, *(f"{name}={value}" for name, value in values.items())]
        run = replace(self.run, values={**self.run.values, **values})
        return replace(self, run=run, label=", ".join(filter(None, words)))

    def with_seeds(self, seeds: Sequence[int]) -> Row:
        """The same row with other seeds."""
        return replace(self, run=replace(self.run, seeds=tuple(seeds)))

    def finished(self, ended: Sequence[Cell]) -> Row:
        """The same row with its cells."""
        return replace(self, ended=tuple(ended), made=self.resolved)

    def check(self) -> None:
        """Refuses settings that this method or backbone does not have."""
        try:
            _ = self.resolved
        except InputError as error:
            raise InputError(f"{self.method}, {self.backbone}: {error}") from None

    def cells(self, *, validation_only: bool = False) -> list[Cell]:
        """One cell for each seed."""
        shared: Json = {each.name: getattr(self, each.name) for each in fields(Named)} | {"made": self.resolved}
        return [
            Cell(**{**shared, "run": replace(self.run, seeds=(seed,))}, validation_only=validation_only)
            for seed in self.run.seeds
        ]


@dataclass(frozen=True, kw_only=True)
class Cell(Named):
    """An experiment with exactly one seed, and how it ended: with a result, or with the reason why there is none."""

    validation_only: bool = False
    """Without test nodes, for choosing settings."""
    path: Path = Path()
    """The file of its result, once it is looked for."""
    result: CellResult | None = None
    failure: str | None = None

    @property
    def seed(self) -> int:
        """Draws the split and everything else that is random."""
        return self.run.seeds[0]

    def whole(self) -> Federation:
        """The clients, before the cell draws any splits."""
        return _open(self._source)

    def federation(self) -> Federation:
        """The clients with the splits of this cell."""
        federation = self.whole()
        if not self.run.keep_split:
            federation = federation.with_split(self.seed)
        return federation.without_test() if self.validation_only else federation

    def identity(self) -> Json:
        """All that decides the result."""
        federation = self.federation()
        clients = self.resolved.for_clients(federation.roster)
        names = [client.name for client in federation.clients]
        return {
            "result_version": RESULT_VERSION,
            "algorithm": self.run.algorithm,
            "backbone": self.run.backbone,
            "settings": deciding(self.resolved.algorithm, self.resolved.rounds),
            "backbone_of": {
                name: {"backbone": self.run.backbone_of[name], "settings": deciding(clients[names.index(name)])}
                for name in sorted(self.run.backbone_of)
            },
            "dtype": self.run.dtype,
            "seed": self.seed,
            "graphs": _fingerprint(self._source),
            "splits": federation.split_fingerprint(),
            "code": _outside_code(self.run),
            **_later(self.run),
        }

    def key(self) -> str:
        """The sha256 of `identity`."""
        return _hash(self.identity())

    def name(self, key: str) -> str:
        """A file name, readable and unique."""
        return self._name(self.run.algorithm, key)

    def former(self) -> list[tuple[str, str]]:
        """Other keys and file names of this cell's result: those of `Algorithm.formerly`."""
        formerly = algorithms.find(self.run.algorithm).formerly
        names = [name for name, fixed in formerly.items() if fixed.items() <= self.settings.items()]
        keys = {name: _hash({**self.identity(), "algorithm": name}) for name in names}
        return [(key, self._name(name, key)) for name, key in keys.items()]

    @property
    def _source(self) -> str:
        return json.dumps(self.data.to_json(), sort_keys=True)

    def _name(self, algorithm: str, key: str) -> str:
        words = f"{self.whole().name}-{algorithm}-{self.run.backbone}-seed{self.seed}"
        return re.sub(r"[^A-Za-z0-9.-]+", "_", words) + f"-{key[:16]}"

    def __str__(self) -> str:
        label = f", {self.label}" if self.label else ""
        return f"{self.dataset}, {self.method}, {self.backbone}{label}, seed {self.seed}"


def by_place(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows that are compared with each other, by data set and backbone."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault(row.place, []).append(row)
    return found


def _hash(identity: Json) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=8)
def _open(source: str) -> Federation:
    """A worker gets many cells on the same data and reads it once."""
    return open_data(Data.of(**json.loads(source)))


@lru_cache(maxsize=64)
def _fingerprint(source: str) -> str:
    return _open(source).fingerprint()


def _later(run: RunSettings) -> Json:
    """Run settings added later, if not neutral."""
    neutral = {each.name: each.metadata["neutral"] for each in fields(run) if "neutral" in each.metadata}
    return {name: getattr(run, name) for name in neutral if getattr(run, name) != neutral[name]}


def _outside_code(run: RunSettings) -> dict[str, str]:
    """sha256 of the modules of `package.module:Name`, since our version number doesn't cover their changes."""
    names = sorted({run.algorithm, run.backbone, *run.backbone_of.values(), *(text.split()[0] for text in run.link)})
    return {name: hashlib.sha256(_source(name).encode()).hexdigest() for name in names if ":" in name}


def _source(name: str) -> str:
    """The text of an outside class's module; a notebook has none, so every definition there counts as new."""
    module_name, _, attribute = name.partition(":")
    module = sys.modules[module_name]
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return _without_text.setdefault(getattr(module, attribute), uuid.uuid4().hex)


_without_text: WeakKeyDictionary[type, str] = WeakKeyDictionary()
