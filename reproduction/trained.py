"""Parts that are made of runs: cells of the files ``experiments/PART-*.toml`` beside published figures.

A file is a study for ``fedspray compare``; a row of it belongs to a published row with the same data set,
algorithm and backbone, and the same value of each setting that the published row is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedspray import InputError
from fedspray.experiment import Experiment
from fedspray.runs.result import spread
from fedspray.studies.cells import Cell, Row
from fedspray.studies.comparison import Entry
from fedspray.studies.grid import Outcome
from fedspray.studies.plan import Plan
from reproduction.access import LOUVAIN, Access, Found
from reproduction.lines import DONE, FAILED, MISSING, NOT_RUN, PARTLY, QUICK, Line, Missing
from reproduction.published import PublishedRow, results

RunCells = Callable[[str, Sequence[Cell]], list[Outcome]]
"""Runs cells under a title (or only looks for finished ones), and says how each ended."""

QUICK_ROUNDS = 20
QUICK_SEEDS = 1
QUICK_NOTE = f"Quick: at most {QUICK_ROUNDS} rounds and one seed; this shows that it runs, not what the paper measured."


@dataclass(frozen=True, kw_only=True)
class Order:
    """What was asked for, and what it takes."""

    run_cells: RunCells
    access: Access
    experiments: Path
    """The folder of the studies."""
    datasets: Sequence[str] = ()
    """Only these; none means all."""
    quick: bool = False

    def wants(self, dataset: str) -> bool:
        """Whether this data set was asked for."""
        return not self.datasets or dataset in self.datasets

    def command(self, part: str) -> str:
        """The command that makes a part on the same data sets."""
        words = ["fedspray reproduce", part, *(f"--dataset {name}" for name in self.datasets)]
        return " ".join([*words, "--quick"] if self.quick else words)


@dataclass(frozen=True)
class Planned:
    """A row of a study: with data, or with the reason why there are none."""

    row: Row
    seeds: tuple[int, ...]
    file: str
    found: Found | None
    reason: str = ""
    quick: bool = False
    """Cut short."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The rows of a part, and how their cells ended."""

    planned: Planned
    entry: Entry | None
    """None without data."""
    labels: Mapping[str, Any]
    """Algorithm, backbone, and the settings that the part is about."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What a published row must have in common."""
        return self.planned.row.dataset, *self.labels.values()

    @property
    def status(self) -> str:
        """How far it came."""
        if self.entry is None:
            return MISSING
        if any(outcome.failure for outcome in self.entry.outcomes):
            return FAILED
        finished = len(self.entry.results)
        done = QUICK if self.planned.quick else DONE
        return NOT_RUN if finished == 0 else done if finished == len(self.planned.seeds) else PARTLY

    def values(self, metric: str) -> list[float]:
        """The metric of each finished seed, in percent."""
        if self.entry is None:
            return []
        found = (self.entry.results[seed].metrics.get(metric) for seed in sorted(self.entry.results))
        return [100 * value for value in found if value is not None]


@dataclass(frozen=True, eq=False)
class Study:
    """All rows of a part."""

    part: str
    rows: Sequence[Trained]
    lines: Sequence[Line]
    outcomes: Sequence[Outcome] = field(default_factory=tuple)

    def missing(self, order: Order) -> list[Missing]:
        """One entry for each data set that is not here, or whose cells are not finished."""
        reasons = {t.planned.row.dataset: t.planned.reason for t in self.rows if t.entry is None}
        cells: dict[str, list[bool]] = {}
        for outcome in self.outcomes:
            cells.setdefault(outcome.cell.dataset, []).append(outcome.result is not None)
        for dataset, finished in cells.items():
            if not all(finished):
                reasons[dataset] = f"{sum(finished)} of {len(finished)} cells are finished."
        return [Missing(name, reason, order.command(self.part)) for name, reason in reasons.items()]

    def notes(self, order: Order) -> str:
        """What the reader of a table must know."""
        sentences = [QUICK_NOTE] if order.quick else []
        other = {t.planned.row.dataset for t in self.rows if t.planned.found and t.planned.found.split == LOUVAIN}
        if other:
            sentences.append(
                f"Clients of {', '.join(sorted(other))}: Louvain's, not the authors', whose node lists "
                f"(docs/datasets.md) are not in {order.access.partitions[0]}."
            )
        return " ".join(sentences)


