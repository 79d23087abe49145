"""A study: an experiment (`experiment.py`) and a table ``[compare]`` of lists.

::

    rounds = 300                     # an experiment, as for `fedspray run`
    seeds = 5

    [compare]
    datasets = ["banks", { dataset = "pubmed", partition_dir = "partitions/PubMed" }]
    algorithms = ["local", "fedspray", { name = "no alignment", algorithm = "fedspray", set = { distill_weight = 0 } }]
    backbones = ["gcn", "sage"]
    reference = "fedspray"

    [compare.set.sage]               # for one data set, method or backbone …
    lr = 0.01
    [compare.set."pubmed/fedspray"]  # … or for a combination, in any order
    distill_weight = 2.0

`fedspray.studies.tuning` reads ``[compare.tune]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedspray import algorithms
from fedspray.errors import InputError, unknown
from fedspray.experiment import (
    DEFAULT_ALGORITHM,
    PAPER_ALGORITHM,
    Data,
    Experiment,
    RunSettings,
    data_knobs,
    knobs,
)
from fedspray.runs.settings import check_meaning
from fedspray.studies.cells import Row
from fedspray.studies.tuning import Search
from fedspray.studies.values import check_keys, check_list, check_seeds, check_table

_METHOD_KEYS = ("name", "algorithm", "preset", "set")


Rule = tuple[tuple[str, ...], Mapping[str, Any]]
"""Names of data sets, methods and backbones, and settings for the rows that all of them apply to."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of experiments: data sets, backbones and methods. `compare`, `sweep` and `tune` read it differently."""

    base: Experiment
    datasets: Mapping[str, Data]
    """By their names in tables."""
    methods: Mapping[str, RunSettings]
    """Algorithm, preset and links, by their names in tables."""
    backbones: tuple[str, ...]
    seeds: tuple[int, ...]
    reference: str
    """The method to compare the others with."""
    rules: tuple[Rule, ...] = ()
    flags: tuple[Rule, ...] = ()
    """Override `rules`."""
    search: Search | None = None

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], where: str, overrides: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Study:
        """From the values of a TOML file with a table ``compare``; unknown names are refused.

        ``overrides`` are like ``[compare.set]``, and stronger; the name ``""`` is for all cells.
        """
        compare = check_table(values.get("compare", {}), f"{where}: compare")
        known = ("datasets", "algorithms", "backbones", "seeds", "reference", "set", "tune")
        check_keys(compare, known, f"{where}: [compare]")
        base = Experiment.from_values({k: v for k, v in values.items() if k != "compare"}, where)
        datasets = _datasets(compare.get("datasets", [base.data.dataset]), values, where)
        methods, own = _methods(compare.get("algorithms", [base.run.algorithm]), base.run, where)
        names = list(methods)
        reference = compare.get("reference", "fedspray" if "fedspray" in names else names[0])
        if reference not in names:
            raise unknown("reference", str(reference), names)
        listed = check_list(compare.get("backbones", [base.run.backbone]), f"{where}: backbones", "names")
        backbones, seeds = tuple(map(str, listed)), compare.get("seeds")
        everything = _checked_names([*datasets, *methods, *backbones])
        study = cls(
            base=base,
            datasets=datasets,
            methods=methods,
            backbones=backbones,
            seeds=base.run.seeds if seeds is None else check_seeds(seeds, f"{where}: seeds"),
            reference=reference,
            rules=(*own, *_rules(compare.get("set", {}), everything, f"{where}: [compare.set]")),
            flags=_rules(overrides or {}, everything, "--set"),
        )
        if "tune" in compare:
            search = Search.from_values(compare["tune"], names, study.seeds, where)
            study.check_search(search)
            study = replace(study, search=search)
        study._check()
        return study

    def rows(self) -> list[Row]:
        """Every data set with every backbone and every method, in this order."""
        return list(self._rows)

    @cached_property
    def _rows(self) -> list[Row]:
        return [
            self._row(dataset, backbone, method)
            for dataset in self.datasets
            for backbone in self.backbones
            for method in self.methods
        ]

    def check_search(self, search: Search) -> None:
        """Refuses to search a setting that a flag has decided, or that means nothing to a method."""
        for method, run in self.methods.items():
            check_meaning(run.algorithm, search.grid.get(method, {}))
            searched = {*search.shared, *search.grid.get(method, {})}
            for owners, values in self.flags:
                both = sorted(searched & set(values))
                if both and not (set(self.methods) - {method}) & set(owners):
                    raise InputError(f"{both[0]} is both set by a flag and searched for {method}: do only one")

    def _row(self, dataset: str, backbone: str, method: str) -> Row:
        values = dict(self.base.run.values)
        for owners, given in (*self.rules, *self.flags):
            if set(owners) <= {dataset, backbone, method}:
                values |= given
        run = replace(self.methods[method], backbone=backbone, values=values, seeds=self.seeds)
        return Row(dataset=dataset, method=method, data=self.datasets[dataset].located(), run=run)

    def _check(self) -> None:
        """Refuses bad settings, and those that mean nothing where they are given, before any data are touched."""
        for row in self.rows():
            row.check()
        for owners, values in (*self.rules, *self.flags):
            named = [method for method in self.methods if method in owners]
            for method in named:
                check_meaning(self.methods[method].algorithm, values)
            for method in named or self.methods:
                algorithm = self.methods[method].algorithm
                shared = () if named else algorithms.find(algorithm).ignores  # what is for all, some may ignore
                for backbone in set(self.backbones) & set(owners):
                    check_meaning(algorithm, [name for name in values if name not in shared], backbone)


