"""The methods of a report, from run folders or from the finished cells of a comparison.

Runs that differ only in their seeds are one method.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedspray import stored
from fedspray.data.statistics import describe
from fedspray.errors import InputError, unknown
from fedspray.files import Json, read_json
from fedspray.runs import nodes, proxies, store
from fedspray.runs.nodes import NodeTable
from fedspray.runs.proxies import ClassProxies
from fedspray.runs.result import spread, unfinished
from fedspray.studies.cells import Row, by_place
from fedspray.studies.results import CURVES, CellResult


@dataclass(frozen=True, eq=False)
class SeedRun:
    """One seed of a method."""

    seed: int
    source: str
    """The run folder, or the cell's file."""
    metrics: Json
    records: Sequence[Json]
    nodes: NodeTable | None
    """None in folders of older versions."""
    proxies: ClassProxies | None
    """None if the algorithm has none."""


@dataclass(frozen=True, eq=False)
class Contender:
    """An algorithm with all its settings, and the seeds that were run."""

    label: str
    contents: tuple[Json, ...]
    """The settings files of its runs."""
    seeds: tuple[SeedRun, ...]

    @property
    def content(self) -> Json:
        """The settings file of its first run: the others differ in seeds, time and place only."""
        return self.contents[0]

    @property
    def algorithm(self) -> str:
        """Its public name."""
        return str(self.content["algorithm"])

    @property
    def kept_back(self) -> str | None:
        """What stayed at the clients: ``all`` figures (`dp`), those of single ``clients`` (`secure-sum`), or None."""
        metrics = self.seeds[0].metrics
        if "privacy" in metrics and metrics["overall"] is None:
            return "all"
        return "clients" if metrics.get("sums_only") else None

    def spread(self, name: str) -> Json:
        """Mean and standard deviation of a metric over seeds."""
        return spread([seed.metrics.get(name) for seed in self.seeds])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods on the same federation."""

    methods: tuple[Contender, ...]
    federation: Json | None
    """What `fedspray inspect --json` says about it; None in folders of older versions."""
    reference: str | None
    """The label or algorithm to compare the others with."""
    agreement: Json | None = None
    """What the sites of a run between organisations agreed on."""

    @property
    def clients(self) -> list[str]:
        """The clients, by id."""
        if self.federation is not None:
            return [client["name"] for client in self.federation["clients"]]
        if self.agreement is not None:  # also sites that were lost on the way
            return list(self.agreement["sites"])
        metrics = self.methods[0].seeds[0].metrics
        return list(metrics["clients"] or metrics["models"])

    @property
    def classes(self) -> list[str]:
        """The names of the classes, or their numbers."""
        known = (self.federation or self.agreement or {}).get("class_names")
        count = len(self.methods[0].seeds[0].metrics["recall"])
        return list(known) if known else [f"class {c}" for c in range(count)]

    def against(self, reference: str) -> Comparison:
        """The same methods, compared with this one: a label or an algorithm among them."""
        return replace(self, reference=_reference(self.methods, reference))

    def reference_of(self, method: Contender) -> Contender | None:
        """A method's reference; None for a reference itself, or if its backbone has none."""
        found = self._reference_for(method)
        return None if found is method else found

    def is_reference(self, method: Contender) -> bool:
        """Whether others are compared with it."""
        return self._reference_for(method) is method

    def _reference_for(self, method: Contender) -> Contender | None:
        """The method that the reference names in full or, with the same backbone, by its algorithm."""
        labelled = [m for m in self.methods if m.label == self.reference]
        backbone = method.content["backbone"]
        alike = (m for m in self.methods if m.algorithm == self.reference and m.content["backbone"] == backbone)
        return labelled[0] if labelled else next(alike, None)


def read_comparison(folders: Sequence[Path], reference: str | None = None) -> Comparison:
    """Reads finished runs on the same federation, in display order.

    ``reference`` is an algorithm or a method's label among them; by default ``local``, or else the first.
    """
    if not folders:
        raise InputError("no run folder given, but a report needs at least one")
    runs = [(folder, _read_settings(folder)) for folder in folders]
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        _check_same_data(runs[0], run)
        groups.setdefault(_identity(run[1]), []).append(run)
    labels = _labels([content for (_, content), *_ in groups.values()])
    methods = tuple(
        Contender(label, tuple(content for _, content in group), _seeds(group))
        for label, group in zip(labels, groups.values(), strict=True)
    )
    statistics = next((f / store.FEDERATION for f in folders if (f / store.FEDERATION).exists()), None)
    federation = None if statistics is None else stored.read(statistics, stored.Description)
    agreed = next((f / "agreement.json" for f in folders if (f / "agreement.json").exists()), None)
    agreement = None if agreed is None else read_json(agreed)
    return Comparison(methods, federation, _reference(methods, reference), agreement)


_Run = tuple[Path, Json]
"""A run's folder and settings file."""


def comparisons_of(rows: Sequence[Row], reference: str) -> dict[tuple[str, str], Comparison]:
    """The finished cells of a study, by data set and backbone; without methods that have none.

    Methods are compared with ``local`` or, if it is not among them, with the reference.
    """
    comparisons = {}
    for place, group in by_place(row for row in rows if row.results).items():
        _check_same_nodes(group)
        methods = tuple(_method_of(row) for row in group)
        labels = [method.label for method in methods]
        wanted = reference if reference in labels and "local" not in labels else None
        statistics = describe(group[0].ended[0].federation()).to_json()
        comparisons[place] = Comparison(methods, statistics, _reference(methods, wanted))
    return comparisons


