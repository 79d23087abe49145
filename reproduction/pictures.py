"""Pictures of the reproduction, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedspray.report.figures import CLASS_COLOURS, OTHER_COLOUR, tidy
from reproduction.proposition import Separation, TwoClasses, class_means, embeddings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_NODES = 400
"""Of each class, in the picture of Proposition 1."""

DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)))
"""Styles of lines that share a colour."""


def bars_figure(
    title: str, clients: Sequence[str], bars: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> Figure:
    """Minority accuracy of each client, one bar for each model; the whiskers are ± one standard deviation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7.0, 1.1 * len(clients)), 4.2), layout="constrained")
    axes = figure.subplots()
    places, width = np.arange(len(clients)), 0.8 / len(bars)
    for index, (name, (means, stds)) in enumerate(bars.items()):
        shift = (index - (len(bars) - 1) / 2) * width
        spread = stds if any(stds) else None
        axes.bar(places + shift, means, width * 0.95, yerr=spread, label=name, color=CLASS_COLOURS[index], capsize=2)
    axes.set_xticks(places, clients)
    axes.set_ylabel("minority accuracy")
    axes.yaxis.set_major_formatter("{x:.0f}%")
    axes.set_title(title, loc="left", fontweight="bold")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=len(bars), frameon=False)
    return figure


def proposition_figure(
    case: TwoClasses, estimates: Sequence[tuple[TwoClasses, Mapping[str, Separation]]], seed: int = 0
) -> Figure:
    """Embeddings with a node's own neighbours and with s_c, the boundary and both distances; and all cases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    _draw_embeddings(left, case, "local", "own neighbours: x + h", "dist", seed)
    _draw_embeddings(middle, case, "sum", "global neighbours: x + s", "dist′", seed)
    limits = [np.array([axes.get_xlim(), axes.get_ylim()]) for axes in (left, middle)]
    low, high = np.min(limits, axis=0)[:, 0], np.max(limits, axis=0)[:, 1]
    for axes in (left, middle):
        axes.set_xlim(low[0], high[0])
        axes.set_ylim(low[1], high[1])
    _draw_cases(right, estimates)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=4, frameon=False, markerscale=1.6)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=3, frameon=False)
    return figure


def _draw_embeddings(axes: Axes, case: TwoClasses, kind: str, title: str, name: str, seed: int) -> None:
    """Nodes along μ1 - μ2 and one direction at a right angle to it."""
    embedded, labels = next(embeddings(case, kind, seed))
    means = class_means(case, seed)
    along = (means[0] - means[1]) / np.linalg.norm(means[0] - means[1])
    across = np.eye(len(along))[0] - along[0] * along
    across /= np.linalg.norm(across)
    points = embedded @ np.stack([along, across], axis=1)
    centres = np.stack([points[labels == c].mean(axis=0) for c in (0, 1)])
    middle = centres.mean(axis=0)
    for c in (0, 1):
        shown = points[labels == c][:SHOWN_NODES]
        axes.scatter(
            shown[:, 0], shown[:, 1], s=6, alpha=0.35, color=CLASS_COLOURS[c], linewidths=0, label=f"class {c + 1}"
        )
    axes.axvline(middle[0], color="black", linewidth=1.4, label="decision boundary")
    axes.scatter(centres[:, 0], centres[:, 1], marker="X", s=70, color="black", zorder=4, label="class means")
    for centre in centres:
        line = {"arrowstyle": "<->", "color": "black", "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (middle[0], centre[1]), centre, arrowprops=line, zorder=5)
    axes.annotate(
        f"{name} = {case.paper_distance(kind):.2f}",
        ((centres[0][0] + middle[0]) / 2, centres[0][1]),
        xytext=(0, 16),
        textcoords="offset points",
        ha="center",
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )
    axes.set_title(f"{title} ({case.name})", loc="left", fontweight="bold", fontsize=10)
    axes.set_xlabel("along μ1 − μ2")
    tidy(axes)


def _draw_cases(axes: Axes, estimates: Sequence[tuple[TwoClasses, Mapping[str, Separation]]]) -> None:
    groups = [(case, kind, found[kind]) for case, found in estimates for kind in ("local", "sum", "average")]
    places = np.arange(len(groups))
    axes.bar(places, [g[2].distance for g in groups], 0.7, color=OTHER_COLOUR, alpha=0.5, label="Monte Carlo")
    axes.scatter(places, [g[0].paper_distance(g[1]) for g in groups], marker="_", s=260, linewidths=2.2,
                 color=CLASS_COLOURS[5], label="the paper's formula", zorder=3)  # fmt: skip
    axes.scatter(places, [g[0].exact_distance(g[1]) for g in groups], marker="o", s=22,
                 color=CLASS_COLOURS[0], label="without presuming balance", zorder=4)  # fmt: skip
    words = {"local": "own", "sum": "sum", "average": "average"}
    axes.set_xticks(places, [words[g[1]] for g in groups], rotation=40, fontsize=8)
    for index, (case, _) in enumerate(estimates):
        axes.annotate(case.name.replace(", ", ",\n"), (3 * index + 1, 1), xycoords=("data", "axes fraction"),
                      ha="center", va="top", fontsize=8)  # fmt: skip
    axes.set_ylim(0, 1.3 * max(g[2].distance for g in groups))
    axes.set_title("distance to the boundary", loc="left", fontweight="bold", fontsize=10)
    tidy(axes)


def reach_figure(
    title: str,
    curves: Mapping[str, tuple[Sequence[float], Mapping[str, Sequence[float]]]],
    levels: Mapping[str, Mapping[str, float]],
) -> Figure:
    """Test accuracy over what a client has sent and received; methods without messages are left out.

    Args:
        title: data set and backbone.
        curves: by method, the one that matters first: megabytes after each round, and accuracies in % by metric.
        levels: by metric, lines to reach, with their names.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    talking = {name: curve for name, curve in curves.items() if curve[0][-1] > 0}
    for axes, (metric, lines) in zip(figure.subplots(1, len(levels)), levels.items(), strict=True):
        for index, (name, (sent, means)) in enumerate(talking.items()):
            lap, place = divmod(index, len(CLASS_COLOURS))  # another dash on each lap through the colours
            look = {"color": CLASS_COLOURS[place], "linestyle": DASHES[lap % len(DASHES)]}
            axes.plot(
                sent, means[metric], **look, linewidth=1.4 if index else 2.6, zorder=2 if index else 3, label=name
            )
        for (name, level), style in zip(lines.items(), ("--", ":"), strict=False):
            axes.axhline(level, color=OTHER_COLOUR, linestyle=style, linewidth=1, label=name)
        axes.set_xscale("log")
        axes.set_xlabel("MB per client, both ways")
        axes.set_ylabel(f"{metric} accuracy")
        axes.yaxis.set_major_formatter("{x:.0f}%")
        tidy(axes)
    figure.suptitle(f"{title}: accuracy over bytes, mean of the finished seeds", fontweight="bold")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure
