"""Tables of comparisons, sweeps and searches, from their JSON objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from fedspray.display import percent, percent_spread
from fedspray.evaluation.metrics import METRICS
from fedspray.report.sheets import Sheet, to_csv
from fedspray.report.tables import best_of, with_all_seeds
from fedspray.studies.comparison import TIE
from fedspray.studies.statistics import COMPARED, T_TEST_SEEDS, WILCOXON_SEEDS

Json = Mapping[str, Any]


def comparison_sheets(summary: Json) -> list[Sheet]:
    """Accuracy and cost, differences with the reference for each data set, and wins over all of them."""
    sheets = []
    for dataset in dict.fromkeys(row["dataset"] for row in summary["rows"]):
        sheets.append(_accuracy(summary, dataset))
        if any(test["dataset"] == dataset for test in summary["tests"]):
            sheets.append(_differences(summary, dataset))
    if any(sum(tally["clients"].values()) for tally in summary["win_tie_loss"]):
        sheets.append(_wins(summary))
    sheets += [_chosen(summary["tuning"])] if summary["tuning"] else []
    return sheets


def comparison_csv(summary: Json, settings: str) -> str:
    """One line for each data set, method, backbone and metric; accuracies in percent.

    ``settings`` is the file that runs the rows again, for its column.
    """
    tests = {(t["dataset"], t["backbone"], t["method"], t["metric"]): t for t in summary["tests"]}
    columns = ["dataset", "algorithm", "backbone", "metric", "mean", "std", "seeds", "settings"]
    extra = ["difference", "low", "high", "t_p", "t_p_holm", "wilcoxon_p", "wilcoxon_p_holm"]
    lines = []
    for row in summary["rows"]:
        for metric in _known(summary):
            test = tests.get((row["dataset"], row["backbone"], row["method"], metric), {})
            figures = [_hundred(test.get(name)) for name in extra[:3]] + [_short(test.get(name)) for name in extra[3:]]
            names = (row["dataset"], row["method"], row["backbone"], metric)
            lines.append([*names, *_mean_std(row[metric]), len(row["seeds"]), settings, *figures])
    return to_csv([*columns, *extra], lines)


def page_names(places: Sequence[tuple[str, str]]) -> list[str]:
    """A file for the page of each data set and backbone; ``report.html`` if there is one only."""
    if len(places) == 1:
        return ["report.html"]
    names: list[str] = []
    for place in places:
        name = "report-" + re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(place))
        numbered = (f"{name}{'' if number == 1 else f'_{number}'}.html" for number in count(1))
        names.append(next(free for free in numbered if free not in names))
    return names


def earlier_pages(file: Path) -> set[str]:
    """The pages that an earlier comparison wrote beside this JSON file; none if there is no such file."""
    try:
        pages = json.loads(file.read_text(encoding="utf-8")).get("pages", [])
    except (OSError, ValueError, AttributeError):
        return set()
    return {name for name in pages if isinstance(name, str) and Path(name).name == name and name.endswith(".html")}


def sweep_sheet(summary: Json) -> Sheet:
    """One row for each value; names that are the same everywhere go into the title."""
    names = {"dataset": "data set", "backbone": "backbone", "method": "method"}
    varied = [name for name in names if len({row[name] for row in summary["rows"]}) > 1]
    fixed = [summary["rows"][0][name] for name in names if name not in varied]
    places = [[row[name] for name in varied] for row in summary["rows"]]
    ordered = sorted(summary["rows"], key=lambda row: places.index([row[name] for name in varied]))
    rows = [
        [*(row[name] for name in varied), str(row["value"])]
        + [percent_spread(row[metric]) for metric in COMPARED]
        + [_number(row["bytes_up"], 1e6), _number(row["cpu_seconds"])]
        for row in ordered
    ]
    title = ", ".join([*fixed, summary["setting"]]) + ": test accuracy in %"
    labels = [*(names[name] for name in varied), summary["setting"]]
    columns = [*labels, *COMPARED, "MB up", "CPU s"]
    note = _seed_note(ordered, [" ".join(row[: len(labels)]) for row in rows])
    return Sheet(title, columns, rows, *_best(ordered, varied, len(labels)), len(labels), note)


def sweep_csv(summary: Json) -> str:
    """One line for each row, value and metric; accuracies in percent."""
    columns = ["dataset", "algorithm", "backbone", "setting", "value", "metric", "mean", "std", "seeds"]
    lines = []
    for row in summary["rows"]:
        names = (row["dataset"], row["method"], row["backbone"], summary["setting"], row["value"])
        lines += [[*names, metric, *_mean_std(row[metric]), len(row["seeds"])] for metric in _known(summary)]
    return to_csv(columns, lines)


def _known(summary: Json) -> list[str]:
    """The metrics in percent that any row has."""
    shares = [name for name, metric in METRICS.items() if metric.percent]
    return [name for name in shares if any(row.get(name, {}).get("mean") is not None for row in summary["rows"])]


def search_sheet(record: Json) -> Sheet:
    """All trials of one search, in their order."""
    names = list(record["trials"][0]["values"])
    rows, bold = [], set()
    for index, trial in enumerate(record["trials"]):
        means = [_mean([run.get(metric) for run in trial["runs"]]) for metric in COMPARED]
        score = "failed" if trial["score"] is None else f"{trial['score']:.4f}"
        rows.append([*(str(trial["values"][name]) for name in names), *map(percent, means), score])
        if trial["values"] == record["chosen"]:
            bold |= {(index, column) for column in range(len(names) + 3)}
    title = f"{record['dataset']}, {', '.join(record['methods'])}, {record['backbone']}: validation accuracy in %"
    seeds = ", ".join(map(str, record["seeds"]))
    note = f"Score: {record['criterion']}. Seeds: {seeds}. Chosen: {_values(record['chosen'])}."
    return Sheet(title, [*names, *COMPARED, "score"], rows, frozenset(bold), num_labels=len(names), note=note)


def _accuracy(summary: Json, dataset: str) -> Sheet:
    ordered = [row for row in summary["rows"] if row["dataset"] == dataset]
    rows = [
        [row["backbone"], row["method"]]
        + [percent_spread(row[metric]) for metric in COMPARED]
        + [_number(row["bytes_up"], 1e6), _number(row["bytes_down"], 1e6), _number(row["cpu_seconds"])]
        for row in ordered
    ]
    columns = ["backbone", "method", *COMPARED, "MB up", "MB down", "CPU s"]
    names = [f"{row['backbone']} {row['method']}" for row in ordered]
    note = f"{_seed_note(ordered, names)} Bytes of all clients and CPU seconds per run.{_failure_note(ordered)}"
    return Sheet(f"{dataset}: test accuracy in %", columns, rows, *_best(ordered, ["backbone"], 2), 2, note)


def _failure_note(rows: Sequence[Json]) -> str:
    failed = [f"{row['backbone']} {row['method']} ({row['client_failures']})" for row in rows if row["client_failures"]]
    if not failed:
        return ""
    return (
        f" CLIENTS FAILED, as often as stands in brackets, in {', '.join(failed)}: figures may lack their nodes, "
        "and seeds with other clients than the reference's are not compared."
    )


def _differences(summary: Json, dataset: str) -> Sheet:
    tests = [test for test in summary["tests"] if test["dataset"] == dataset]
    kinds = {"t_p_holm": ("p (t)", "paired t-test (t)"), "wilcoxon_p_holm": ("p (W)", "Wilcoxon's test (W)")}
    kinds = {key: words for key, words in kinds.items() if any(test[key] is not None for test in tests)}
    places = [(test["backbone"], test["metric"]) for test in tests]
    rows = [
        [test["backbone"], test["metric"], test["method"], _points(test["difference"]), _interval(test)]
        + [_p(test[key]) for key in kinds]
        for test in tests
    ]
    return Sheet(
        f"{dataset}: difference to {summary['reference']} in points",
        ["backbone", "metric", "method", "difference", "95% interval", *(title for title, _ in kinds.values())],
        rows,
        sections=[i for i, place in enumerate(places) if i == 0 or place != places[i - 1]],
        num_labels=3,
        note=_test_note(summary, [test["pairs"] for test in tests], [name for _, name in kinds.values()]),
    )


def _test_note(summary: Json, pairs: Sequence[int], shown: Sequence[str]) -> str:
    draws, most = summary["bootstrap_draws"], max(pairs)
    interval = f"Interval: bootstrap over test nodes, {draws:,} draws. " if draws else ""
    if not shown and most < T_TEST_SEEDS:
        few = "1 seed is" if most == 1 else f"{most} seeds are"
        return f"{interval}{few} too few for a paired test: t needs {T_TEST_SEEDS}, Wilcoxon {WILCOXON_SEEDS}."
    if not shown:
        return f"{interval}No paired test: differences are the same under all seeds."
    seeds = " to ".join(map(str, dict.fromkeys((min(pairs), most))))
    return f"{interval}p: {' and '.join(shown)} over {seeds} seeds, Holm-corrected over the methods."


def _wins(summary: Json) -> Sheet:
    tallies = {(tally["method"], tally["metric"]): tally for tally in summary["win_tie_loss"]}
    methods = list(dict.fromkeys(method for method, _ in tallies))
    rows = [
        [method, *(_tally(tallies[method, metric][over]) for over in ("clients", "tables") for metric in COMPARED)]
        for method in methods
    ]
    columns = ["method", *(f"{metric}, {over}" for over in ("clients", "tables") for metric in COMPARED)]
    note = (
        f"Means over seeds, better / within {100 * TIE:g} points / worse. Clients: of every data set and backbone; "
        "tables: pairs of data set and backbone."
    )
    return Sheet(f"win / tie / loss against {summary['reference']}", columns, rows, note=note)


def _chosen(tuning: Sequence[Json]) -> Sheet:
    rows = [
        [r["dataset"], r["backbone"], ", ".join(r["methods"]), _values(r["chosen"]), str(r["num_trials"])]
        for r in tuning
    ]
    seeds = ", ".join(map(str, tuning[0]["seeds"]))
    note = f"On validation nodes by {tuning[0]['criterion']}, seeds {seeds}; no trial sees a test node."
    columns = ["data set", "backbone", "methods", "chosen", "trials"]
    return Sheet("settings chosen by search", columns, rows, num_labels=4, note=note)


def _best(
    rows: Sequence[Json], names: Sequence[str], first_column: int
) -> tuple[frozenset[tuple[int, int]], list[int]]:
    """Of rows that have these names in common: the cells with the largest mean, and the first row of each group."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(row[name] for name in names), []).append(i)
    bold = set()
    for indices in groups.values():
        seeds = [rows[i]["seeds"] for i in indices]
        for column, metric in enumerate(COMPARED, start=first_column):
            bold |= {(indices[best], column) for best in best_of([rows[i][metric]["mean"] for i in indices], seeds)}
    return frozenset(bold), [indices[0] for indices in groups.values()]


