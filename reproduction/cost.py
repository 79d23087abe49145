"""The paper's discussion of cost, measured: bytes and CPU time of FedSpray against FedAvg, by the width D."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedspray.report.sheets import Sheet
from fedspray.report.tables import kilobytes
from reproduction.lines import Line, PartResult
from reproduction.published import PAPER
from reproduction.trained import Order, Trained, train

QUANTITIES = {
    "kB up": "kilobytes that a client sends in a round",
    "kB down": "kilobytes that a client receives in a round",
    "CPU ms": "milliseconds of CPU time for a round of all clients, evaluation included",
}


def cost(order: Order) -> PartResult:
    """What a round costs."""
    study = train("cost", order, settings=["proxy_dim"])
    lines, sheets, findings = [], [], []
    for dataset in dict.fromkeys(t.row.dataset for t in study.rows):
        rows = [t for t in study.rows if t.row.dataset == dataset]
        figures = [_figures(t) for t in rows]
        base = next((f for t, f in zip(rows, figures, strict=True) if t.labels["algorithm"] == "fedavg"), None)
        texts = []
        for trained, figure in zip(rows, figures, strict=True):
            lines += [
                trained.line(name, ours=None if figure is None else figure[name], digits=1) for name in QUANTITIES
            ]
            dim = trained.labels["proxy_dim"]
            named = [trained.labels["algorithm"], "" if dim is None else str(dim)]
            texts.append([*named, *_texts(figure, base, trained.status)])
        findings += _findings(dataset, lines)
        columns = ["algorithm", "D"] + [text for name in QUANTITIES for text in (name, "× FedAvg")]
        note = " ".join(f"{name}: {meaning}." for name, meaning in QUANTITIES.items())
        title = f"Cost of a round: {dataset}, {rows[0].row.backbone}"
        sheets.append(Sheet(title, columns, texts, num_labels=2, note=f"{note} {study.notes(order)}".strip()))
    return PartResult(
        name="cost",
        title="Cost of a round",
        source=f"{PAPER}, Section 4.5, argues without figures: the encoder has about as many weights as the GNN, "
        "proxies are much smaller, no significant extra computation, and a smaller D saves both",
        lines=lines,
        sheets=sheets,
        findings=findings,
        missing=study.missing(order),
        cells=study.cells,
    )


def _figures(trained: Trained) -> dict[str, float] | None:
    """Means over seeds of each of `QUANTITIES`."""
    if trained.found is None or not trained.row.results:
        return None
    clients = trained.found.federation.num_clients
    metrics = [result.metrics for result in trained.row.results.values()]
    return {
        "kB up": fmean(kilobytes(m, clients)[0] for m in metrics),
        "kB down": fmean(kilobytes(m, clients)[1] for m in metrics),
        "CPU ms": fmean(1000 * m["cpu_seconds"] / m["rounds"] for m in metrics),
    }


def _texts(figure: dict[str, float] | None, base: dict[str, float] | None, status: str) -> Sequence[str]:
    if figure is None:
        return [status, *[""] * (2 * len(QUANTITIES) - 1)]
    texts = []
    for name in QUANTITIES:
        texts += [f"{figure[name]:,.1f}", "" if base is None else f"{figure[name] / base[name]:.2f}"]
    return texts


def _findings(dataset: str, lines: Sequence[Line]) -> list[str]:
    """FedSpray against FedAvg, where both have all their seeds, on the authors' clients."""
    known: dict[int | None, dict[str, float]] = {}
    for line in lines:
        if line.dataset == dataset and line.conclusive and line.ours is not None:
            known.setdefault(line.labels["proxy_dim"], {})[line.quantity] = line.ours
    base = known.pop(None, None)
    if base is None:
        return []
    return [
        f"{dataset}, D = {dim}: {own['kB up'] / base['kB up']:.2f} times FedAvg's bytes up, "
        f"{own['CPU ms'] / base['CPU ms']:.2f} times its CPU time."
        for dim, own in known.items()
    ]
