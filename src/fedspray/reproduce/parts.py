"""Every part of the paper by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, fmean, stdev

from fedspray.report.sheets import Sheet
from fedspray.report.sweeps import sweep_figure
from fedspray.reproduce import pictures
from fedspray.reproduce.cost import cost
from fedspray.reproduce.federations import table1, table4
from fedspray.reproduce.lines import Line, PartResult, shown, signed
from fedspray.reproduce.proposition import CASES, KINDS, Case, Estimate, estimate
from fedspray.reproduce.published import ANSWERS, PAPER
from fedspray.reproduce.trained import Request, Study, Trained, carry_out, result_sheets, results_csv
from fedspray.studies.comparison import figures
from fedspray.studies.statistics import paired_t

PROPOSITION_DRAWS = 20
QUICK_DRAWS = 5

Part = Callable[[Request], PartResult]


def table2(request: Request) -> PartResult:
    """All methods with all backbones on all data sets."""
    study = carry_out("table2", request)
    findings = [] if request.quick else _fedspray_findings(study) + _best_on_minority(study) + _plus_findings(study)
    return _result("table2", "Table 2: accuracy of all methods", f"{PAPER}, Table 2", study, request, findings)


def table3(request: Request) -> PartResult:
    """FedSpray without proxies."""
    study = carry_out("table3", request)
    findings = []
    for line in study.lines:
        if line.labels["algorithm"] != "fedspray" or request.quick:
            continue
        place = (line.dataset, line.quantity)
        other = next(o for o in study.lines if o is not line and (o.dataset, o.quantity) == place)
        if line.ours is None or other.ours is None or line.published is None or other.published is None:
            continue
        findings.append(
            f"{line.dataset}, {line.quantity}: without proxies {signed(other.ours - line.ours, 2)} points; "
            f"published {signed(other.published - line.published, 2)}."
        )
    return _result("table3", "Table 3: no proxies (S = 0)", f"{PAPER}, Table 3", study, request, findings)


def table5(request: Request) -> PartResult:
    """FedSpray and FedAvg with 3, 5 and 10 local epochs."""
    study = carry_out("table5", request, settings=["local_epochs"])
    return _result("table5", "Table 5: local epochs", f"{PAPER}, Table 5", study, request)


def gat(request: Request) -> PartResult:
    """Another backbone."""
    study = carry_out("gat", request)
    return _result("gat", "Graph attention as backbone", ANSWERS, study, request)


def auc(request: Request) -> PartResult:
    """Another metric."""
    study = carry_out("auc", request)
    return _result("auc", "Area under the ROC curve", ANSWERS, study, request)


def noise(request: Request) -> PartResult:
    """Gaussian noise on uploaded proxies."""
    study = carry_out("noise", request, settings=["proxy_noise"])
    return _result("noise", "Noise on uploaded proxies", ANSWERS, study, request, pictured="proxy_noise")


def figure_lambda(request: Request) -> PartResult:
    """FedSpray over λ1."""
    study = carry_out("figure-lambda", request, settings=["distill_weight"])
    source = f"{PAPER}: the curves have no printed numbers; Table 2 gives the point λ1 = 5"
    title = "FedSpray over the weight of distillation, λ1"
    return _result("figure-lambda", title, source, study, request, pictured="distill_weight")


def figure_dim(request: Request) -> PartResult:
    """FedSpray over the width D."""
    study = carry_out("figure-dim", request, settings=["proxy_dim"])
    source = f"{PAPER}: the curves have no printed numbers; Table 2 gives the point D = 64"
    return _result("figure-dim", "FedSpray over the width D", source, study, request, pictured="proxy_dim")


def figure2(request: Request) -> PartResult:
    """MLP against GNN on minority nodes of each client, both under FedAvg."""
    study = carry_out("figure2", request)
    lines, sheets = list(study.lines), result_sheets("Figure 2", study, request)
    findings: list[str] = []
    drawn: dict[str, bytes] = {}
    by_backbone = {t.labels["backbone"]: t for t in study.rows if t.entry is not None and t.entry.results}
    if {"mlp", "gcn"} <= set(by_backbone):
        clients = {name: _minority_by_client(trained) for name, trained in by_backbone.items()}
        lines += [line for name, trained in by_backbone.items() for line in _client_lines(trained, clients[name])]
        names = list(clients["mlp"])
        rows = [[c, *(_mean_std(clients[b][c]) for b in ("mlp", "gcn")), _gap(clients, c)] for c in names]
        title = "Figure 2: minority accuracy of each client in %"
        columns = ["client", "MLP", "GNN (gcn)", "MLP − GNN"]
        sheets.append(Sheet(title, columns, rows))
        ahead = sum(fmean(clients["mlp"][c]) > fmean(clients["gcn"][c]) for c in names)
        findings.append(
            f"The MLP is better on minority nodes in {ahead} of {len(names)} clients; the paper's figure says all 7."
        )
        labels = {"mlp": "MLP", "gcn": "GNN (GCN)"}
        bars = {
            labels[b]: ([fmean(v) for v in clients[b].values()], [_deviation(v) for v in clients[b].values()])
            for b in ("mlp", "gcn")
        }
        title = f"PubMed, FedAvg: minority nodes of each client, {_length(by_backbone['gcn'])}"
        figure = pictures.bars_figure(title, names, bars)
        drawn["figure2.png"] = pictures.to_png(figure)
    return PartResult(
        name="figure2",
        title="Figure 2: MLP and GNN on minority nodes",
        source=f"{PAPER}, Figure 2; the bars have no printed numbers",
        lines=lines,
        sheets=sheets,
        findings=findings,
        missing=study.missing(request),
        pictures=drawn,
        results_csv=results_csv(study, request),
        outcomes=study.outcomes,
    )


def proposition1(request: Request) -> PartResult:
    """Distances to the best linear boundary, by formula and by Monte Carlo."""
    draws = QUICK_DRAWS if request.quick else PROPOSITION_DRAWS
    found = [(case, estimate(case, draws)) for case in CASES] if request.wants("banks") else []
    lines, sections = [], []
    rows: list[list[str]] = []
    words = {"local": "dist", "sum": "dist' (sum)", "average": "dist' (average)"}
    for case, estimates in found:
        sections.append(len(rows))
        for kind in KINDS:
            line = _distance_line(case, kind, estimates[kind], words[kind])
            lines.append(line)
            place = case.name if kind == KINDS[0] else ""
            texts = [shown(v, None, 3) for v in (line.published, line.exact)]
            ours = f"{line.ours:.3f} ± {line.ours_std:.3f}"
            rows.append([place, words[kind], *texts, ours, f"{100 * estimates[kind].wrong:.1f}"])
    columns = ["federation", "quantity", "paper", "exact", "Monte Carlo", "wrong %"]
    note = (
        f"{draws} draws; ± is the standard error. dist: with own neighbours; dist': with those of the node's class. "
        "Paper: its formula; for averages with the sum divided by W. Exact: without presuming a balanced federation. "
        "Wrong: nodes on the wrong side of the boundary."
    )
    sheets = [Sheet("Proposition 1", columns, rows, sections=sections, num_labels=2, note=note)] if found else []
    drawn = {"proposition1.png": pictures.to_png(pictures.proposition_figure(CASES[0], found))} if found else {}
    return PartResult(
        name="proposition1",
        title="Proposition 1: separability with global neighbours",
        source=f"{PAPER}, Proposition 1 (a formula)",
        lines=lines,
        sheets=sheets,
        findings=_proposition_findings(found),
        pictures=drawn,
    )


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
}
"""In the order of ``all``."""


def _result(
    name: str,
    title: str,
    source: str,
    study: Study,
    request: Request,
    findings: Sequence[str] = (),
    pictured: str | None = None,
) -> PartResult:
    drawn = {}
    if pictured is not None and (figure := _sweep_picture(study, pictured)) is not None:
        drawn[f"{name}.png"] = figure
    return PartResult(
        name=name,
        title=title,
        source=source,
        lines=study.lines,
        sheets=result_sheets(title.partition(":")[0], study, request),
        findings=findings,
        missing=study.missing(request),
        pictures=drawn,
        results_csv=results_csv(study, request),
        outcomes=study.outcomes,
    )


def _sweep_picture(study: Study, setting: str) -> bytes | None:
    """Our curves, with the published points; None while nothing is finished."""
    published = {
        (line.dataset, *line.labels.values(), line.quantity): line.published
        for line in study.lines
        if line.published is not None
    }
    rows = []
    for trained in study.rows:
        if trained.entry is None or not trained.entry.results:
            continue
        row = {"value": trained.labels[setting], **figures(trained.entry), "method": trained.labels["algorithm"]}
        row["published"] = {m: published.get((*trained.key, m)) for m in ("overall", "minority")}
        rows.append(row)
    if len({row["value"] for row in rows}) < 2:
        return None
    figure = sweep_figure({"setting": setting, "metrics": ["overall", "minority"], "rows": rows})
    figure.suptitle(f"{figure.get_suptitle()}, {rows[0]['settings']['rounds']} rounds", fontsize=12)
    return pictures.to_png(figure)


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


def _minority_by_client(trained: Trained) -> dict[str, list[float]]:
    """By client: minority accuracy of each seed in percent."""
    found: dict[str, list[float]] = {}
    if trained.entry is not None:
        for result in trained.entry.results.values():
            for name, client in result.metrics["clients"].items():
                if client["minority"] is not None:
                    found.setdefault(name, []).append(100 * client["minority"])
    return found


def _client_lines(trained: Trained, clients: Mapping[str, Sequence[float]]) -> list[Line]:
    return [
        Line(
            dataset=trained.planned.row.dataset,
            labels={**trained.labels, "client": name},
            quantity="minority",
            ours=fmean(values),
            ours_std=_deviation(values) if len(values) > 1 else None,
            seeds=len(values),
            split=trained.planned.found.split if trained.planned.found else "",
            settings=trained.planned.file,
        )
        for name, values in clients.items()
    ]


def _length(trained: Trained) -> str:
    seeds = len(trained.entry.results) if trained.entry else 0
    return f"{trained.planned.row.settings['rounds']} rounds, {seeds} seed{'s' if seeds > 1 else ''}"


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _mean_std(values: Sequence[float]) -> str:
    return shown(fmean(values), _deviation(values) if len(values) > 1 else None, 2)


def _gap(clients: Mapping[str, Mapping[str, Sequence[float]]], client: str) -> str:
    return signed(fmean(clients["mlp"][client]) - fmean(clients["gcn"][client]), 2)


def _distance_line(case: Case, kind: str, found: Estimate, quantity: str) -> Line:
    return Line(
        dataset="banks",
        labels={"federation": case.name},
        quantity=quantity,
        published=case.paper_distance(kind),
        exact=case.exact_distance(kind),
        ours=found.distance,
        ours_std=found.distance_error,
        digits=3,
    )


def _proposition_findings(found: Sequence[tuple[Case, Mapping[str, Estimate]]]) -> list[str]:
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
