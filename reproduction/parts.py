"""Every part of the paper by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reproduction.cost import cost
from reproduction.federations import table1, table4
from reproduction.figure2 import figure2
from reproduction.fresh import fresh, reach, unseen
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


def table5(order: Order) -> PartResult:
    """FedSpray and FedAvg with 3, 5 and 10 local epochs."""
    study = train("table5", order, settings=["local_epochs"])
    return part_result("table5", "Table 5: local epochs", f"{PAPER}, Table 5", study, order)


def gat(order: Order) -> PartResult:
    """Another backbone."""
    study = train("gat", order)
    return part_result("gat", "Graph attention as backbone", ANSWERS, study, order)


def auc(order: Order) -> PartResult:
    """Another metric."""
    study = train("auc", order)
    source = (
        f"{ANSWERS}, without a definition; ours ranks nodes of the same client, since scores of different personal "
        "models are not on one scale, and averages over classes"
    )
    return part_result("auc", "Area under the ROC curve", source, study, order)


def noise(order: Order) -> PartResult:
    """Gaussian noise on uploaded proxies."""
    study = train("noise", order, settings=["proxy_noise"])
    return part_result("noise", "Noise on uploaded proxies", ANSWERS, study, order, pictured="proxy_noise")


def figure_lambda(order: Order) -> PartResult:
    """FedSpray over λ1."""
    study = train("figure-lambda", order, settings=["distill_weight"])
    source = f"{PAPER}: the curves have no printed numbers; Table 2 gives the point λ1 = 5"
    title = "FedSpray over the weight of distillation, λ1"
    return part_result("figure-lambda", title, source, study, order, pictured="distill_weight")


def figure_dim(order: Order) -> PartResult:
    """FedSpray over the width D."""
    study = train("figure-dim", order, settings=["proxy_dim"])
    source = f"{PAPER}: the curves have no printed numbers; Table 2 gives the point D = 64"
    return part_result("figure-dim", "FedSpray over the width D", source, study, order, pictured="proxy_dim")


PARTS: Mapping[str, Part] = {
    "table1": table1,
    "figure2": figure2,
    "table2": table2,
    "figure-lambda": figure_lambda,
    "figure-dim": figure_dim,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "proposition1": proposition1,
    "noise": noise,
    "gat": gat,
    "auc": auc,
    "cost": cost,
    "sota": sota,
    "fresh": fresh,
    "reach": reach,
    "unseen": unseen,
}
"""In the order of ``all``."""

BEYOND = ("sota", "fresh", "reach", "unseen")
"""What the paper does not have: no part of ``all``."""

UNTRAINED = ("table1", "table4")
"""Counted, not drawn or trained: the same when it has to be quick."""