def _checked_names(names: list[str]) -> list[str]:
    """Refuses names of data sets, methods and backbones that cannot be told apart, or not be shown in a line."""
    for name in names:
        if name != name.strip() or not name or not name.isprintable():
            raise InputError(f"the name {name!r} must not be empty or have line breaks, tabs or spaces around it")
        parts = split_owners(name, [other for other in names if other != name])
        if names.count(name) > 1 or (len(parts) > 1 and set(parts) <= set(names)):
            raise InputError(f"{name!r} names two things of this comparison, but names must differ")
    return names


def dataset_name(entry: str | Mapping[str, Any]) -> str:
    """What an entry of ``datasets`` is called in tables."""
    given = {"dataset": entry} if isinstance(entry, str) else entry
    return str(given.get("name", Path(str(given.get("dataset", "banks"))).stem))


def method_name(entry: str | Mapping[str, Any], default: str = "") -> str:
    """What an entry of ``algorithms`` is called in tables."""
    return entry if isinstance(entry, str) else str(entry.get("name", entry.get("algorithm", default)))


def _datasets(listed: Any, values: Mapping[str, Any], where: str) -> dict[str, Data]:
    shared = {key: values[key] for key in data_knobs() if key in values}
    found: dict[str, Data] = {}
    for entry in check_list(listed, f"{where}: datasets", "names or tables"):
        given = {"dataset": entry} if isinstance(entry, str) else dict(check_table(entry, f"{where}: an entry"))
        check_keys(given, ("name", *data_knobs()), f"{where}: datasets")
        name = dataset_name(given)
        given.pop("name", None)
        if name in found:
            raise InputError(f"{where}: two data sets are called {name!r}: give one of them another `name`")
        found[name] = Experiment.from_values({**shared, **given}, f"{where}: data set {name}").data
    return found


def _methods(listed: Any, base: RunSettings, where: str) -> tuple[dict[str, RunSettings], list[Rule]]:
    """The methods by name, and what each sets, which is weaker than ``[compare.set]``."""
    found: dict[str, RunSettings] = {}
    rules: list[Rule] = []
    for entry in check_list(listed, f"{where}: algorithms", "names or tables"):
        given = {"algorithm": entry} if isinstance(entry, str) else dict(check_table(entry, f"{where}: an entry"))
        lists = {name: knob for name, knob in knobs().items() if knob.is_list}
        check_keys(given, (*_METHOD_KEYS, *lists), f"{where}: algorithms")
        preset = given.get("preset", base.preset)
        usual = PAPER_ALGORITHM if preset and base.algorithm == DEFAULT_ALGORITHM else base.algorithm
        algorithm, name = str(given.get("algorithm", usual)), method_name(given, usual)
        if "algorithm" not in given and name != algorithm and name in algorithms.names():
            raise InputError(
                f"{where}: the method called {name!r} runs {algorithm!r}, but has another algorithm's name: "
                f"set algorithm = {name!r}, or rename it"
            )
        if name in found:
            raise InputError(f"{where}: two methods are called {name!r}: give one of them another `name`")
        if values := check_table(given.get("set", {}), f"{where}: set of {algorithm}"):
            rules.append(((name,), values))
        if preset is not None and not isinstance(preset, str):
            raise InputError(f"{where}: preset of {name} is {preset!r}, but must be a name")
        own = {key: knob.read(given[key], f"{where}: {name}: ") for key, knob in lists.items() if key in given}
        found[name] = replace(base, algorithm=algorithm, preset=preset, **own)
    return found, rules


def split_owners(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """``pubmed/fedspray`` as names. Names may contain ``/``: the longest match wins.

    >>> split_owners("pubmed / w/o proxies", ["pubmed", "w/o proxies"])
    ('pubmed', 'w/o proxies')
    """
    parts, owners = text.split("/"), []
    while parts:
        joined = ["/".join(parts[:length]).strip() for length in range(len(parts), 0, -1)]
        length = next((len(parts) - i for i, name in enumerate(joined) if name in names), 1)
        owners.append("/".join(parts[:length]).strip())
        parts = parts[length:]
    return tuple(filter(None, owners))


def _rules(tables: Any, names: Sequence[str], where: str) -> tuple[Rule, ...]:
    """The rules of a table, the less specific ones first, so that the more specific ones win."""
    rules = []
    for name, values in check_table(tables, where).items():
        owners = split_owners(name, names)
        for owner in owners:
            if owner not in names:
                raise unknown("data set, method or backbone of this comparison", owner, names)
        rules.append((owners, check_table(values, f"{where}: {name}")))
    return tuple(sorted(rules, key=lambda rule: len(rule[0])))
