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
    lines = [line for line in study.lines if line.labels["algorithm"] == "fedspray" and line.difference is not None]
    if not lines:
        return []
    within = [line for line in lines if line.within_one_std]
    above = sum(line.difference is not None and line.difference >= 0 for line in lines)
    misses = [_where(line) for line in lines if not line.within_one_std]
    sentence = (
        f"FedSpray: {len(within)} of {len(lines)} figures are within one published standard deviation, "
        f"{above} are at or above the published mean."
    )
    return [sentence, *([f"Further away than one standard deviation: {'; '.join(misses)}."] if misses else [])]


def _where(line: Line) -> str:
    name = f"{line.dataset} {line.labels['backbone']} {line.quantity}"
    return f"{name} {signed(line.difference, 2)} (std {line.published_std})"


def _best_on_minority(study: Study) -> list[str]:
    """Whether FedSpray is the best of the paper's methods (not counting ours) on minority nodes."""
    places: dict[tuple[str, str], dict[str, float]] = {}
    for line in study.lines:
        if line.quantity == "minority" and line.ours is not None and line.labels["algorithm"] != "fedspray-plus":
            place = (line.dataset, line.labels["backbone"])
            places.setdefault(place, {})[line.labels["algorithm"]] = line.ours
    full = {place: values for place, values in places.items() if "fedspray" in values and len(values) > 1}
    if not full:
        return []
    behind = {place: max(v, key=v.__getitem__) for place, v in full.items() if max(v, key=v.__getitem__) != "fedspray"}
    others = "; ".join(f"{dataset} {backbone}: {best}" for (dataset, backbone), best in behind.items())
    return [
        f"On minority nodes FedSpray is the best of the paper's methods in {len(full) - len(behind)} of {len(full)} "
        "pairs of data set and backbone" + (f"; the best elsewhere: {others}." if others else ".")
    ]


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
