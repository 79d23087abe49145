"""Proposition 1 as a part: its table, its picture, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist

from fedspray.report.figures import to_png
from fedspray.report.sheets import Sheet
from reproduction import pictures
from reproduction.lines import DONE, QUICK, Line, PartResult, shown
from reproduction.proposition import CASES, KINDS, Separation, TwoClasses, estimate
from reproduction.published import PAPER
from reproduction.trained import Order

PROPOSITION_DRAWS = 20
QUICK_DRAWS = 5


def proposition1(order: Order) -> PartResult:
    """Distances to the best linear boundary, by formula and by Monte Carlo."""
    draws = QUICK_DRAWS if order.quick else PROPOSITION_DRAWS
    found = [(case, estimate(case, draws)) for case in CASES] if order.wants("banks") else []
    lines, sections = [], []
    rows: list[list[str]] = []
    words = {"local": "dist", "sum": "dist' (sum)", "average": "dist' (average)"}
    for case, estimates in found:
        sections.append(len(rows))
        for kind in KINDS:
            line = _distance_line(case, kind, estimates[kind], words[kind], QUICK if order.quick else DONE)
            lines.append(line)
            place = case.name if kind == KINDS[0] else ""
            texts = [shown(v, None, 3) for v in (line.published, line.exact)]
            ours = f"{line.ours:.3f} ± {line.ours_error:.3f}"
            rows.append([place, words[kind], *texts, ours, f"{100 * estimates[kind].wrong:.1f}"])
    columns = ["federation", "quantity", "paper", "exact", "Monte Carlo", "wrong %"]
    note = (
        f"{draws} draws; ± is the standard error. dist: with own neighbours; dist': with those of the node's class. "
        "Paper: its formula, which is one of sums. Exact: without presuming a balanced federation. "
        "Wrong: nodes on the wrong side of the boundary."
    )
    sheets = [Sheet("Proposition 1", columns, rows, sections=sections, num_labels=2, note=note)] if found else []
    drawn = {"proposition1.png": to_png(pictures.proposition_figure(CASES[0], found))} if found else {}
    return PartResult(
        name="proposition1",
        title="Proposition 1: separability with global neighbours",
        source=f"{PAPER}, Proposition 1 (a formula)",
        lines=lines,
        sheets=sheets,
        findings=_proposition_findings(found),
        pictures=drawn,
    )


def _distance_line(case: TwoClasses, kind: str, found: Separation, quantity: str, status: str) -> Line:
    return Line(
        dataset="banks",
        labels={"federation": case.name},
        quantity=quantity,
        published=None if kind == "average" else case.paper_distance(kind),
        exact=case.exact_distance(kind),
        ours=found.distance,
        ours_error=found.distance_error,
        digits=3,
        status=status,
    )


def _proposition_findings(found: Sequence[tuple[TwoClasses, Mapping[str, Separation]]]) -> list[str]:
    sentences = []
    for case, estimates in found:
        first, second = case.class_counts
        agrees = abs(estimates["sum"].distance - case.paper_distance("sum")) <= 4 * estimates["sum"].distance_error
        sentences.append(
            f"{case.name}: δ = {case.imbalance:.2f} with {first:,} and {second:,} nodes of the classes; the paper's "
            f"dist' {'agrees' if agrees else 'does not agree'} with Monte Carlo (within four standard errors)."
        )
    if found:
        case, estimates = found[0]
        alone = 100 * NormalDist().cdf(-case.separation / 2)
        sentences += [
            "Equal class counts do not make a federation balanced in the sense of the proof; δ = 0 does.",
            f"The factor {case.factor:.2f} is one of sums over {len(case.q)} clients; averaged, as a server would, "
            f"it is {case.paper_distance('average') / case.paper_distance('local'):.2f}.",
            f"Wrong: {100 * estimates['local'].wrong:.1f}% with own neighbours, {alone:.1f}% with features alone, "
            f"{100 * estimates['average'].wrong:.1f}% with averages.",
            "s of the node's own class is added, so these embeddings presume that the class is known: the distance "
            "motivates the method, it is no classifier.",
        ]
    return sentences
