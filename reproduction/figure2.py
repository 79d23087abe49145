"""Figure 2: MLP against GNN on minority nodes of each client, both under FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedspray.report.figures import to_png
from fedspray.report.sheets import Sheet
from fedspray.runs.result import spread
from reproduction import pictures
from reproduction.lines import Line, PartResult, shown, signed
from reproduction.published import PAPER
from reproduction.tables import result_sheets, results_csv
from reproduction.trained import Order, Trained, train


def figure2(order: Order) -> PartResult:
    """MLP against GNN on minority nodes of each client, both under FedAvg."""
    study = train("figure2", order)
    lines, sheets = list(study.lines), result_sheets("Figure 2", study, order)
    findings: list[str] = []
    drawn: dict[str, bytes] = {}
    by_backbone = {t.labels["backbone"]: t for t in study.rows if t.row.results}
    if {"mlp", "gcn"} <= set(by_backbone):
        clients = {name: _minority_by_client(trained) for name, trained in by_backbone.items()}
        lines += [line for name, trained in by_backbone.items() for line in _client_lines(trained, clients[name])]
        apart = {c: fmean(own) - fmean(clients["gcn"][c]) for c, own in clients["mlp"].items()}
        rows = [
            [c, *(shown(fmean(clients[b][c]), _deviation(clients[b][c]), 2) for b in ("mlp", "gcn")), signed(gap, 2)]
            for c, gap in apart.items()
        ]
        title = "Figure 2: minority accuracy of each client in %"
        columns = ["client", "MLP", "GNN (gcn)", "MLP − GNN"]
        sheets.append(Sheet(title, columns, rows))
        gaps = [round(gap, 2) for gap in apart.values()]
        equal = f" and as good in {gaps.count(0)}" if 0 in gaps else ""
        if all(line.conclusive for line in study.lines):
            findings.append(
                f"The MLP is better on minority nodes in {sum(gap > 0 for gap in gaps)} of {len(gaps)} clients"
                f"{equal}; in the paper's figure it is in all 7."
            )
        labels = {"mlp": "MLP", "gcn": "GNN (GCN)"}
        bars = {
            labels[b]: ([fmean(v) for v in clients[b].values()], [_deviation(v) or 0.0 for v in clients[b].values()])
            for b in ("mlp", "gcn")
        }
        row = by_backbone["gcn"].row
        length = f"{row.settings['rounds']} rounds, {len(row.results)} seed{'s' if len(row.results) > 1 else ''}"
        title = f"PubMed, FedAvg: minority nodes of each client, {length}"
        drawn["figure2.png"] = to_png(pictures.bars_figure(title, list(apart), bars))
    return PartResult(
        name="figure2",
        title="Figure 2: MLP and GNN on minority nodes",
        source=f"{PAPER}, Figure 2; the bars have no printed numbers",
        lines=lines,
        sheets=sheets,
        findings=findings,
        missing=study.missing(order),
        pictures=drawn,
        results_csv=results_csv(study, order),
        cells=study.cells,
    )


def _minority_by_client(trained: Trained) -> dict[str, list[float]]:
    """By client: minority accuracy of each seed in percent."""
    found: dict[str, list[float]] = {}
    for result in trained.row.results.values():
        for name, client in result.metrics["clients"].items():
            if client["minority"] is not None:
                found.setdefault(name, []).append(100 * client["minority"])
    return found


def _client_lines(trained: Trained, clients: Mapping[str, Sequence[float]]) -> list[Line]:
    return [
        trained.line(
            "minority",
            labels={**trained.labels, "client": name},
            ours=fmean(values),
            ours_std=_deviation(values),
            seeds=len(values),
        )
        for name, values in clients.items()
    ]


def _deviation(values: Sequence[float]) -> float | None:
    std: float | None = spread([*values])["std"]
    return std
