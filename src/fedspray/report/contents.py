"""What a report's charts are drawn from: plain JSON, computed once, here."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from fedspray.evaluation.counting import BUCKET_NAMES
from fedspray.files import Json
from fedspray.report import findings
from fedspray.report.card import GROUPS, Card, Tally, count_card, make_card
from fedspray.report.methods import Comparison, Contender
from fedspray.report.projection import explore
from fedspray.report.tables import kilobytes
from fedspray.runs.result import spread

MAX_POINTS = 400
"""Rounds drawn in a learning curve; of longer runs every n-th is shown."""


def page_data(comparison: Comparison, cards: Sequence[Card | None]) -> Json:
    """Everything that the page's script needs."""
    data = {
        "methods": [{"label": m.label, "reference": comparison.is_reference(m)} for m in comparison.methods],
        "clients": comparison.clients,
        "classes": comparison.classes,
        "buckets": list(BUCKET_NAMES),
        "curves": [_curves(method) for method in comparison.methods],
        "perClient": {name: _per_client(comparison, name) for name in ("minority", "majority", "overall")},
        "cards": [
            _card(i, card, comparison.clients)
            for i, card in enumerate(cards)
            if card is not None and shows(card, comparison)
        ],
        "proxies": _proxies(comparison),
        "federation": comparison.federation,
        "cost": [cost(method, len(comparison.clients)) for method in comparison.methods],
    }
    rounded: Json = _rounded(data)
    return rounded


def shows(card: Card, comparison: Comparison) -> bool:
    """Whether the page has a column for a card: where methods are compared, the reference needs none."""
    compared = card.coarse or card.reference is not None or comparison.reference is None
    return compared and card.cell(None).tests > 0


def make_cards(comparison: Comparison) -> list[Card | None]:
    """One card for each method, in their order; without a reference, and of references, they show accuracies.

    None for methods whose nodes were not kept, or whose backbone has no reference. Where no method's nodes were kept,
    all cards are made from counts.
    """
    if all(seed.nodes is None for method in comparison.methods for seed in method.seeds):
        return [count_card(method, comparison.clients) for method in comparison.methods]
    sizes = len(comparison.clients), len(comparison.classes)
    references = [(method, comparison.reference_of(method)) for method in comparison.methods]
    return [
        None
        if reference is None and comparison.reference is not None and not comparison.is_reference(method)
        else make_card(method, reference, *sizes)
        for method, reference in references
    ]


def majority_accuracy(row: Json) -> float | None:
    """A client's accuracy on its majority nodes, from its accuracies on all and on minority nodes."""
    rest = row["nodes"] - row["minority_nodes"]
    if not rest:
        return None
    right = row["overall"] * row["nodes"] - (row["minority"] or 0.0) * row["minority_nodes"]
    return float(right / rest)


def cost(method: Contender, num_clients: int) -> Json:
    """Bytes per client and round, and seconds per round, on average over seeds."""
    rows = [seed.metrics for seed in method.seeds]
    rounds = sum(row["rounds"] for row in rows)
    up, down = (fmean(values) for values in zip(*(kilobytes(row, num_clients) for row in rows), strict=True))
    return {
        "up": 1000 * up,
        "down": 1000 * down,
        "evaluation": sum(row["bytes_evaluation"] for row in rows) / rounds / num_clients,
        "seconds": sum(row["seconds"] for row in rows) / rounds,
        "cpu_seconds": sum(row["cpu_seconds"] for row in rows) / rounds,
        "failures": sum(row["failures"] for row in rows),
        "total_bytes": sum(row["bytes_up"] + row["bytes_down"] for row in rows) / len(rows),
        "total_seconds": sum(row["seconds"] for row in rows) / len(rows),
    }


def _curves(method: Contender) -> Json:
    shortest = min(len(seed.records) for seed in method.seeds)
    step = -(-shortest // MAX_POINTS)
    shown = sorted({*range(0, shortest, step), shortest - 1})
    return {
        "rounds": [method.seeds[0].records[i]["round"] for i in shown],
        "best": [seed.metrics["best_round"] for seed in method.seeds],
        **{
            part: {
                name: _band([[seed.records[i][part][name] for i in shown] for seed in method.seeds])
                for name in ("overall", "minority", "loss")
            }
            for part in ("test", "val", "train")
        },
    }


def _band(rows: list[list[float | None]]) -> Json:
    """Mean, smallest and largest value over seeds, for each round; None where a seed has none."""
    values = np.array(rows, dtype=np.float64)  # [S, R], None becomes NaN
    known = ~np.isnan(values.sum(axis=0))
    reduced = {"mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
    return {
        name: [float(v) if ok else None for v, ok in zip(column, known, strict=True)]
        for name, column in reduced.items()
    }


def _per_client(comparison: Comparison, name: str) -> list[list[Json]]:
    """[method][client]: mean and standard deviation over seeds."""
    value = majority_accuracy if name == "majority" else itemgetter(name)
    seeds = [[seed.metrics["clients"] for seed in method.seeds] for method in comparison.methods]
    return [
        [spread([value(rows[client]) for rows in of_method if client in rows]) for client in comparison.clients]
        for of_method in seeds
    ]


def _card(index: int, card: Card, clients: Sequence[str]) -> Json:
    num_clients, num_classes = card.counts.shape[1:3]
    single = card.reference is None
    return {
        "method": index,
        "reference": card.reference,
        "seeds": list(card.seeds),
        "line": "" if single else findings.line(card, clients),
        "where": "" if single else findings.where(card),
        "total": {name: _cell(card.cell(group), single) for name, group in _VIEWS.items()},
        "clients": {
            name: [_cell(card.cell(group, k), single) for k in range(num_clients)] for name, group in _VIEWS.items()
        },
        "buckets": {
            name: [_cell(card.cell(group, bucket=b), single) for b in range(len(BUCKET_NAMES))]
            for name, group in _VIEWS.items()
        },
        "rows": [
            {
                "client": k,
                "class": c,
                "group": group,
                "all": _cell(card.cell(group, k, c), single),
                "cells": [_cell(card.cell(group, k, c, b), single) for b in range(len(BUCKET_NAMES))],
            }
            for k in range(num_clients)
            for c in range(num_classes)
            for group in GROUPS
            if card.cell(group, k, c).tests
        ],
    }


_VIEWS: dict[str, str | None] = {"minority": "minority", "majority": "majority", "all": None}


def _cell(cell: Tally, single: bool) -> Json | None:
    """Percentages; ``value`` is the difference, or the accuracy where nothing is compared."""
    estimate = cell.accuracy if single else cell.difference
    accuracy, reference = cell.accuracy, cell.reference_accuracy
    if estimate is None or accuracy is None or reference is None:
        return None
    return {
        "nodes": cell.nodes,
        "tests": cell.tests,
        "accuracy": 100 * accuracy.value,
        "reference": None if single else 100 * reference.value,
        "value": 100 * estimate.value,
        "low": 100 * estimate.low,
        "high": 100 * estimate.high,
        "verdict": None if single else estimate.verdict,
    }


def _proxies(comparison: Comparison) -> list[Json]:
    found = []
    for index, method in enumerate(comparison.methods):
        for seed in method.seeds:
            sizes = [seed.metrics["clients"].get(client, {}).get("nodes", 0) for client in comparison.clients]
            explored = None if seed.proxies is None else explore(seed.proxies, sizes)
            if explored is not None:
                found.append({"method": index, "seed": seed.seed, "round": seed.metrics["best_round"], **explored})
    return found


def _rounded(value: Any) -> Any:
    """Five digits after the point are more than a chart can show, and keep the file small."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return value
