"""Choosing settings on validation data only.

A grid, not a sampler: searches here are over one to three settings, a grid is exact, every method gets
visibly the same number of trials, and trials are cells, so they are resumable and shared. Trials see no test
node (`Cell.validation_only`): no test figure exists.

::

    [compare.tune]
    seeds = 2                        # 1000 and 1001: never those of the report
    criterion = "mean"               # of overall and minority validation accuracy
    trials = 4                       # for every method; a larger grid is thinned out by a seeded draw
    rounds = 100                     # of a trial; by default as many as are reported
    untuned = ["local"]              # methods that have nothing to choose

    [compare.tune.shared]            # chosen first, once for all methods of a data set and backbone
    lr = [0.005, 0.01]

    [compare.tune.grid.fedspray]     # then each method's own
    distill_weight = [0.5, 1, 2, 5]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any

from fedspray.errors import InputError, RunStopped, unknown
from fedspray.evaluation.metrics import METRICS
from fedspray.files import Json
from fedspray.seeds import generator
from fedspray.studies.cells import Cell, Row, by_place
from fedspray.studies.grid import RunCells, run_rows
from fedspray.studies.values import check_keys, check_list, check_seeds, check_table, is_whole

Values = dict[str, Any]

FIRST_SEED = 1000
"""Tuning seeds start here unless listed."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and by what it is chosen."""

    seeds: tuple[int, ...] = (FIRST_SEED,)
    criterion: str = "mean"
    trials: int | None = None
    """Points for every method; None uses every point; the grids must then have equal sizes."""
    rounds: int | None = None
    """Rounds of a trial; None: those of the report."""
    shared: Mapping[str, list[Any]] = field(default_factory=dict)
    """Settings that all methods of a data set and backbone share."""
    grid: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    """By method: its own settings."""
    untuned: tuple[str, ...] = ()

    @classmethod
    def from_values(cls, values: Any, methods: Sequence[str], reporting_seeds: Sequence[int], where: str) -> Search:
        """Reads ``[compare.tune]``; refuses an unequal number of trials and seeds that are also reported."""
        check_table(values, f"{where}: tune")
        keys = ("seeds", "criterion", "trials", "rounds", "shared", "grid", "untuned")
        check_keys(values, keys, f"{where}: [compare.tune]")
        grids = check_table(values.get("grid", {}), f"{where}: [compare.tune.grid]")
        untuned = values.get("untuned", [])
        if not isinstance(untuned, list) or not all(isinstance(name, str) for name in untuned):
            raise InputError(f"{where}: untuned is {untuned!r}, but must be a list of methods")
        for name in [*grids, *untuned]:
            if name not in methods:
                raise unknown("method of this comparison", name, methods)
        search = cls(
            seeds=check_seeds(values.get("seeds", 1), f"{where}: tuning seeds", FIRST_SEED),
            criterion=values.get("criterion", "mean"),
            trials=values.get("trials"),
            rounds=values.get("rounds"),
            shared=_lists(values.get("shared", {}), f"{where}: [compare.tune.shared]"),
            grid={name: _lists(grid, f"{where}: [compare.tune.grid.{name}]") for name, grid in grids.items()},
            untuned=tuple(untuned),
        )
        search.check(methods, reporting_seeds)
        return search

    def check(self, methods: Sequence[str], reporting_seeds: Sequence[int]) -> None:
        """Refuses a search that is unfair or uses reported seeds."""
        if not isinstance(self.criterion, str) or self.criterion not in criteria():
            raise unknown("criterion", str(self.criterion), criteria())
        both = sorted(set(self.seeds) & set(reporting_seeds))
        if both:
            raise InputError(f"the tuning seed {both[0]} is also reported, but tuning and reported seeds must differ")
        if self.trials is not None and (not is_whole(self.trials) or self.trials < 1):
            raise InputError(f"trials is {self.trials!r}, but must be a whole number above 0")
        if not self.grid:
            return
        counts = {name: len(self.points(name)) for name in methods if name not in self.untuned}
        wanted = max(counts.values(), default=0)
        for name, count in counts.items():
            if count != wanted:
                raise InputError(
                    f"every method must get the same number of trials, but {name!r} has {count} "
                    f"and another one {wanted}: change its grid, set `trials`, or list it under `untuned`"
                )

    def points(self, method: str) -> list[Values]:
        """The points of a method's grid, thinned out to `trials` by a draw that depends on its name alone."""
        return self._thinned(grid_points(self.grid[method]), method) if method in self.grid else []

    def shared_points(self) -> list[Values]:
        """The points of the shared settings, thinned out likewise."""
        return self._thinned(grid_points(self.shared), "shared settings")

    def _thinned(self, points: list[Values], name: str) -> list[Values]:
        if self.trials is None or len(points) <= self.trials:
            return points
        chosen = generator(0, "trials", name).choice(len(points), size=self.trials, replace=False)
        return [points[i] for i in sorted(chosen)]


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Every combination of the listed values; the last name changes fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def tune_rows(rows: Sequence[Row], search: Search, run_cells: RunCells) -> tuple[list[Row], list[Json]]:
    """Chooses settings for every row: the rows with their chosen settings, and the record of each search.

    First the shared settings, for all methods of a data set and backbone together: by the mean of the
    methods' scores. Then each method's own.
    """
    records: list[Json] = []
    rows = list(rows)
    for row in rows:
        for points in (search.shared_points() if search.shared else [], search.points(row.method)):
            _check_points(row, points)
    if search.shared:
        groups = by_place(rows)
        searches = [(members, search.shared_points()) for members in groups.values()]
        found = _tried(searches, search, run_cells, "tuning shared settings")
        for (dataset, backbone), record in zip(groups, found, strict=True):
            names = [row.method for row in groups[dataset, backbone]]
            records.append({"dataset": dataset, "backbone": backbone, "methods": names, **record})
        chosen = dict(zip(groups, (record["chosen"] for record in found), strict=True))
        rows = [row.with_values(chosen[row.dataset, row.backbone]) for row in rows]
    tuned = [i for i, row in enumerate(rows) if row.method in search.grid and row.method not in search.untuned]
    found = _tried([([rows[i]], search.points(rows[i].method)) for i in tuned], search, run_cells, "tuning each method")
    for i, record in zip(tuned, found, strict=True):
        row = rows[i]
        records.append({"dataset": row.dataset, "backbone": row.backbone, "methods": [row.method], **record})
        rows[i] = row.with_values(record["chosen"])
    return rows, records


