"""Four parts about seeds and data that no setting was chosen on: who is ahead, with tests; and how soon, at what cost.

`fresh`, `options` and `unseen` set FedSpray 2 against every other method, seed by seed: on the paper's data, there once
more with FedSpray 2's own options for all, and with defaults on data that nobody tuned for. `reach` says after how many
rounds, bytes and CPU seconds a method first holds an accuracy: the one that Local ends with, and the one that the paper
prints for FedSpray. They come from finished cells of ``experiments/fresh-*.toml``, ``options-*.toml`` and
``unseen-*.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from fedspray.report.figures import to_png
from fedspray.report.sheets import Sheet, to_csv
from fedspray.studies.statistics import holm, paired_t
from reproduction.lines import Line, PartResult, shown
from reproduction.pictures import reach_figure
from reproduction.published import results
from reproduction.sota import ALONE, METRICS, OURS, interval, paired
from reproduction.trained import Order, Trained, TrainedPart, rows_of, train_rows

if TYPE_CHECKING:
    from fedspray.studies.results import CellResult

HELD = 5
"""Rounds in a row that an accuracy must be reached in."""
PAPERS = "fedspray"

Place = tuple[str, str]
"""Data set and backbone."""


def _trained(part: str, studies: str, order: Order) -> tuple[TrainedPart, dict[Place, dict[str, Trained]]]:
    """What is finished of the studies."""
    study = train_rows(part, rows_of(studies, order), order, METRICS)
    places: dict[Place, dict[str, Trained]] = {}
    for trained in study.rows:
        if trained.row.results:
            methods = places.setdefault((trained.row.dataset, trained.labels["backbone"]), {})
            methods[trained.labels["algorithm"]] = trained
    return study, places


# ---- fresh, options and unseen ------------------------------------------------------------------


@dataclass(frozen=True)
class Against:
    """FedSpray 2 against one method, on the seeds that both have."""

    dataset: str
    backbone: str
    method: str
    metric: str
    values: Sequence[float]
    """The method's, of all its seeds."""
    gaps: Sequence[float]
    """FedSpray 2 less the method, of common seeds; none for FedSpray 2 itself."""
    p: float | None
    """Of a paired t-test."""
    corrected: float | None = None
    """The same, by Holm's method over all comparisons."""


def fresh(order: Order) -> PartResult:
    """FedSpray 2 against all methods on fresh seeds."""
    source = "nothing; these are seeds 10 to 14, run once, with all settings fixed before"
    return _against("fresh", "Fresh seeds: FedSpray 2 against all methods", source, order)


def options(order: Order) -> PartResult:
    """The same with the options of FedSpray 2 for all methods."""
    source = "nothing; seeds 10 to 14; every method's options were chosen on validation nodes of seed 200"
    return _against("options", "Fresh seeds: FedSpray 2 against all methods with its options", source, order)


def unseen(order: Order) -> PartResult:
    """FedSpray 2 against other methods on data that no setting was chosen on."""
    source = "nothing; all settings are defaults, and each seed was run once"
    return _against("unseen", "Unseen data: FedSpray 2 as it is, against training alone and others", source, order)


def _against(part: str, title: str, source: str, order: Order) -> PartResult:
    study, places = _trained(part, part, order)
    found = [
        Against(*place, name, metric, row.values(metric), gaps, paired_t(gaps) if gaps else None)
        for place, methods in places.items()
        for name, row in methods.items()
        for metric in METRICS
        for gaps in [paired(methods[OURS], row, metric) if OURS in methods and name != OURS else []]
    ]
    corrected = holm([each.p for each in found])
    found = [replace(each, corrected=p) for each, p in zip(found, corrected, strict=True)]
    groups: dict[tuple[str, str], list[Against]] = {}
    for each in found:
        groups.setdefault((each.dataset, each.metric), []).append(each)
    return PartResult(
        name=part,
        title=title,
        source=source,
        lines=study.lines,
        sheets=[_sheet(*place, group) for place, group in groups.items()],
        findings=_leads(found, study),
        missing=study.missing(order),
        results_csv=_csv(found) if found and not order.quick else None,
        cells=study.cells,
    )


