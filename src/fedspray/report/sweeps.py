"""The picture of a sweep: accuracy over one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedspray.report.figures import CLASS_COLOURS, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X<>"


def sweep_figure(summary: Mapping[str, Any]) -> Figure:
    """Overall and minority accuracy side by side: the mean over seeds as a line, ± one deviation as a band.

    A row may have published figures, in percent by metric; they are drawn as stars.
    """
    from matplotlib.figure import Figure

    lines: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in summary["rows"]:
        lines.setdefault((row["dataset"], row["backbone"], row["method"]), []).append(row)
    values = list(dict.fromkeys(row["value"] for row in summary["rows"]))
    positions, on_scale = _positions(values)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    panels = figure.subplots(1, len(summary["metrics"]), squeeze=False)[0]
    for axes, metric in zip(panels, summary["metrics"], strict=True):
        for index, (names, rows) in enumerate(lines.items()):
            label = ", ".join(name for i, name in enumerate(names) if len({line[i] for line in lines}) > 1)
            _draw(axes, metric, rows, positions, label or ", ".join(names), index)
        _scale(axes, values, positions, on_scale)
        axes.set_title(f"{metric} test accuracy", loc="left", fontweight="bold")
        axes.set_xlabel(summary["setting"])
        axes.yaxis.set_major_formatter("{x:.1f}%")
        axes.margins(x=0.04, y=0.12)
        tidy(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    figure.suptitle(_title(summary, lines), fontsize=12)
    return figure


def _draw(
    axes: Axes,
    metric: str,
    rows: Sequence[Mapping[str, Any]],
    positions: Mapping[Any, float],
    label: str,
    index: int,
) -> None:
    known = sorted((r for r in rows if r[metric]["mean"] is not None), key=lambda r: positions[r["value"]])
    x = [positions[row["value"]] for row in known]
    mean = [100 * row[metric]["mean"] for row in known]
    std = [100 * (row[metric]["std"] or 0) for row in known]
    colour = CLASS_COLOURS[index % len(CLASS_COLOURS)]
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(x, mean, color=colour, marker=MARKERS[index % len(MARKERS)], markersize=5, linewidth=1.6, label=label)
    published = [(positions[row["value"]], value) for row in rows if (value := row.get("published", {}).get(metric))]
    if published:
        axes.scatter(
            [place for place, _ in published],
            [value for _, value in published],
            marker="*",
            s=130,
            color=colour,
            edgecolors="black",
            linewidths=0.7,
            zorder=4,
            label=f"{label}, published",
        )


def _positions(values: Sequence[Any]) -> tuple[dict[Any, float], bool]:
    """Where values stand: numbers that are evenly spread by their size, all others one after another."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        steps = [b - a for a, b in zip(sorted(values), sorted(values)[1:], strict=False)]
        if max(steps) <= 3 * min(steps):
            return {value: float(value) for value in values}, True
        values = sorted(values)
    return {value: float(i) for i, value in enumerate(values)}, False


def _scale(axes: Axes, values: Sequence[Any], positions: Mapping[Any, float], on_scale: bool) -> None:
    if not on_scale or len(values) <= 8:
        axes.set_xticks([positions[value] for value in values], [f"{value}" for value in values])


def _title(summary: Mapping[str, Any], lines: Mapping[tuple[str, ...], Any]) -> str:
    shared = [names[0] for names in zip(*lines, strict=True) if len(set(names)) == 1]
    counts = [len(row["seeds"]) for row in summary["rows"]]
    seeds = f"{max(counts)} seeds, band: ± one standard deviation" if max(counts) > 1 else "one seed"
    return ", ".join(shared) + (": " if shared else "") + f"{summary['setting']}, {seeds}"
