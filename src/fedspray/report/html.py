"""One run, or several on the same federation, as one HTML file that needs nothing else.

The page needs no network: its style, its script, the chart library (plotly.js, compressed) and
all numbers are inside.
"""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedspray.display import count, percent
from fedspray.evaluation.metrics import METRICS, Metric
from fedspray.experiment import knobs
from fedspray.files import Json
from fedspray.report import findings
from fedspray.report.card import Card
from fedspray.report.contents import cost, make_cards, page_data, shows
from fedspray.report.files import write_file
from fedspray.report.methods import Comparison, Contender, read_comparison
from fedspray.report.tables import best_of
from fedspray.runs.leaves import of_settings

ATTACKS = {
    "attack": "attack",
    "link": "links",
    "nodes": "training nodes",
    "measure": "measure",
    "value": "score",
    "guess": "guess",
    "source": "found from",
}
"""Columns of the file that `fedspray attack --run` writes, and their titles."""


def write_report(folders: Sequence[str | Path], path: str | Path, *, reference: str | None = None) -> Json:
    """Writes the report of finished runs on the same federation; those that differ only in their seeds are one method.

    Returns ``methods``, ``reference`` (by default ``local``, or else the first run), ``finding`` (the headline) and
    ``bytes`` (the size of the file).
    """
    return write_page(read_comparison([Path(folder) for folder in folders], reference), path)


def write_page(comparison: Comparison, path: str | Path) -> Json:
    """Writes the report of a given comparison; see `write_report`."""
    cards = make_cards(comparison)
    page = render(comparison, cards)
    write_file(Path(path), page)
    sentence, careful = finding(comparison, cards), caution(comparison, cards)
    return {
        "methods": [method.label for method in comparison.methods],
        "reference": comparison.reference,
        "finding": f"{sentence} Caution: {careful}" if careful else sentence,
        "bytes": len(page.encode()),
    }


def finding(comparison: Comparison, cards: Sequence[Card | None]) -> str:
    """The headline of the page."""
    known = [card for card in cards if card is not None]
    if not any(card.cell(None).tests for card in known) and any(method.kept_back for method in comparison.methods):
        return findings.kept_back(comparison.methods)
    if comparison.reference is not None and not any(card.reference or card.coarse for card in known):
        return findings.apart(comparison.reference, comparison.methods)
    return findings.headline(known, comparison.clients)


def caution(comparison: Comparison, cards: Sequence[Card | None]) -> str:
    """Cautions about the headline; may be empty."""
    first = findings.named([card for card in cards if card is not None])
    return findings.caution(comparison.methods, first, comparison.clients)


def render(comparison: Comparison, cards: Sequence[Card | None]) -> str:
    """The page as text."""
    methods = comparison.methods
    compared = [card for card in cards if card and card.reference]
    private = [(m.label, m.seeds[0].metrics["privacy"]) for m in methods if "privacy" in m.seeds[0].metrics]
    return fill_template(
        "page.html",
        script=read_part("page.js"),
        data=script_safe(page_data(comparison, cards)),
        plotly=plotly(),
        title=_title(comparison),
        subtitle=_subtitle(comparison),
        finding=finding(comparison, cards),
        caution=caution(comparison, cards),
        headline=headline_rows(comparison, cards),
        columns=headline_metrics(comparison),
        uneven=len({len(method.seeds) for method in methods}) > 1,
        other_seeds=len({frozenset(run.seed for run in method.seeds) for method in methods}) > 1,
        reference=comparison.reference,
        lines=[(card.method, findings.line(card, comparison.clients)) for card in compared],
        num_cells=sum(int((card.counts[0, ..., 0] > 0).sum()) for card in compared),
        has_card=any(card and shows(card, comparison) for card in cards),
        coarse=any(card and card.coarse for card in cards),
        privacy=[(label, findings.privacy(spent)) for label, spent in private],
        hidden=[m.label for m in methods if m.kept_back],
        has_curves=any(m.kept_back != "all" for m in methods),
        has_clients=any(m.kept_back is None for m in methods),
        has_proxies=any(seed.proxies is not None for method in methods for seed in method.seeds),
        federation=comparison.federation,
        classes=comparison.classes,
        attacks=[(m.label, rows) for m in methods if (rows := _attacks(m))],
        leaves=[(m.label, of_settings(m.content, comparison.federation)) for m in methods],
        costs=[(m.label, cost(m, len(comparison.clients))) for m in methods],
        settings=settings_rows(methods),
        runs=[_provenance(method) for method in methods],
        first=methods[0].content,
    )


def _attacks(method: Contender) -> list[dict[str, str]]:
    """The rows that `fedspray attack --run` wrote beside a method's runs, if it was asked to."""
    files = [Path(source) / "attacks.csv" for source in dict.fromkeys(seed.source for seed in method.seeds)]
    lines = [line for file in files if file.is_file() for line in csv.DictReader(file.read_text().splitlines())]
    shown = {name: title for name, title in ATTACKS.items() if any(line.get(name) for line in lines)}
    return [{title: _short(line.get(name) or "") for name, title in shown.items()} for line in lines]


def _short(text: str) -> str:
    """Numbers to three digits."""
    return f"{float(text):.3f}" if re.fullmatch(r"-?\d+\.\d{4,}", text) else text


def fill_template(name: str, **values: Any) -> str:
    """A page from its template, with the style; everything that comes from data is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedspray.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(style=read_part("style.css"), **values)


def headline_metrics(comparison: Comparison) -> list[Metric]:
    """The columns of the headline table, without metrics that no result has."""
    known = {name for method in comparison.methods for seed in method.seeds for name in seed.metrics}
    return [each for each in METRICS.values() if each.headline and each.name in known]


def headline_rows(comparison: Comparison, cards: Sequence[Card | None]) -> list[Json]:
    """One row per method: mean ± standard deviation in percent, whether it is the best, and the minority gain."""
    methods = comparison.methods
    seeds = [[run.seed for run in method.seeds] for method in methods]
    columns = headline_metrics(comparison)
    best = {m.name: best_of([m.score(each.spread(m.name)["mean"]) for each in methods], seeds) for m in columns}
    rows = []
    for i, (method, card) in enumerate(zip(methods, cards, strict=True)):
        difference = card.cell().difference if card is not None and card.reference is not None else None
        spreads = [(method.spread(name), i in best[name]) for name in best]
        cells = [
            {"mean": percent(s["mean"]), "spread": percent(s["std"]) if s["std"] is not None else "", "best": b}
            for s, b in spreads
        ]
        row: Json = {"label": method.label, "seeds": len(method.seeds), "cells": cells, "gain": None, "verdict": None}
        row["is_reference"] = comparison.is_reference(method)
        if difference is not None:
            gain, low, high = map(findings.points, (difference.value, difference.low, difference.high))
            row |= {"gain": gain, "interval": f"{low} to {high}", "verdict": difference.verdict}
        rows.append(row)
    return rows


def settings_rows(methods: Sequence[Contender]) -> list[Json]:
    """Every setting of every method, those that differ first; a method without the setting has None."""
    settings = [method.content["settings"] for method in methods]
    rows = []
    for name in dict.fromkeys(name for own in settings for name in own):
        held = [own[name] for own in settings if name in own]
        shown = [json.dumps(own[name], ensure_ascii=False).strip('"') if name in own else None for own in settings]
        rows.append({"name": name, "values": shown, "differs": any(value != held[0] for value in held)})
    return sorted(rows, key=lambda row: not row["differs"])


def commands_of(content: Mapping[str, Any]) -> list[str]:
    """The commands that repeat the run: one, or one per seed; none if it was started from Python."""
    source, run = content["source"], content["run"]
    if source is None:
        return []
    words, known = ["fedspray", "run"], knobs()
    settings = {name: value for name, value in run["values"].items() if name not in known}
    plain = {**source, **{name: value for name, value in run.items() if name in known}, **run["values"]}
    for name, value in plain.items():
        always = name in ("dataset", "algorithm", "backbone")
        if name in known and name != "seeds" and (always or value != known[name].default):
            words += flag_words(known[name].flag, value)
    words += flag_words("--set", settings)
    seeds = run["seeds"]
    if len(seeds) > 1 and seeds == list(range(len(seeds))):
        return [shlex.join([*words, "--seeds", str(len(seeds))])]
    return [shlex.join([*words, "--seed", str(seed)]) for seed in seeds]


def flag_words(flag: str, value: Any) -> list[str]:
    """A flag with its value, as on a command line."""
    if isinstance(value, Mapping):
        return [word for name, each in value.items() for word in (flag, f"{name}={each}")]
    if isinstance(value, list):
        return [word for each in value for word in (flag, str(each))]
    return [flag] if value is True else [flag, str(value)]


def _title(comparison: Comparison) -> str:
    content = comparison.methods[0].content
    if len(comparison.methods) == 1:
        return f"{content['algorithm']} on {content['dataset']}, {content['backbone']}"
    backbones = ", ".join(dict.fromkeys(m.content["backbone"] for m in comparison.methods))
    return f"{len(comparison.methods)} methods on {content['dataset']}, {backbones}"


def _subtitle(comparison: Comparison) -> str:
    parts = [count(len(comparison.clients), "client")]
    if comparison.federation is not None:
        parts.append(count(comparison.federation["total_nodes"], "node"))
        parts.append(f"{count(comparison.federation['total_edges'], 'edge')} inside clients")
    parts.append(count(len(comparison.classes), "class", "classes"))
    parts.append(_range("round", {seed.metrics["rounds"] for method in comparison.methods for seed in method.seeds}))
    parts.append(_range("seed", {len(method.seeds) for method in comparison.methods}))
    dates = [m.content["started"] or m.content["finished"] for m in comparison.methods]
    parts.append(f"{max(map(datetime.fromisoformat, dates)):%Y-%m-%d}")
    return " · ".join(parts)


def _range(what: str, numbers: set[int]) -> str:
    ends = dict.fromkeys((min(numbers), max(numbers)))
    return f"{'–'.join(map(str, ends))} {what}{'' if numbers == {1} else 's'}"


def _provenance(method: Contender) -> Json:
    return {
        "label": method.label,
        "seeds": [seed.seed for seed in method.seeds],
        "best_rounds": [seed.metrics["best_round"] for seed in method.seeds],
        "sources": list(dict.fromkeys(Path(seed.source).name for seed in method.seeds)),
        "commands": [command for content in method.contents for command in commands_of(content)],
        "started": method.content["started"],
        "finished": method.content.get("finished"),
        "versions": method.content["versions"],
    }


def read_part(name: str) -> str:
    """A file of the page."""
    return (resources.files("fedspray.report") / "page" / name).read_text(encoding="utf-8")


def script_safe(data: Json) -> str:
    """JSON that is safe inside a script element: it contains no ``<``."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


@cache
def plotly() -> str:
    """plotly.js, compressed: 2 MB instead of 4.8; the browser unpacks it."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
