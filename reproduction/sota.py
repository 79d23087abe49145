"""The protocol that most papers since 2023 share, FED-PUB's: seven data sets, 10 and 20 clients, overall and minority.

TopFGL's and FedAux's tables stand beside ours. Neither has a minority column, and they disagree about the same methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import sqrt
from operator import itemgetter
from pathlib import Path
from statistics import fmean, stdev

from fedspray.studies.statistics import holm, paired_t
from reproduction.lines import DONE, PartResult, signed
from reproduction.published import results
from reproduction.tables import part_result
from reproduction.trained import Order, Trained, TrainedPart, rows_of, train_rows

OURS, ALONE, BEST = "fedspray2", "local", "topfgl"
SHARED = "fedspray2-shared"
SEARCHED = ("fedspray2 step", SHARED)
"""With a step size for each data set, searched for like every other method's: that which validation nodes prefer is
compared with methods run here."""
TUNED = "fedspray2 tuned"
"""With settings for each data set, as authors of printed figures choose theirs; not compared with methods run here."""
METRICS = ("overall", "minority")
FAR = 3.0
"""Points by which two papers must differ about a method to be named."""

Place = tuple[str, int]
"""Data set and number of clients."""


def sota(order: Order) -> PartResult:
    """All methods on all data sets of the protocol."""
    rows = [
        replace(t, labels={**t.labels, "algorithm": t.row.method, "clients": clients_of(t.file)})
        for t in rows_of("sota", order)
    ]
    study = train_rows("sota", rows, order, METRICS)
    source = "TopFGL (2025), Table III; FedAux (NeurIPS 2025) prints other figures, see the findings"
    title = "Protocol A: the state of the art on equal terms"
    return part_result("sota", title, source, study, order, findings(study))


def clients_of(file: str) -> int:
    """The number that a study's file ends with."""
    return int(Path(file).stem.rpartition("-")[2])


def findings(study: TrainedPart) -> list[str]:
    """FedSpray 2 against TopFGL's printed figures, against Local and the best method run, and paper against paper."""
    places: dict[Place, dict[str, Trained]] = {}
    for trained in study.rows:
        if trained.status == DONE:
            methods = places.setdefault((trained.row.dataset, trained.labels["clients"]), {})
            methods[trained.labels["algorithm"]] = trained
    compared = {place: methods for place, methods in places.items() if OURS in methods}
    return [*_against_printed(compared), *_against_alone(compared), *_among_all(compared), *_papers()]


def _against_printed(places: Mapping[Place, Mapping[str, Trained]]) -> list[str]:
    printed = {
        (row.dataset, int(row.settings["clients"])): row.mean for row in results("sota") if row.algorithm == BEST
    }
    sentences = []
    for name in (OURS, SHARED, TUNED):
        found = {p: methods[name] for p, methods in places.items() if p in printed and name in methods}
        gaps = {p: fmean(row.values("overall")) - printed[p] for p, row in found.items()}
        if gaps:
            told = "; ".join(f"{_name(place)} {signed(gap, 2)}" for place, gap in gaps.items())
            above = sum(gap > 0 for gap in gaps.values())
            where = f"in {above} of {len(gaps)} columns: {told}"
            sentences.append(f"{name} is above TopFGL's printed overall accuracy {where}.")
    return sentences


def _against_alone(places: Mapping[Place, Mapping[str, Trained]]) -> list[str]:
    found = {
        (place, metric): paired(methods[OURS], methods[ALONE], metric)
        for place, methods in places.items()
        for metric in METRICS
        if ALONE in methods
    }
    corrected = holm([paired_t(gaps) for gaps in found.values()])
    told = [
        f"{_name(place)} {metric} {interval(gaps)}" + ("" if p is None else f", p = {p:.2g}")
        for ((place, metric), gaps), p in zip(found.items(), corrected, strict=True)
    ]
    sentence = "against Local on the same seeds, with 95% t-intervals (p: paired t, Holm-corrected over all of these)"
    return [f"{OURS} {sentence}: {'; '.join(told)}."] if told else []


def _among_all(places: Mapping[Place, Mapping[str, Trained]]) -> list[str]:
    rivals = {
        place: {name: row for name, row in methods.items() if name not in (OURS, TUNED, *SEARCHED)}
        for place, methods in places.items()
    }
    chosen = {
        place: max((name for name in SEARCHED if name in methods), key=lambda name: _preference(methods[name]))
        for place, methods in places.items()
        if rivals[place] and any(name in methods for name in SEARCHED)
    }
    if not chosen:
        return []
    names = "; ".join(f"{_name(place)} {name}" for place, name in chosen.items())
    told = [f"Of our two with searched settings validation nodes prefer: {names}."]
    few = min(len(rivals[place]) for place in chosen)
    for metric in METRICS:
        others = []
        for place, name in chosen.items():
            ours = fmean(places[place][name].values(metric))
            best, most = max(((n, fmean(row.values(metric))) for n, row in rivals[place].items()), key=itemgetter(1))
            if most > ours:
                others.append(f"{_name(place)} {best} {most:.2f} against {ours:.2f}")
        rest = f"; elsewhere {'; '.join(others)}" if others else ""
        where = f"in {len(chosen) - len(others)} of {len(chosen)} columns, with at least {few} other finished methods"
        told.append(f"That one has the best {metric} accuracy {where} each{rest}.")
    return told


def _preference(row: Trained) -> float:
    """The mean of both accuracies on validation nodes."""
    return fmean(result.metrics["val"][metric] for result in row.row.results.values() for metric in METRICS)


def _papers() -> list[str]:
    first, second = (
        {(row.dataset, int(row.settings["clients"]), row.algorithm): row.mean for row in results(part)}
        for part in ("sota", "sota-fedaux")
    )
    far = [key for key in first if key in second and abs(first[key] - second[key]) > FAR]
    told = [f"{name} on {_name((d, k))} {first[d, k, name]:.1f} and {second[d, k, name]:.1f}" for d, k, name in far]
    return [f"TopFGL's and FedAux's tables differ by more than {FAR:g} points about {'; '.join(told)}."] if told else []


def paired(a: Trained, b: Trained, metric: str) -> list[float]:
    """Differences in points, seed by seed."""
    seeds = sorted(set(a.row.results) & set(b.row.results))
    return [100 * (a.row.results[s].metrics[metric] - b.row.results[s].metrics[metric]) for s in seeds]


def interval(gaps: Iterable[float]) -> str:
    """The mean and its 95% interval by Student's t; the mean alone if there is one."""
    from scipy.stats import t

    values = list(gaps)
    mean = fmean(values)
    if len(values) < 2:
        return signed(mean, 2)
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return f"{signed(mean, 2)} ({signed(mean - half, 2)} to {signed(mean + half, 2)})"


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
