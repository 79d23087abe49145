"""From finished cells to conclusions: one JSON object that every table is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

from fedspray.evaluation.metrics import METRICS
from fedspray.files import Json
from fedspray.runs.result import spread
from fedspray.studies.cells import Row
from fedspray.studies.grid import Outcome
from fedspray.studies.results import CellResult
from fedspray.studies.statistics import COMPARED, Tally, bootstrap, holm, paired_t, wilcoxon

TIE = 0.001
"""Accuracies that differ by no more than this are a tie."""

COSTS = ("bytes_up", "bytes_down", "seconds", "cpu_seconds")


@dataclass(frozen=True)
class Entry:
    """A row of the plan and its finished cells, by seed."""

    row: Row
    outcomes: Sequence[Outcome]
    results: Mapping[int, CellResult] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row, outcomes: Sequence[Outcome]) -> Entry:
        """Sorts out which cells were finished."""
        return cls(row, outcomes, {o.cell.seed: o.result for o in outcomes if o.result is not None})

    @property
    def place(self) -> tuple[str, str]:
        """What methods are compared within."""
        return self.row.dataset, self.row.backbone


def summarise(entries: Sequence[Entry], reference: str, *, draws: int = 2000, tuning: Sequence[Json] = ()) -> Json:
    """The whole comparison as one JSON object.

    Args:
        entries: all rows.
        reference: the method that the others are compared with.
        draws: of the bootstrap; 0 leaves it out.
        tuning: the records of the searches, to be kept along.
    """
    return {
        "reference": reference,
        "seeds": sorted({seed for entry in entries for seed in entry.results}),
        "bootstrap_draws": draws,
        "rows": [figures(entry) for entry in entries],
        "tests": [test for group in _groups(entries) for test in _tests(group, reference, draws)],
        "win_tie_loss": _tallies(entries, reference),
        "tuning": list(tuning),
        "failures": [
            {
                **{name: getattr(o.cell, name) for name in ("dataset", "method", "backbone", "seed")},
                "reason": o.failure,
            }
            for entry in entries
            for o in entry.outcomes
            if o.failure is not None
        ],
    }


def figures(entry: Entry) -> Json:
    """One method on one data set with one backbone: figures over seeds."""
    metrics = [entry.results[seed].metrics for seed in sorted(entry.results)]
    values = {name: [m.get(name) for m in metrics] for name in (*METRICS, "best_round")}
    return {
        "dataset": entry.row.dataset,
        "backbone": entry.row.backbone,
        "method": entry.row.method,
        "algorithm": entry.row.run.algorithm,
        "preset": entry.row.run.preset,
        "settings": entry.outcomes[0].cell.settings,
        "seeds": sorted(entry.results),
        **{name: {**spread(found), "values": found} for name, found in values.items()},
        **{name: spread([m[name] for m in metrics])["mean"] for name in COSTS},
        "client_failures": sum(m["failures"] for m in metrics),
        "cells": [o.path.name for o in entry.outcomes if o.result is not None],
    }


def _tests(group: Sequence[Entry], reference: str, draws: int) -> list[Json]:
    """Every other method against the reference, on one data set with one backbone."""
    base = next(entry for entry in group if entry.row.method == reference)
    others = [entry for entry in group if entry is not base and _common(entry, base)]
    intervals = {}
    if draws and others:
        tables = {e.row.method: {seed: e.results[seed].nodes for seed in _common(e, base)} for e in (base, *others)}
        intervals = bootstrap(tables, reference, draws=draws)
    tests: list[Json] = []
    for metric in COMPARED:
        rows: list[Json] = []
        for entry in others:
            differences = _differences(entry, base, metric)
            interval = intervals.get((entry.row.method, metric))
            rows.append(
                {
                    "dataset": entry.row.dataset,
                    "backbone": entry.row.backbone,
                    "method": entry.row.method,
                    "metric": metric,
                    "pairs": len(differences),
                    "difference": fmean(differences) if differences else None,
                    "low": None if interval is None else interval.low,
                    "high": None if interval is None else interval.high,
                    "t_p": paired_t(differences),
                    "wilcoxon_p": wilcoxon(differences),
                }
            )
        for name in ("t_p", "wilcoxon_p"):
            for row, corrected in zip(rows, holm([row[name] for row in rows]), strict=True):
                row[f"{name}_holm"] = corrected
        tests += rows
    return tests


def _tallies(entries: Sequence[Entry], reference: str) -> list[Json]:
    """How often each method beats the reference: over clients, and over pairs of data set and backbone."""
    bases = {entry.place: entry for entry in entries if entry.row.method == reference}
    methods = list(dict.fromkeys(entry.row.method for entry in entries if entry.row.method != reference))
    rows = []
    for method in methods:
        pairs = [(entry, bases[entry.place]) for entry in entries if entry.row.method == method]
        for metric in COMPARED:
            by_client = [value for entry, base in pairs for value in _client_differences(entry, base, metric)]
            by_place = [fmean(found) for entry, base in pairs if (found := _differences(entry, base, metric))]
            rows.append(
                {
                    "method": method,
                    "metric": metric,
                    "clients": asdict(Tally.of(by_client, TIE)),
                    "tables": asdict(Tally.of(by_place, TIE)),
                }
            )
    return rows


def _differences(entry: Entry, base: Entry, metric: str) -> list[float]:
    pairs = [(entry.results[s].metrics[metric], base.results[s].metrics[metric]) for s in _common(entry, base)]
    return [a - b for a, b in pairs if a is not None and b is not None]


def _client_differences(entry: Entry, base: Entry, metric: str) -> list[float]:
    """Each client's difference, averaged over seeds."""
    by_client: dict[str, list[float]] = {}
    for seed in _common(entry, base):
        ours, theirs = entry.results[seed].metrics["clients"], base.results[seed].metrics["clients"]
        for client in ours:
            a, b = ours[client][metric], theirs.get(client, {}).get(metric)
            if a is not None and b is not None:
                by_client.setdefault(client, []).append(a - b)
    return [fmean(values) for values in by_client.values()]


def _common(entry: Entry, base: Entry) -> list[int]:
    """Seeds that both have, with figures of the same clients: those of a client that failed are missing."""

    def clients(of: Entry, seed: int) -> set[str]:
        return set(of.results[seed].metrics["clients"])

    both = sorted(set(entry.results) & set(base.results))
    return [seed for seed in both if clients(entry, seed) == clients(base, seed)]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.place, []).append(entry)
    return list(groups.values())
