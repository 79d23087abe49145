"""Table 2: all methods with all backbones on all data sets, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedspray.studies.statistics import holm, paired_t
from reproduction.lines import Line, PartResult, signed
from reproduction.published import PAPER, results
from reproduction.sota import paired
from reproduction.tables import part_result
from reproduction.trained import Order, TrainedPart, train

Place = tuple[str, str]
"""Data set and backbone."""


def table2(order: Order) -> PartResult:
    """All methods with all backbones on all data sets."""
    study = train("table2", order)
    title = "Table 2: accuracy of all methods"
    return part_result("table2", title, f"{PAPER}, Table 2", study, order, _findings(study))


def _findings(study: TrainedPart) -> list[str]:
    """What rows say that have all their seeds, on the authors' clients."""
    lines = [line for line in study.lines if line.conclusive]
    places: dict[Place, dict[str, dict[str, Line]]] = {}
    for line in lines:
        methods = places.setdefault((line.dataset, line.labels["backbone"]), {})
        methods.setdefault(line.labels["algorithm"], {})[line.quantity] = line
    return _fedspray_findings(lines) + _best_on_minority(places) + _plus_findings(study, places)


def _fedspray_findings(lines: Sequence[Line]) -> list[str]:
    own = [line for line in lines if line.labels["algorithm"] == "fedspray"]
    apart = [(line.deviations, line) for line in own if line.deviations is not None]
    if not apart:
        return []
    above, below = ([_where(line, line) for d, line in apart if sign * d > 1] for sign in (1, -1))
    behind = [_where(line, line) for d, line in apart if d < 0]
    sentence = (
        f"FedSpray: {len(apart) - len(above) - len(below)} of {len(apart)} figures are within one published standard "
        f"deviation, {len(above)} above and {len(below)} below; {len(apart) - len(behind)} are at or above the "
        f"published mean{_but(behind)}."
    )
    named = [("Higher", above), ("Lower", below)]
    return [
        sentence,
        *(f"{word} by more than one standard deviation: {'; '.join(where)}." for word, where in named if where),
    ]


def _where(line: Line, paper: Line) -> str:
    """Where a figure is, and how far from the paper's."""
    assert line.ours is not None
    assert paper.published is not None
    name = f"{line.dataset} {line.labels['backbone']} {line.quantity}"
    return f"{name} {signed(line.ours - paper.published, 2)} (std {paper.published_std})"


def _but(places: Sequence[str]) -> str:
    return f", all but {'; '.join(places)}" if places else ""


def _best_on_minority(places: Mapping[Place, Mapping[str, Mapping[str, Line]]]) -> list[str]:
    """Whether FedSpray is the best of the paper's methods on minority nodes, where all of them are finished."""
    needed = {row.algorithm for row in results("table2")}
    full = {
        place: {name: _values(lines) for name, lines in methods.items() if name in needed}
        for place, methods in places.items()
        if needed <= set(methods)
    }
    if not full:
        return []
    best = {place: max(v.items(), key=lambda item: item[1]["minority"])[0] for place, v in full.items()}
    others = [
        f"{' '.join(place)}: {name} {_both(full[place][name])} against {_both(full[place]['fedspray'])}"
        for place, name in best.items()
        if name != "fedspray"
    ]
    return [
        f"On minority nodes FedSpray is the best of the paper's {len(needed)} methods in {len(full) - len(others)} of "
        f"the {len(full)} pairs of data set and backbone that are finished"
        + (f"; elsewhere another one is (overall / minority): {'; '.join(others)}." if others else ".")
    ]


def _values(lines: Mapping[str, Line]) -> dict[str, float]:
    return {quantity: line.ours for quantity, line in lines.items() if line.ours is not None}


def _both(figures: Mapping[str, float]) -> str:
    return f"{figures['overall']:.2f} / {figures['minority']:.2f}"


def _plus_findings(study: TrainedPart, places: Mapping[Place, Mapping[str, Mapping[str, Line]]]) -> list[str]:
    """FedSpray+ against the paper's FedSpray, and its gain over ours, seed by seed."""
    rows = {(t.row.dataset, t.labels["backbone"], t.labels["algorithm"]): t for t in study.rows}
    count, behind, gains = 0, [], []
    for place, methods in places.items():
        if "fedspray-plus" not in methods or "fedspray" not in methods:
            continue
        for metric, plus in methods["fedspray-plus"].items():
            paper = methods["fedspray"][metric]
            if plus.ours is not None and paper.published is not None:
                count += 1
                if plus.ours < paper.published:
                    behind.append(_where(plus, paper))
            differences = paired(rows[*place, "fedspray-plus"], rows[*place, "fedspray"], metric)
            gains.append((f"{' '.join(place)} {metric} {signed(fmean(differences), 2)}", paired_t(differences)))
    if not count:
        return []
    corrected = holm([p for _, p in gains])
    told = [name + ("" if p is None else f", p = {p:.2g}") for (name, _), p in zip(gains, corrected, strict=True)]
    return [
        f"FedSpray+ (ours) is at or above the published FedSpray in {count - len(behind)} of {count} figures"
        f"{_but(behind)}.",
        "Its gain over our FedSpray on the same seeds (paired t, Holm-corrected over all of these): "
        f"{'; '.join(told)}.",
    ]