def _seed_note(rows: Sequence[Json], names: Sequence[str]) -> str:
    """Over how many seeds means are, and the names of rows that lack some."""
    seeds = [row["seeds"] for row in rows]
    most = max(map(len, seeds))
    if most == 0:
        return "No cell was finished."
    short = sorted(set(range(len(rows))) - set(with_all_seeds(seeds)))
    note = "One seed." if most == 1 else f"Mean ± standard deviation over {most} seeds."
    if not short:
        return note
    told = ", ".join(f"{names[i]} ({len(seeds[i])})" for i in short)
    return f"{note} FEWER SEEDS WERE FINISHED, as many as stand in brackets, of {told}: never the best in bold."


def _values(values: Json) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _tally(tally: Json) -> str:
    return f"{tally['win']} / {tally['tie']} / {tally['loss']}"


def _interval(test: Json) -> str:
    return "" if test["low"] is None else f"{_points(test['low'])} … {_points(test['high'])}"


def _points(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:+.2f}".replace("-", "−")


def _p(value: float | None) -> str:
    if value is None:
        return "n/a"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _number(value: float | None, unit: float = 1.0) -> str:
    return "n/a" if value is None else f"{value / unit:,.1f}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean_std(value: Json) -> list[str | None]:
    return [_hundred(value["mean"]), _hundred(value["std"])]


def _hundred(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.4f}"


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
