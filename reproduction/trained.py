"""Parts that are made of runs: cells of the files ``experiments/PART-*.toml`` beside published figures.

A file is a study for ``fedspray compare``; a row of it belongs to a published row with the same data set,
algorithm and backbone, and the same value of each setting that the published row is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedspray import InputError
from fedspray.experiment import Experiment
from fedspray.runs.result import spread
from fedspray.studies.cells import Cell, Row
from fedspray.studies.grid import RunCells, run_rows
from fedspray.studies.study import Study
from reproduction.access import LOUVAIN, Access, Found
from reproduction.lines import DONE, FAILED, MISSING, NOT_RUN, PARTLY, QUICK, Line, Missing
from reproduction.published import PublishedRow, results

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


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """A row of a part: with its cells, or with the reason why there are no data."""

    row: Row
    file: str
    """The study that it is of."""
    labels: Mapping[str, Any]
    """Algorithm, backbone, and the settings that the part is about."""
    found: Found | None = None
    reason: str = ""
    quick: bool = False
    """Cut short."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What a published row must have in common."""
        return self.row.dataset, *self.labels.values()

    @property
    def status(self) -> str:
        """How far it came."""
        if self.found is None:
            return MISSING
        if any(cell.failure for cell in self.row.ended):
            return FAILED
        finished = len(self.row.results)
        done = QUICK if self.quick else DONE
        return NOT_RUN if finished == 0 else done if finished == len(self.row.run.seeds) else PARTLY

    def values(self, metric: str) -> list[float]:
        """The metric of each finished seed, in percent."""
        found = (result.metrics.get(metric) for _, result in sorted(self.row.results.items()))
        return [100 * value for value in found if value is not None]

    def line(self, quantity: str, **figures: Any) -> Line:
        """A line of its table: what the row says of itself, beside these figures."""
        about: dict[str, Any] = {
            "labels": self.labels,
            "seeds": None if self.found is None else len(self.row.results),
            "split": self.found.split if self.found else "",
            "status": self.status,
            "settings": self.file,
        }
        return Line(dataset=self.row.dataset, quantity=quantity, **{**about, **figures})


@dataclass(frozen=True, eq=False)
class TrainedPart:
    """All rows of a part, beside what is published."""

    part: str
    rows: Sequence[Trained]
    lines: Sequence[Line]

    @property
    def cells(self) -> list[Cell]:
        """Those behind it."""
        return [cell for trained in self.rows for cell in trained.row.ended]

    def missing(self, order: Order) -> list[Missing]:
        """One entry for each data set that is not here, or whose cells are not finished."""
        reasons = {t.row.dataset: t.reason for t in self.rows if t.found is None}
        cells: dict[str, list[bool]] = {}
        for cell in self.cells:
            cells.setdefault(cell.dataset, []).append(cell.result is not None)
        for dataset, finished in cells.items():
            if not all(finished):
                reasons[dataset] = f"{sum(finished)} of {len(finished)} cells are finished."
        return [Missing(name, reason, order.command(self.part)) for name, reason in reasons.items()]

    def notes(self, order: Order) -> str:
        """What the reader of a table must know."""
        sentences = [QUICK_NOTE] if order.quick else []
        other = {t.row.dataset for t in self.rows if t.found and t.found.split == LOUVAIN}
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


def rows_of(part: str, order: Order, settings: Sequence[str] = ()) -> list[Trained]:
    """The rows of every file of a part that were asked for, before any is trained."""
    files = sorted([*order.experiments.glob(f"{part}.toml"), *order.experiments.glob(f"{part}-*.toml")])
    if not files:
        raise InputError(f"{order.experiments} holds no file {part}.toml or {part}-*.toml, of which {part} is made")
    found = []
    for file in files:
        for row in Study.from_values(Experiment.read_values(file), str(file)).rows():
            if order.wants(row.dataset):
                found.append(_untrained(row, file.name, order, settings))
    names = list(dict.fromkeys(row.dataset for row in results(part)))  # in the paper's order
    return sorted(found, key=lambda t: names.index(t.row.dataset) if t.row.dataset in names else len(names))


def train(part: str, order: Order, settings: Sequence[str] = ()) -> TrainedPart:
    """Runs the cells of a part, whose rows algorithm, backbone and these settings tell apart."""
    return train_rows(part, rows_of(part, order, settings), order)


def train_rows(part: str, rows: Sequence[Trained], order: Order, metrics: Sequence[str] = ()) -> TrainedPart:
    """Runs the cells of these rows and puts them beside what is published; ``metrics``: by default those published."""
    trained = iter(run_rows(part, [t.row for t in rows if t.found is not None], order.run_cells))
    rows = [t if t.found is None else replace(t, row=next(trained)) for t in rows]
    published = results(part)
    names = list(metrics) or list(dict.fromkeys(row.metric for row in published))
    return TrainedPart(part, rows, _lines(rows, published, names))


def _untrained(row: Row, file: str, order: Order, settings: Sequence[str]) -> Trained:
    found, described = order.access.find(row.data), row.settings
    labels = {"algorithm": row.run.algorithm, "backbone": row.backbone, **{n: described.get(n) for n in settings}}
    if order.quick:
        rounds = min(QUICK_ROUNDS, int(described["rounds"]))
        row = replace(row, run=replace(row.run, values={**row.run.values, "rounds": rounds}))
        row = row.with_seeds(row.run.seeds[:QUICK_SEEDS])
    if isinstance(found, Found):
        return Trained(row=replace(row, data=found.data), file=file, labels=labels, found=found, quick=order.quick)
    return Trained(row=row, file=file, labels=labels, reason=found.reason)


def _lines(rows: Sequence[Trained], published: Sequence[PublishedRow], metrics: Sequence[str]) -> list[Line]:
    known = {(row.dataset, row.algorithm, row.backbone, *row.settings.values(), row.metric): row for row in published}
    lines = []
    for trained in rows:
        for metric in metrics:
            theirs, ours = known.get((*trained.key, metric)), spread(list(trained.values(metric)))
            figures = {"published": theirs.mean, "published_std": theirs.std} if theirs else {}
            lines.append(trained.line(metric, ours=ours["mean"], ours_std=ours["std"], **figures))
    return lines
