"""Every part of the paper by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reproduction.cost import cost
from reproduction.federations import table1, table4
from reproduction.figure2 import figure2
from reproduction.fresh import fresh, options, reach, unseen
from reproduction.lines import PartResult, signed
from reproduction.published import ANSWERS, PAPER
from reproduction.separability import proposition1
from reproduction.sota import sota
from reproduction.table2 import table2
from reproduction.tables import part_result
from reproduction.trained import Order, train

Part = Callable[[Order], PartResult]


def table3(order: Order) -> PartResult:
    """FedSpray without proxies."""
    study = train("table3", order)
    findings = []
    judged = {
        (line.labels["algorithm"], line.dataset, line.labels["backbone"], line.quantity): line
        for line in study.lines
        if line.conclusive
    }
    for (algorithm, *place), line in judged.items():
        other = judged.get(("fedspray-no-proxies", *place))
        if algorithm != "fedspray" or other is None:
            continue
        if line.ours is None or other.ours is None or line.published is None or other.published is None:
            continue
        findings.append(
            f"{line.dataset}, {line.quantity}: without proxies {signed(other.ours - line.ours, 2)} points; "
            f"published {signed(other.published - line.published, 2)}."
        )
    return part_result("table3", "Table 3: no proxies (S = 0)", f"{PAPER}, Table 3", study, order, findings)


def _study(name: str, title: str, source: str, setting: str | None = None, *, pictured: bool = False) -> Part:
    """A part that is nothing but a study, of rows that a setting may tell apart."""

    def part(order: Order) -> PartResult:
        study = train(name, order, settings=[setting] if setting else [])
        return part_result(name, title, source, study, order, pictured=setting if pictured else None)

    return part


CURVES = f"{PAPER}: the curves have no printed numbers; Table 2 gives the point"

PARTS: Mapping[str, Part] = {
    "table1": table1,
    "figure2": figure2,
    "table2": table2,
    "figure-lambda": _study(
        "figure-lambda",
        "FedSpray over the weight of distillation, λ1",
        f"{CURVES} λ1 = 5",
        "distill_weight",
        pictured=True,
    ),
    "figure-dim": _study("figure-dim", "FedSpray over the width D", f"{CURVES} D = 64", "proxy_dim", pictured=True),
    "table3": table3,
    "table4": table4,
    "table5": _study("table5", "Table 5: local epochs", f"{PAPER}, Table 5", "local_epochs"),
    "proposition1": proposition1,
    "noise": _study("noise", "Noise on uploaded proxies", ANSWERS, "proxy_noise", pictured=True),
    "gat": _study("gat", "Graph attention as backbone", ANSWERS),
    "auc": _study(
        "auc",
        "Area under the ROC curve",
        f"{ANSWERS}, without a definition; ours ranks nodes of the same client, since scores of different personal "
        "models are not on one scale, and averages over classes",
    ),
    "cost": cost,
    "sota": sota,
    "fresh": fresh,
    "options": options,
    "reach": reach,
    "unseen": unseen,
}
"""In the order of ``all``."""

BEYOND = ("sota", "fresh", "options", "reach", "unseen")
"""What the paper does not have: no part of ``all``."""

UNTRAINED = ("table1", "table4")
"""Counted, not drawn or trained: the same when it has to be quick."""
