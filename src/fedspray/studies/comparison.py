"""From finished cells to conclusions: the JSON object behind every table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedspray.evaluation.metrics import METRICS
from fedspray.files import Json
from fedspray.runs.result import spread
from fedspray.studies.cells import Row, by_place
from fedspray.studies.statistics import COMPARED, bootstrap, holm, paired_t, tally, wilcoxon

TIE = 0.001
"""Accuracies that differ by no more than this are a tie."""

COSTS = ("bytes_up", "bytes_down", "seconds", "cpu_seconds")


def summarise(rows: Sequence[Row], reference: str, *, draws: int = 2000, tuning: Sequence[Json] = ()) -> Json:
    """The whole comparison as one JSON object, with ``tuning``, the records of searches; 0 draws: no bootstrap."""
    return {
        "reference": reference,
        "seeds": sorted({seed for row in rows for seed in row.results}),
        "bootstrap_draws": draws,
        "rows": [figures(row) for row in rows],
        "tests": [test for group in by_place(rows).values() for test in _tests(group, reference, draws)],
        "win_tie_loss": _tallies(rows, reference),
        "tuning": list(tuning),
        "failures": [
            {
                **{name: getattr(cell, name) for name in ("dataset", "method", "backbone", "seed")},
                "reason": cell.failure,
            }
            for row in rows
            for cell in row.ended
            if cell.failure is not None
        ],
    }


def figures(row: Row) -> Json:
    """One method on one data set with one backbone: figures over seeds."""
    metrics = [row.results[seed].metrics for seed in sorted(row.results)]
    values = {name: [m.get(name) for m in metrics] for name in (*METRICS, "best_round")}
    return {
        "dataset": row.dataset,
        "backbone": row.backbone,
        "method": row.method,
        "algorithm": row.run.algorithm,
        "preset": row.run.preset,
        "settings": row.settings,
        "seeds": sorted(row.results),
        **{name: {**spread(found), "values": found} for name, found in values.items()},
        **{name: spread([m[name] for m in metrics])["mean"] for name in COSTS},
        "client_failures": sum(m["failures"] for m in metrics),
        "cells": [cell.path.name for cell in row.ended if cell.result is not None],
    }


def _tests(group: Sequence[Row], reference: str, draws: int) -> list[Json]:
    """Every other method against the reference, on one data set with one backbone."""
    base = next(row for row in group if row.method == reference)
    others = [row for row in group if row is not base and _common(row, base)]
    intervals = {}
    if draws and others:
        tables = {e.method: {seed: e.results[seed].nodes for seed in _common(e, base)} for e in (base, *others)}
        intervals = bootstrap(tables, reference, draws=draws)
    tests: list[Json] = []
    for metric in COMPARED:
        lines: list[Json] = []
        for row in others:
            differences = _differences(row, base, metric)
            low, high = intervals.get((row.method, metric), (None, None))
            lines.append(
                {
                    "dataset": row.dataset,
                    "backbone": row.backbone,
                    "method": row.method,
                    "metric": metric,
                    "pairs": len(differences),
                    "difference": fmean(differences) if differences else None,
                    "low": low,
                    "high": high,
                    "t_p": paired_t(differences),
                    "wilcoxon_p": wilcoxon(differences),
                }
            )
        for name in ("t_p", "wilcoxon_p"):
            for line, corrected in zip(lines, holm([line[name] for line in lines]), strict=True):
                line[f"{name}_holm"] = corrected
        tests += lines
    return tests


def _tallies(rows: Sequence[Row], reference: str) -> list[Json]:
    """How often each method beats the reference: over clients, and over pairs of data set and backbone."""
    bases = {row.place: row for row in rows if row.method == reference}
    methods = list(dict.fromkeys(row.method for row in rows if row.method != reference))
    lines = []
    for method in methods:
        pairs = [(row, bases[row.place]) for row in rows if row.method == method]
        for metric in COMPARED:
            by_client = [value for row, base in pairs for value in _client_differences(row, base, metric)]
            by_place = [fmean(found) for row, base in pairs if (found := _differences(row, base, metric))]
            lines.append(
                {
                    "method": method,
                    "metric": metric,
                    "clients": tally(by_client, TIE),
                    "tables": tally(by_place, TIE),
                }
            )
    return lines


def _differences(row: Row, base: Row, metric: str) -> list[float]:
    pairs = [(row.results[s].metrics[metric], base.results[s].metrics[metric]) for s in _common(row, base)]
    return [a - b for a, b in pairs if a is not None and b is not None]


def _client_differences(row: Row, base: Row, metric: str) -> list[float]:
    """Each client's difference, averaged over seeds."""
    by_client: dict[str, list[float]] = {}
    for seed in _common(row, base):
        ours, theirs = row.results[seed].metrics["clients"], base.results[seed].metrics["clients"]
        for client in ours:
            a, b = ours[client][metric], theirs.get(client, {}).get(metric)
            if a is not None and b is not None:
                by_client.setdefault(client, []).append(a - b)
    return [fmean(values) for values in by_client.values()]


def _common(row: Row, base: Row) -> list[int]:
    """Seeds both have, with figures of the same clients (a failed client's are missing)."""

    def clients(of: Row, seed: int) -> set[str]:
        return set(of.results[seed].metrics["clients"])

    both = sorted(set(row.results) & set(base.results))
    return [seed for seed in both if clients(row, seed) == clients(base, seed)]
