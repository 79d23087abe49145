"""Tables 1 and 4: the clients before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from fedspray import ClientStatistics, FederationStatistics, describe
from fedspray.experiment import Data
from fedspray.report.sheets import Sheet
from reproduction.access import AUTHORS, Found, NotFound
from reproduction.lines import MISSING, Line, Missing, PartResult
from reproduction.published import PAPER, read_rows
from reproduction.trained import Order

FOLDERS = {"pubmed": "PubMed", "wikics": "WikiCS", "physics": "Physics", "flickr": "Flickr"}
"""The folders of the authors' node lists."""

CLIENT_FIGURES = {
    "majority_class": 0,
    "majority_nodes": 0,
    "minority_nodes": 0,
    "majority_homophily": 2,
    "minority_homophily": 2,
}
"""Columns of Table 1, with the digits they are printed with."""

DATASET_FIGURES = {
    "clients": "num_clients",
    "node_features": "num_features",
    "average_nodes": "average_nodes",
    "average_edges": "average_edges",
    "classes": "num_classes",
}
"""Columns of Table 4, and what we call them."""


def table1(order: Order) -> PartResult:
    """The clients of PubMed: majority class, node counts, homophily."""
    lines, sheets, findings, missing = [], [], [], []
    if order.wants("pubmed"):
        found = _find("pubmed", order)
        statistics = None if isinstance(found, NotFound) else describe(found.federation)
        theirs = statistics if isinstance(found, Found) and found.split == AUTHORS else None
        by_name = {client.name: client for client in theirs.clients} if theirs else {}
        for row in read_rows("table1"):
            client = by_name.get(row["partition_file"].removesuffix(".txt"))
            lines += _client_lines(row["client"], {name: float(row[name]) for name in CLIENT_FIGURES}, client)
        sheets.append(_by_label("Table 1: PubMed's clients", lines, "client"))
        if theirs is None:
            reason = found.reason if isinstance(found, NotFound) else order.access.where_lists_go("PubMed")
            missing.append(Missing("pubmed", reason, order.command("table1")))
        if statistics is not None and theirs is None:
            own = [line for client in statistics.clients for line in _client_lines(client.name, {}, client)]
            sheets.append(_by_label("PubMed's clients by Louvain, which are not the authors'", own, "client"))
            lines += own
        whose = "" if theirs else "Louvain's "
        findings = _agreement(lines) + (_homophily_gap(statistics, whose) if statistics else [])
    return PartResult(
        name="table1",
        title="Table 1: clients of PubMed",
        source=f"{PAPER}, Table 1",
        lines=lines,
        sheets=sheets,
        findings=findings,
        missing=missing,
    )


def table4(order: Order) -> PartResult:
    """The data sets: clients, features, average nodes and edges, classes."""
    lines, missing, others = [], [], []
    for row in read_rows("table4"):
        name = row["dataset"]
        if not order.wants(name):
            continue
        found = _find(name, order)
        ours = describe(found.federation).to_json() if isinstance(found, Found) else {}
        split = found.split if isinstance(found, Found) else ""
        if not isinstance(found, Found):
            missing.append(Missing(name, found.reason, order.command("table4")))
        elif split != AUTHORS:
            others.append(name)
            missing.append(Missing(name, order.access.where_lists_go(FOLDERS[name]), order.command("table4")))
        for column, key in DATASET_FIGURES.items():
            value = ours.get(key)
            known = value is not None and not (key == "num_features" and value == 0)
            lines.append(
                Line(
                    dataset=name,
                    quantity=column,
                    published=float(row[column]),
                    ours=float(value) if known and value is not None else None,
                    digits=0,
                    split=split,
                    status="done" if known else MISSING,
                )
            )
    note = f"Clients of {', '.join(others)}: Louvain's, not the authors'." if others else ""
    return PartResult(
        name="table4",
        title="Table 4: data sets",
        source=f"{PAPER}, Table 4",
        lines=lines,
        sheets=[_by_label("Table 4: data sets, cut into clients", lines, "dataset", note)],
        findings=_agreement([line for line in lines if line.conclusive]),
        missing=missing,
    )


def _find(dataset: str, order: Order) -> Found | NotFound:
    source = Data.of(dataset=dataset, partition_dir=f"partitions/{FOLDERS[dataset]}").located()
    return order.access.find(source, features=False)


def _client_lines(name: str, published: dict[str, float], client: ClientStatistics | None) -> list[Line]:
    lines = []
    for column, digits in CLIENT_FIGURES.items():
        value = None if client is None else getattr(client, column)
        lines.append(
            Line(
                dataset="pubmed",
                labels={"client": name},
                quantity=column,
                published=published.get(column),
                ours=None if value is None else float(value),
                digits=digits,
                split=AUTHORS if client is not None and published else "",
                status="done" if client is not None else MISSING,
            )
        )
    return lines


def _by_label(title: str, lines: Sequence[Line], name: str, note: str = "") -> Sheet:
    """Three rows for each label: published, ours, and their difference Δ; one column for each figure."""
    groups: dict[str, dict[str, tuple[str, str, str]]] = {}
    for line in lines:
        key = line.dataset if name == "dataset" else line.labels[name]
        groups.setdefault(key, {})[line.quantity] = line.texts()
    columns = list(dict.fromkeys(line.quantity for line in lines))
    rows: list[list[str]] = []
    sections = []
    for key, group in groups.items():
        published = any(texts[0] for texts in group.values())
        sections.append(len(rows))
        for index, kind in enumerate(("published", "ours", "Δ")):
            if published or kind == "ours":
                first = key if len(rows) == sections[-1] else ""
                rows.append([first, kind, *(group[column][index] for column in columns)])
    titles = [column.replace("_", " ") for column in columns]
    return Sheet(title, ["data set" if name == "dataset" else name, "", *titles], rows, frozenset(), sections, 2, note)


def _agreement(lines: Sequence[Line]) -> list[str]:
    compared = [line for line in lines if line.agrees is not None]
    if not compared:
        return []
    equal = sum(bool(line.agrees) for line in compared)
    return [f"{equal} of {len(compared)} figures that can be compared are equal to all printed digits."]


def _homophily_gap(statistics: FederationStatistics, whose: str) -> list[str]:
    pairs = [(client.majority_homophily, client.minority_homophily) for client in statistics.clients]
    wider = sum(a is not None and b is not None and a > b for a, b in pairs)
    return [f"Majority nodes are more homophilous than minority nodes in {wider} of {whose}{len(pairs)} clients."]
