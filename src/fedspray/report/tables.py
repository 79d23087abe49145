"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table


def run_table(summary: Mapping[str, Any]) -> Table:
    """One run: a row for each seed, and their mean ± standard deviation."""
    title = f"{summary['dataset']}, {summary['algorithm']}, {summary['backbone']}: test accuracy in %"
    columns = ("seed", "round", "overall", "minority", "minority, mean of clients", _KILOBYTES)
    table = Table(*columns, title=escape(title), title_justify="left")
    names = ("overall", "minority", "minority_client_mean")
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
    best = {name: max(s[name]["mean"] or 0 for s in summaries) for name in ("overall", "minority")}
    for summary in summaries:
        cells = [
            f"[bold]{percent_spread(summary[name])}[/bold]"
            if summary[name]["mean"] == best[name]
            else percent_spread(summary[name])
            for name in ("overall", "minority")
        ]
        table.add_row(escape(summary["algorithm"]), *cells, f"{kilobytes_up(summary):,.1f}")
    return table


def kilobytes_up(summary: Mapping[str, Any]) -> float:
    """What a client sends in a round, on average."""
    total = sum(row["bytes_up"] / row["rounds"] for row in summary["seeds"])
    return float(total / len(summary["seeds"]) / summary["federation"]["num_clients"] / 1000)


def percent(value: float | None) -> str:
    """``87.65``, or n/a."""
    return "n/a" if value is None else f"{100 * value:.2f}"


def percent_spread(value: Mapping[str, float | None]) -> str:
    """``87.65 ± 0.31``."""
    if value["std"] is None:
        return percent(value["mean"])
    return f"{percent(value['mean'])} ± {percent(value['std'])}"


_KILOBYTES = "kB up per round and client"
