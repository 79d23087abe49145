"""The clients of a federation as a table for the terminal and as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from fedspray.display import count
from fedspray.report.sheets import to_csv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedspray.data.advice import Advice
    from fedspray.data.statistics import ClientStatistics, FederationStatistics

WIDE = 110
"""From this width on, the table has room for the label counts and for class names."""


def clients_table(statistics: FederationStatistics, width: int = 80) -> Table:
    """One row for each client and one for their averages, in at most ``width`` columns of text."""
    table = Table(
        title=escape(_title(statistics)),
        title_style="bold",
        caption=_caption(statistics),
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1 if width >= WIDE else 0),
    )
    wide = width >= WIDE and statistics.num_classes <= 8
    table.add_column("client", overflow="ellipsis", no_wrap=True)
    columns = ["nodes", "edges", "edges\nlost", "iso-\nlated", *(["labels\nby class"] if wide else [])]
    columns += ["major\nclass", "major\nnodes", "minor\nnodes", "major\nh", "minor\nh", "label\nJSD"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for client in statistics.clients:
        table.add_row(*_row(client, statistics, wide))
    table.add_section()
    table.add_row("average", f"{statistics.average_nodes:,.0f}", f"{statistics.average_edges:,.0f}")
    return table


def advice_table(given: Sequence[Advice]) -> Table:
    """One row for each client: whether federating is likely to help, on all nodes and on minority nodes."""
    table = Table(title="is federating likely to help?", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("client", "all nodes", "minority nodes", "why not"):
        table.add_column(column)
    for overall, minority in zip(given[::2], given[1::2], strict=True):
        shown = [e.verdict if e.likely is None else f"{e.verdict} ({100 * e.likely:.0f}%)" for e in (overall, minority)]
        table.add_row(escape(overall.client), *shown, escape(overall.why))
    return table


def clients_csv(statistics: FederationStatistics) -> str:
    """One line for each client under a header; a number that does not exist is an empty field."""
    rows = [client.row() for client in statistics.clients]
    return to_csv(list(rows[0]), [list(row.values()) for row in rows])


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table, "n/a" where there is none."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def _row(client: ClientStatistics, statistics: FederationStatistics, wide: bool) -> list[str]:
    counts = (client.num_nodes, client.num_edges, client.edges_lost, client.isolated_nodes)
    majority = "n/a" if client.majority_class is None else str(client.majority_class)
    if wide and client.majority_class is not None and statistics.class_names is not None:
        majority += f" {escape(statistics.class_names[client.majority_class])}"
    return [
        escape(client.name),
        *(f"{value:,}" for value in counts),
        *([" ".join(f"{value:,}" for value in client.label_counts)] if wide else []),
        majority,
        f"{client.majority_nodes:,}",
        f"{client.minority_nodes:,}",
        number(client.majority_homophily),
        number(client.minority_homophily),
        number(client.label_divergence, 3),
    ]


def _title(statistics: FederationStatistics) -> str:
    sizes = count(statistics.num_clients, "client"), count(statistics.num_features, "feature")
    return f"{statistics.name}: {', '.join(sizes)}, {count(statistics.num_classes, 'class', 'classes')}"


def _caption(statistics: FederationStatistics) -> str:
    unlabelled = f", {statistics.unlabelled_nodes:,} without a label" if statistics.unlabelled_nodes else ""
    return (
        f"{statistics.total_nodes:,} nodes{unlabelled}; {statistics.total_edges:,} edges inside clients. "
        "h: average share of neighbours with the node's own label. "
        "JSD: divergence from the labels of all clients, in bits."
    )