def experiments_folder(chosen: Path | None = None) -> Path:
    """The folder of the studies: the one asked for, or the project's own."""
    folder = Path(__file__).parents[1] / "experiments" if chosen is None else chosen
    if not folder.is_dir():
        raise InputError(f"--experiments {folder} is not a folder, but one with studies PART-NAME.toml is needed")
    return folder


def studies(part: str, order: Order) -> list[Planned]:
    """The rows of every file of a part that were asked for."""
    files = sorted(order.experiments.glob(f"{part}-*.toml"))
    if not files:
        raise InputError(f"{order.experiments} holds no file {part}-*.toml, but {part} is made of such studies")
    planned = []
    for file in files:
        plan = Plan.from_values(Experiment.read_values(file), str(file))
        for row in plan.rows():
            if order.wants(row.dataset):
                planned.append(_planned(row, plan.seeds, file.name, order))
    names = list(dict.fromkeys(row.dataset for row in results(part)))  # in the paper's order
    return sorted(planned, key=lambda p: names.index(p.row.dataset) if p.row.dataset in names else len(names))


def make_study(part: str, order: Order, settings: Sequence[str] = (), metrics: Sequence[str] = ()) -> Study:
    """Runs the cells of a part and puts them beside what is published.

    Args:
        part: its name.
        order: what was asked for.
        settings: names of the settings that tell its rows apart, beside algorithm and backbone.
        metrics: what is measured; by default what is published.
    """
    planned = studies(part, order)
    able = [p for p in planned if p.found is not None]
    cells = [cell for p in able for cell in p.row.cells(p.seeds)]
    outcomes = order.run_cells(part, cells) if cells else []
    rest, rows = iter(outcomes), []
    for p in planned:
        entry = None if p.found is None else Entry.of(p.row, [next(rest) for _ in p.seeds])
        described = p.row.settings
        labels = {
            "algorithm": p.row.run.algorithm,
            "backbone": p.row.backbone,
            **{name: described.get(name) for name in settings},
        }
        rows.append(Trained(p, entry, labels))
    published = results(part)
    names = list(metrics) or list(dict.fromkeys(row.metric for row in published))
    return Study(part, rows, _lines(rows, published, names), outcomes)


def _planned(row: Row, seeds: tuple[int, ...], file: str, order: Order) -> Planned:
    found = order.access.find(row.data)
    if order.quick:
        rounds = min(QUICK_ROUNDS, int(row.settings["rounds"]))
        row = replace(row, run=replace(row.run, values={**row.run.values, "rounds": rounds}))
        seeds = seeds[:QUICK_SEEDS]
    if isinstance(found, Found):
        return Planned(replace(row, data=found.data), seeds, file, found, quick=order.quick)
    return Planned(row, seeds, file, None, found.reason)


def _lines(rows: Sequence[Trained], published: Sequence[PublishedRow], metrics: Sequence[str]) -> list[Line]:
    known = {(row.dataset, row.algorithm, row.backbone, *row.settings.values(), row.metric): row for row in published}
    lines = []
    for trained in rows:
        for metric in metrics:
            theirs, ours = known.get((*trained.key, metric)), spread(list(trained.values(metric)))
            found = trained.planned.found
            lines.append(
                Line(
                    dataset=trained.planned.row.dataset,
                    labels=trained.labels,
                    quantity=metric,
                    published=theirs.mean if theirs else None,
                    published_std=theirs.std if theirs else None,
                    ours=ours["mean"],
                    ours_std=ours["std"],
                    seeds=len(trained.entry.results) if trained.entry else None,
                    split=found.split if found else "",
                    status=trained.status,
                    settings=trained.planned.file,
                )
            )
    return lines