def _sheet(dataset: str, metric: str, group: Sequence[Against]) -> Sheet:
    backbones = list(dict.fromkeys(each.backbone for each in group))
    known = {(each.method, each.backbone): each for each in group}
    rows = []
    for method in dict.fromkeys(each.method for each in group):
        row = [method]
        for backbone in backbones:
            each = known.get((method, backbone))
            row += ["", ""] if each is None else [_mean(each), _lead(each)]
        rows.append(row)
    columns = ["method", *(text for name in backbones for text in (name, f"{OURS} less it"))]
    note = "In brackets: seeds. Differences on common seeds with 95% t-intervals; p: paired t from five seeds on, Holm."
    return Sheet(f"{dataset}, {metric}, in %", columns, rows, note=note)


def _mean(each: Against) -> str:
    spread = stdev(each.values) if len(each.values) > 1 else None
    return f"{shown(fmean(each.values), spread, 2)} ({len(each.values)})"


def _lead(each: Against) -> str:
    tested = "" if each.corrected is None else f", p = {each.corrected:.2g}"
    return interval(each.gaps) + tested if each.gaps else ""


def _csv(found: Sequence[Against]) -> str:
    columns = ["dataset", "backbone", "method", "metric", "mean", "std", "seeds", "difference", "common_seeds"]
    rows: list[list[Any]] = []
    for each in found:
        spread = f"{stdev(each.values):.4f}" if len(each.values) > 1 else None
        lead = f"{fmean(each.gaps):.4f}" if each.gaps else None
        tested = [None if p is None else f"{p:.4g}" for p in (each.p, each.corrected)]
        name = [each.dataset, each.backbone, each.method, each.metric, f"{fmean(each.values):.4f}"]
        rows.append([*name, spread, len(each.values), lead, len(each.gaps) or None, *tested])
    return to_csv([*columns, "p", "p_holm"], rows)


def _leads(found: Sequence[Against], study: TrainedPart) -> list[str]:
    """In how many figures FedSpray 2 is at or above every other method on common seeds, and how complete that is."""
    figures: dict[tuple[str, str, str], list[Against]] = {}
    for each in found:
        if each.gaps:
            figures.setdefault((each.dataset, each.backbone, each.metric), []).append(each)
    if not figures:
        return []
    behind = [
        f"{' '.join(place)}: {each.method} by {-fmean(each.gaps):.2f} points"
        for place, group in figures.items()
        for each in group
        if fmean(each.gaps) < 0
    ]
    ahead = sum(all(fmean(each.gaps) >= 0 for each in group) for group in figures.values())
    finished = sum(cell.result is not None for cell in study.cells)
    return [
        f"{OURS} is at or above every method with finished seeds in {ahead} of {len(figures)} figures"
        + (f"; elsewhere behind, {'; '.join(behind)}." if behind else "."),
        f"{finished} of {len(study.cells)} cells are finished.",
    ]


# ---- reach --------------------------------------------------------------------------------------


Reach = Sequence[tuple[int, float, float] | None]
"""By seed: the round in which a method first holds an accuracy, megabytes per client (both ways) and CPU seconds of all
clients until then; None where it never does."""


def reach(order: Order) -> PartResult:
    """Rounds, bytes and CPU seconds until a method holds an accuracy."""
    study, places = _trained("reach", "fresh", order)
    rows: list[list[Any]] = []
    lines, sheets = [], []
    for place, methods in places.items():
        shown_rows = []
        for target, metric in _targets(place):
            for name, trained in methods.items():
                found = _reach(trained, methods.get(ALONE), target, metric)
                if found:
                    rows.append([*place, name, target, metric, *_row(found)])
                    shown_rows.append([f"{target}, {metric}", name, *map(str, _row(found))])
                    lines.append(_line(trained, target, metric, found))
        columns = ["target", "method", "reached", "of seeds", "rounds", "MB per client", "CPU s"]
        sections = [i for i in range(1, len(shown_rows)) if shown_rows[i][0] != shown_rows[i - 1][0]]
        sheets.append(Sheet(" ".join(place), columns, shown_rows, sections=sections, num_labels=2, note=_NOTE))
    pictures = {
        f"reach-{'-'.join(place)}.png": to_png(reach_figure(" ".join(place), _curves(methods), _levels(place, methods)))
        for place, methods in places.items()
        if place[1] == "gcn" and len(methods) > 2
    }
    return PartResult(
        name="reach",
        title="Time and bytes to accuracy",
        source="the paper's Table 2 for the level of FedSpray; all else is ours",
        lines=lines,
        sheets=sheets,
        missing=study.missing(order),
        pictures=pictures,
        results_csv=to_csv(_COLUMNS, rows) if rows and not order.quick else None,
        cells=study.cells,
    )


_NOTE = (
    f"Test accuracy of {HELD} rounds in a row; medians over the seeds that reach it. local: what Local's reported "
    "round has with the same seed. published: FedSpray's mean in the paper's Table 2."
)
_COLUMNS = (
    *("dataset", "backbone", "method", "target", "metric"),
    *("reached", "seeds", "rounds", "megabytes", "cpu_seconds"),
)


def _targets(place: Place) -> Iterator[tuple[str, str]]:
    for target in ("local", "published"):
        for metric in METRICS:
            if target == "local" or _published(place, metric) is not None:
                yield target, metric


def _published(place: Place, metric: str) -> float | None:
    fits = [row for row in results("table2") if (row.dataset, row.backbone) == place and row.metric == metric]
    return next((row.mean / 100 for row in fits if row.algorithm == PAPERS), None)


def _reach(trained: Trained, alone: Trained | None, target: str, metric: str) -> Reach:
    found: list[tuple[int, float, float] | None] = []
    for seed, result in sorted(trained.row.results.items()):
        known = None if alone is None else alone.row.results.get(seed)
        level = _published((trained.row.dataset, trained.labels["backbone"]), metric)
        if target == "local":
            level = None if known is None else known.metrics[metric]
        if level is not None:
            rounds = first_held(result.content["curves"]["test"][metric], level)
            megabytes, seconds = _costs(result)
            found.append(None if rounds is None else (rounds, rounds * megabytes, rounds * seconds))
    return found


def first_held(curve: Sequence[float | None], level: float) -> int | None:
    """The first of `HELD` rounds in a row at or above a level, counted from 1."""
    for start in range(len(curve) - HELD + 1):
        if all(value is not None and value >= level for value in curve[start : start + HELD]):
            return start + 1
    return None


def _costs(result: CellResult) -> tuple[float, float]:
    """Of one round: megabytes per client, and CPU seconds."""
    metrics = result.metrics
    sent = (metrics["bytes_up"] + metrics["bytes_down"]) / len(metrics["clients"]) / 1e6
    return sent / metrics["rounds"], metrics["cpu_seconds"] / metrics["rounds"]


def _row(found: Reach) -> list[Any]:
    reached = [each for each in found if each is not None]
    columns = zip(zip(*reached, strict=True), (0, 2, 1), strict=True) if reached else ()
    medians = [f"{median(values):.{digits}f}" for values, digits in columns] or [""] * 3
    return [len(reached), len(found), *medians]


def _line(trained: Trained, target: str, metric: str, found: Reach) -> Line:
    known = [each[0] for each in found if each is not None]
    quantity = f"rounds to {target}, {metric}"
    return trained.line(quantity, ours=median(known) if known else None, seeds=len(found), digits=0)


def _curves(methods: Mapping[str, Trained]) -> dict[str, tuple[list[float], dict[str, list[float]]]]:
    """By method: megabytes per client after each round that all seeds have, and the mean over seeds of each metric."""
    found = {}
    for name, trained in methods.items():
        cells = list(trained.row.results.values())
        step = fmean(_costs(cell)[0] for cell in cells)
        means = {
            metric: [
                100 * fmean(values)
                for values in zip(*(c.content["curves"]["test"][metric] for c in cells), strict=False)
            ]
            for metric in METRICS
        }
        found[name] = ([step * (r + 1) for r in range(len(means["overall"]))], means)
    return found


def _levels(place: Place, methods: Mapping[str, Trained]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {metric: {} for metric in METRICS}
    for metric in METRICS:
        if ALONE in methods:
            found[metric]["Local, at its end"] = fmean(methods[ALONE].values(metric))
        if (level := _published(place, metric)) is not None:
            found[metric]["FedSpray, published"] = 100 * level
    return found