def chosen_toml(records: Sequence[Json]) -> str:
    """The chosen settings, as tables to paste into a comparison's file."""
    tables: dict[str, Values] = {}
    for record in records:
        owners = [record["dataset"], record["backbone"], *(record["methods"] if len(record["methods"]) == 1 else [])]
        tables.setdefault("/".join(owners), {}).update(record["chosen"])
    texts = []
    for place, values in tables.items():
        lines = [f"{name} = {json.dumps('none' if value is None else value)}" for name, value in values.items()]
        texts.append("\n".join([f"[compare.set.{json.dumps(place, ensure_ascii=False)}]", *lines]) + "\n")
    return "\n".join(texts)


def criteria() -> list[str]:
    """The criteria: ``mean`` of overall and minority accuracy, and all metrics of a round."""
    return ["mean", *(name for name, each in METRICS.items() if not each.closing)]


def criterion_score(criterion: str, validation: Json) -> float | None:
    """How good a trial is: larger is better; None where the validation set is empty."""
    if criterion == "mean":
        known = [validation[name] for name in ("overall", "minority") if validation[name] is not None]
        return fmean(known) if known else None
    return METRICS[criterion].score(validation.get(criterion))


def _tried(
    searches: Sequence[tuple[Sequence[Row], list[Values]]], search: Search, run_cells: RunCells, title: str
) -> list[Json]:
    """All trials of all searches as one grid of cells; then, for each search, its record."""
    searches = [(rows, [_read(rows[0], point) for point in points]) for rows, points in searches]
    length = {} if search.rounds is None else {"rounds": search.rounds}
    changed = [row.with_values(point | length) for rows, points in searches for point in points for row in rows]
    for row in changed:
        row.check()
    tried = iter(run_rows(title, [row.with_seeds(search.seeds) for row in changed], run_cells, validation_only=True))
    records = []
    for rows, points in searches:
        trials = [_trial(point, [cell for _ in rows for cell in next(tried).ended], search) for point in points]
        best = max((t for t in trials if t["score"] is not None), key=lambda t: t["score"], default=None)
        if best is None:
            raise RunStopped(f"no trial of {rows[0].dataset}, {rows[0].method}, {rows[0].backbone} gave a score")
        records.append(
            {
                "criterion": search.criterion,
                "seeds": list(search.seeds),
                "num_trials": len(trials),
                "chosen": best["values"],
                "trials": trials,
            }
        )
    return records


def _trial(point: Values, cells: Sequence[Cell], search: Search) -> Json:
    """One point of a search: validation figures only, since there are no others."""
    runs = []
    for cell in cells:
        run: Json = {"method": cell.method, "seed": cell.seed, "failure": cell.failure}
        if cell.result is not None:
            metrics = cell.result.metrics
            run |= {name: metrics["val"][name] for name in ("overall", "minority", "balanced", "loss")}
            run |= {"round": metrics["best_round"], "client_failures": metrics["failures"]}
            # Figures without a failed client's nodes can't be compared with others.
            run["score"] = None if metrics["failures"] else criterion_score(search.criterion, metrics["val"])
        runs.append(run)
    scores = [run.get("score") for run in runs]
    known = [value for value in scores if value is not None]
    return {"values": point, "score": fmean(known) if len(known) == len(scores) else None, "runs": runs}


def _read(row: Row, point: Values) -> Values:
    """A point with its values as the algorithm reads them."""
    changed = row.with_values(point)
    changed.check()
    return {name: changed.settings[name] for name in point}


def _check_points(row: Row, points: Sequence[Values]) -> None:
    """Refuses a duplicate point, which would count as another trial."""
    read = [_read(row, point) for point in points]
    for place, point in enumerate(read):
        if point in read[:place]:
            words = ", ".join(f"{name} = {value}" for name, value in point.items())
            raise InputError(f"{row.method}, {row.backbone}: {words} is tried twice, but trials must differ")


def _lists(grid: Any, where: str) -> dict[str, list[Any]]:
    return {name: check_list(v, f"{where}: {name}", "values to try") for name, v in check_table(grid, where).items()}
