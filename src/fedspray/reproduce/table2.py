"""Table 2: all methods with all backbones on all data sets, and what it says."""

from __future__ import annotations

from statistics import fmean

from fedspray.reproduce.lines import Line, PartResult, signed
from fedspray.reproduce.published import PAPER
from fedspray.reproduce.tables import part_result
from fedspray.reproduce.trained import Request, Study, Trained, carry_out
from fedspray.studies.statistics import paired_t


def table2(request: Request) -> PartResult:
    """All methods with all backbones on all data sets."""
    study = carry_out("table2", request)
    findings = [] if request.quick else _fedspray_findings(study) + _best_on_minority(study) + _plus_findings(study)
    return part_result("table2", "Table 2: accuracy of all methods", f"{PAPER}, Table 2", study, request, findings)


def _fedspray_findings(study: Study) -> list[str]:
    lines = [line for line in study.lines if line.labels["algorithm"] == "fedspray"]
    apart = [(line.deviations, line) for line in lines if line.deviations is not None]
    if not apart:
        return []
    above, below = ([_where(line) for d, line in apart if sign * d > 1] for sign in (1, -1))
    sentence = (
        f"FedSpray: {len(apart) - len(above) - len(below)} of {len(apart)} figures are within one published standard "
        f"deviation, {len(above)} are higher, {len(below)} lower; "
        f"{sum(d >= 0 for d, _ in apart)} are at or above the published mean."
    )
    named = [("Higher", above), ("Lower", below)]
    return [sentence, *(f"{word} by more than that: {'; '.join(where)}." for word, where in named if where)]


def _where(line: Line) -> str:
    name = f"{line.dataset} {line.labels['backbone']} {line.quantity}"
    return f"{name} {signed(line.difference, 2)} (std {line.published_std})"


def _best_on_minority(study: Study) -> list[str]:
    """Whether FedSpray is the best of the paper's methods (not counting ours) on minority nodes."""
    places: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for line in study.lines:
        if line.ours is not None and line.labels["algorithm"] != "fedspray-plus":
            place = places.setdefault((line.dataset, line.labels["backbone"]), {})
            place.setdefault(line.labels["algorithm"], {})[line.quantity] = line.ours
    full = {place: values for place, values in places.items() if "fedspray" in values and len(values) > 1}
    if not full:
        return []
    best = {place: max(v.items(), key=lambda item: item[1]["minority"])[0] for place, v in full.items()}
    others = [
        f"{' '.join(place)}: {name} {_both(full[place][name])} against {_both(full[place]['fedspray'])}"
        for place, name in best.items()
        if name != "fedspray"
    ]
    return [
        f"On minority nodes FedSpray is the best of the paper's methods in {len(full) - len(others)} of {len(full)} "
        "pairs of data set and backbone"
        + (f"; elsewhere another one is (overall / minority): {'; '.join(others)}." if others else ".")
    ]


def _both(figures: dict[str, float]) -> str:
    return f"{figures['overall']:.2f} / {figures['minority']:.2f}"


def _plus_findings(study: Study) -> list[str]:
    """FedSpray+ against the paper's FedSpray, and its gain over ours, seed by seed."""
    rows = {(t.planned.row.dataset, t.labels["backbone"], t.labels["algorithm"]): t for t in study.rows}
    lines = {
        (x.dataset, x.labels["backbone"], x.quantity): x for x in study.lines if x.labels["algorithm"] == "fedspray"
    }
    above, compared, gains = 0, 0, []
    for (dataset, backbone, algorithm), plus in rows.items():
        if algorithm != "fedspray-plus" or (dataset, backbone, "fedspray") not in rows:
            continue
        for metric in ("overall", "minority"):
            values, theirs = plus.values(metric), lines[dataset, backbone, metric].published
            if values and theirs is not None:
                compared += 1
                above += fmean(values) >= theirs
            differences = _paired(plus, rows[dataset, backbone, "fedspray"], metric)
            if differences:
                p = paired_t(differences)
                told = "" if p is None else f", p = {p:.2g}"
                gains.append(f"{dataset} {backbone} {metric} {signed(fmean(differences), 2)}{told}")
    if not compared:
        return []
    return [
        f"FedSpray+ (ours) is at or above the published FedSpray in {above} of {compared} figures.",
        f"Its gain over our FedSpray on the same seeds (paired t): {'; '.join(gains)}.",
    ]


def _paired(a: Trained, b: Trained, metric: str) -> list[float]:
    if a.entry is None or b.entry is None:
        return []
    seeds = sorted(set(a.entry.results) & set(b.entry.results))
    return [100 * (a.entry.results[s].metrics[metric] - b.entry.results[s].metrics[metric]) for s in seeds]