def _check_same_nodes(rows: Sequence[Row]) -> None:
    """Refuses cells on the same data whose nodes differ: one of them is damaged."""
    tables = [(each.path, each.result.nodes.counts) for row in rows for each in row.ended if each.result is not None]
    for file, counts in tables[1:]:
        if not np.array_equal(counts, tables[0][1]):
            raise InputError(f"{tables[0][0]} and {file} hold different nodes of the same data: remove the wrong one")


def _read_settings(folder: Path) -> Json:
    if runs := [str(file.parent) for file in sorted(folder.glob("runs/*/settings.json"))]:
        raise InputError(f"{folder} is a project, but a report is about runs: {', '.join(runs)}")
    if (folder / "comparison.json").is_file():
        raise InputError(f"{folder} is a comparison, which has its pages already, but a report is about runs")
    content = stored.read(folder / "settings.json", stored.Settings)
    if not (folder / "result.json").exists():
        raise InputError(unfinished(folder))
    return content


def _check_same_data(*runs: _Run) -> None:
    """Refuses runs on different data. Without a fingerprint, the clients and their test nodes decide."""
    prints = [content["fingerprint"] for _, content in runs]
    if None not in prints:
        same, what = prints[0] == prints[1], "fingerprints " + " and ".join(f"{value[:12]}…" for value in prints)
    else:
        first, second = (_test_nodes(folder, content) for folder, content in runs)
        same, what = first == second, "other numbers of test nodes"
        if first.keys() != second.keys():
            what = f"clients {', '.join(first)} and {', '.join(second)}"
    if not same:
        raise InputError(
            f"{runs[1][0]} was run on different data from {runs[0][0]} ({what}), "
            "but a report compares runs on the same federation"
        )


def _test_nodes(folder: Path, content: Json) -> dict[str, int]:
    """How many test nodes each client has; the share is the same under every seed."""
    file = folder / f"seed-{content['run']['seeds'][0]}" / "result.json"
    rows: Json = stored.read(file, stored.Seed)["clients"]
    return {client: int(row["nodes"]) for client, row in rows.items()}


def _identity(content: Json) -> str:
    """Everything that decides a result, except the data and the seeds."""
    run = {name: value for name, value in content["run"].items() if name not in ("seeds", "values", "preset")}
    return json.dumps([content["settings"], run], sort_keys=True)


def _seeds(runs: Sequence[_Run]) -> tuple[SeedRun, ...]:
    found: dict[int, SeedRun] = {}
    for folder, content in runs:
        for seed in content["run"]["seeds"]:
            if seed in found:
                raise InputError(
                    f"{folder} holds seed {seed} of {content['algorithm']}, but so does {found[seed].source}: "
                    "each seed may be given once"
                )
            found[seed] = _read_seed(folder, seed)
    return tuple(found[seed] for seed in sorted(found))


def _read_seed(run: Path, seed: int) -> SeedRun:
    folder = run / f"seed-{seed}"
    metrics, records = stored.read_seed(folder)
    table, proxy = folder / nodes.FILE, folder / proxies.FILE
    return SeedRun(
        seed,
        str(run),
        metrics,
        records,
        NodeTable.load(table) if table.exists() else None,
        ClassProxies.load(proxy) if proxy.exists() else None,
    )


def _method_of(row: Row) -> Contender:
    """A row of a comparison; its settings come from its first cell."""
    cell, seeds = row.ended[0], sorted(row.results)
    header = row.results[seeds[0]].content
    kept = ("algorithm", "backbone", "settings", "federation", "versions", "dataset")
    content = {
        **{name: header[name] for name in kept},
        "fingerprint": header["graphs"],
        "started": None,
        "finished": max(row.results[seed].content["finished"] for seed in seeds),
        "source": cell.data.to_json(),
        "run": {**asdict(cell.run), "seeds": seeds},
    }
    files = {each.seed: each.path.name for each in row.ended}
    runs = tuple(_seed_of(row.results[seed], files[seed]) for seed in seeds)
    return Contender(row.method, (content,), runs)


def _seed_of(result: CellResult, source: str) -> SeedRun:
    curves: Json = result.content["curves"]
    records = [
        {"round": i + 1, **{part: {name: curves[part][name][i] for name in CURVES} for part in curves}}
        for i in range(result.metrics["rounds"])
    ]
    return SeedRun(result.seed, source, result.metrics, records, result.nodes, result.proxies)


def _labels(contents: list[Json]) -> list[str]:
    """Short names: the algorithm, and what else distinguishes methods."""
    several = len({content["backbone"] for content in contents}) > 1
    names = [f"{c['algorithm']} · {c['backbone']}" if several else str(c["algorithm"]) for c in contents]
    labels = []
    for name, content in zip(names, contents, strict=True):
        twins = [other for twin, other in zip(names, contents, strict=True) if twin == name]
        values = content["settings"]
        differing = [key for key in values if any(other["settings"].get(key) != values[key] for other in twins)]
        labels.append(" ".join([name, *(f"{key}={values[key]}" for key in differing)]))
    return [label if labels.count(label) == 1 else f"{label} #{i + 1}" for i, label in enumerate(labels)]


def _reference(methods: Sequence[Contender], wanted: str | None) -> str | None:
    names = list(dict.fromkeys([*(m.algorithm for m in methods), *(m.label for m in methods)]))
    if wanted is not None and wanted not in names:
        raise unknown("reference", wanted, names)
    if len(methods) == 1:
        return None
    if wanted is not None:
        return wanted
    if "local" in names:
        return "local"
    # With several backbones its algorithm, so that each method meets it on its own backbone.
    several = len({method.content["backbone"] for method in methods}) > 1
    return methods[0].algorithm if several else methods[0].label
