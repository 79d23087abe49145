"""Pictures, drawn without a display."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedspray.data.statistics import FederationStatistics

CLASS_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#332288",
    "#882255",
)
"""Okabe and Ito's palette and two of Paul Tol's: distinct to colour-blind eyes too."""
OTHER_COLOUR = "#8C8C8C"
UNLABELLED_COLOUR = "#E3E3E3"


def to_png(figure: Figure) -> bytes:
    """A picture as PNG, the same bytes wherever it is drawn."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()


def clients_figure(statistics: FederationStatistics) -> Figure:
    """Label counts per client (stacked bars) over homophily by class per client (dots)."""
    from matplotlib.figure import Figure

    width = float(np.clip(3.5 + 0.32 * statistics.num_clients, 7.5, 15))
    figure = Figure(figsize=(width, 7.6), layout="constrained")
    counts_axes, homophily_axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1))
    shown = _shown_classes(statistics)
    _draw_counts(counts_axes, statistics, shown)
    _draw_homophily(homophily_axes, statistics, shown)
    _name_clients(homophily_axes, statistics)
    handles, labels = counts_axes.get_legend_handles_labels()
    columns = max(1, int(width * 14 / (max(map(len, labels)) + 8)))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), columns),
        frameon=False,
        title="class",
    )
    figure.suptitle(
        f"{statistics.name}: {statistics.num_clients} clients, {statistics.total_nodes:,} nodes, "
        f"{statistics.total_edges:,} edges inside clients",
        fontsize=12,
    )
    return figure


def _shown_classes(statistics: FederationStatistics) -> list[int]:
    """The classes with their own colour: all, or the largest if there are more than colours."""
    if statistics.num_classes <= len(CLASS_COLOURS):
        return list(range(statistics.num_classes))
    by_size = np.argsort(-np.array(statistics.label_counts), kind="stable")
    return sorted(by_size[: len(CLASS_COLOURS)].tolist())


def _draw_counts(axes: Axes, statistics: FederationStatistics, shown: list[int]) -> None:
    counts = np.array([client.label_counts for client in statistics.clients]).reshape(statistics.num_clients, -1)
    layers = [(_class_label(c, statistics), counts[:, c], CLASS_COLOURS[i]) for i, c in enumerate(shown)]
    if len(shown) < statistics.num_classes:
        layers.append(("all others", np.delete(counts, shown, axis=1).sum(axis=1), OTHER_COLOUR))
    if statistics.unlabelled_nodes:
        unlabelled = np.array([client.unlabelled_nodes for client in statistics.clients])
        layers.append(("no label", unlabelled, UNLABELLED_COLOUR))
    bottom = np.zeros(statistics.num_clients)
    width, edge = (0.6, "white") if statistics.num_clients <= 40 else (0.92, "none")
    for label, height, colour in layers:
        places = range(statistics.num_clients)
        axes.bar(places, height, width, bottom, color=colour, edgecolor=edge, linewidth=0.5, label=label)
        bottom += height
    axes.set_title("Label counts per client", loc="left", fontweight="bold")
    axes.set_ylabel("nodes")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    tidy(axes)


def _draw_homophily(axes: Axes, statistics: FederationStatistics, shown: list[int]) -> None:
    crowded = statistics.num_clients > 40
    for position, client in enumerate(statistics.clients):
        high, low, half = client.majority_homophily, client.minority_homophily, 0.45 if crowded else 0.3
        if high is not None and low is not None:
            axes.plot([position] * 2, [high, low], color="#BBBBBB", linewidth=1 if crowded else 1.6, zorder=1)
        if low is not None:
            axes.plot([position - half, position + half], [low] * 2, color="black", linewidth=1.2, zorder=2)
    for c in range(statistics.num_classes):
        colour = CLASS_COLOURS[shown.index(c)] if c in shown else OTHER_COLOUR
        shift = 0.0 if crowded else _spread(c, statistics.num_classes)
        for is_majority in (False, True):
            dots = [
                (position + (0 if is_majority else shift), client.class_homophily[c])
                for position, client in enumerate(statistics.clients)
                if (client.majority_class == c) is is_majority and client.class_homophily[c] is not None
            ]
            if dots:
                area = (40 if crowded else 110) if is_majority else (14 if crowded else 30)
                x, y = zip(*dots, strict=True)
                axes.scatter(x, y, s=area, color=colour, edgecolors="white", linewidths=0.4, zorder=3)
    axes.set_title("Homophily by class", loc="left", fontweight="bold")
    axes.set_title(
        "large dot: majority class   small dots: other classes   bar: average minority node",
        loc="right",
        fontsize=8.5,
        color="#444444",
    )
    axes.set_ylabel("neighbours of the same class")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylim(-0.04, 1.06)
    tidy(axes)


def _spread(index: int, count: int) -> float:
    """Sets the dots of a client side by side, so that equal ones do not hide each other."""
    return 0.0 if count < 3 else 0.4 * (index / (count - 1) - 0.5)


def _name_clients(axes: Axes, statistics: FederationStatistics) -> None:
    names = [client.name for client in statistics.clients]
    prefix = _common_start(names) if len(names) > 1 else ""
    short = [name.removeprefix(prefix) for name in names]
    step = 1 if len(names) <= 40 else int(np.ceil(len(names) / 25))
    ticks = range(0, len(names), step)
    upright = max(map(len, short)) * len(names) > 110 and max(map(len, short)) > 3
    axes.set_xticks(list(ticks), [short[i] for i in ticks], rotation=90 if upright else 0)
    axes.set_xlabel(prefix.rstrip("_-. ") or "client")
    axes.set_xlim(-0.7, len(names) - 0.3)


def _common_start(names: list[str]) -> str:
    """What all names begin with, up to the last '_', '-' or '.'."""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: 1 + max(first.rfind(mark, 0, same) for mark in "_-.")]


def _class_label(index: int, statistics: FederationStatistics) -> str:
    return str(index) if statistics.class_names is None else f"{index} {statistics.class_names[index]}"


def tidy(axes: Axes) -> None:
    """Removes what carries no information and puts a light grid behind the rest."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
