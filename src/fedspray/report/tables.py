"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedspray.display import percent, percent_spread
from fedspray.evaluation.metrics import METRICS


def run_table(summary: Mapping[str, Any]) -> Table:
    """One run: a row for each seed, and their mean ± standard deviation."""
    title = f"{summary['dataset']}, {summary['algorithm']}, {summary['backbone']}: test accuracy in %"
    names = ("overall", "minority", "minority_client_mean")
    columns = ("seed", "round", *(METRICS[name].title for name in names), _KILOBYTES)
    table = Table(*columns, title=escape(title), title_justify="left")
    for row in summary["seeds"]:
        cells = (percent(row[name]) for name in names)
        sent = kilobytes_up({**summary, "seeds": [row]})
        table.add_row(str(row["seed"]), str(row["best_round"]), *cells, f"{sent:,.1f}")
    if len(summary["seeds"]) > 1:
        table.add_section()
        cells = (percent_spread(summary[name]) for name in names)
        table.add_row("mean", "", *cells, f"{kilobytes_up(summary):,.1f}", style="bold")
    return table


def comparison_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Several runs on the same data side by side, the best of each column in bold."""
    title = f"{summaries[0]['dataset']}, {summaries[0]['backbone']}: test accuracy in %"
    table = Table("algorithm", "overall", "minority", _KILOBYTES, title=escape(title), title_justify="left")
    best = {name: best_of([s[name]["mean"] for s in summaries]) for name in ("overall", "minority")}
    for i, summary in enumerate(summaries):
        texts = {name: percent_spread(summary[name]) for name in best}
        cells = [f"[bold]{text}[/bold]" if i in best[name] else text for name, text in texts.items()]
        table.add_row(escape(summary["algorithm"]), *cells, f"{kilobytes_up(summary):,.1f}")
    return table


def attack_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Scores of attacks beside those of a guess."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(_shown(row[name])) for name in columns))
    return table


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)


def kilobytes_up(summary: Mapping[str, Any]) -> float:
    """What a client sends in a round, on average."""
    return fmean(kilobytes(row, summary["federation"]["num_clients"])[0] for row in summary["seeds"])


def kilobytes(metrics: Mapping[str, Any], num_clients: int) -> tuple[float, float]:
    """What a client sends and receives in a round, on average.

    One more message goes down than up: what the last round produced, for evaluation.
    """
    up, down = metrics["bytes_up"] / metrics["rounds"], metrics["bytes_down"] / (metrics["rounds"] + 1)
    return up / num_clients / 1000, down / num_clients / 1000


def best_of(values: Sequence[float | None], seeds: Sequence[Sequence[int]] | None = None) -> set[int]:
    """Which shares are the largest to two digits in percent. A single one doesn't count.

    Those with fewer seeds are excluded: a single seed may be an easy one.
    """
    full = range(len(values)) if seeds is None else with_all_seeds(seeds)
    shown = {i: round(100 * value, 2) for i in full if (value := values[i]) is not None}
    return {i for i, value in shown.items() if value == max(shown.values())} if len(shown) > 1 else set()


def with_all_seeds(seeds: Sequence[Sequence[int]]) -> list[int]:
    """Which lists of seeds are the longest."""
    most = max((sorted(own) for own in seeds), key=lambda own: len(own), default=[])
    return [i for i, own in enumerate(seeds) if sorted(own) == most]


_KILOBYTES = "kB up per round and client"
