"""One figure of the paper, ours, and their difference; and a part of the paper as a list of them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspray.files import Json
from fedspray.report.sheets import Sheet, to_csv
from reproduction.access import AUTHORS

if TYPE_CHECKING:
    from fedspray.studies.cells import Cell

DONE, QUICK, PARTLY = "done", "quick", "partly"
MISSING, NOT_RUN, FAILED = "no data", "not run", "failed"

REST = ("seeds", "split", "status", "settings")
"""What a file says of a line beside its figures."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure. Accuracies are in percent; None is not known."""

    dataset: str
    labels: Mapping[str, Any] = field(default_factory=dict)
    """What else names it: algorithm and backbone, the value of a setting, a client …"""
    quantity: str
    published: float | None = None
    published_std: float | None = None
    ours: float | None = None
    ours_std: float | None = None
    ours_error: float | None = None
    """The standard error, where ours is an estimate of one number."""
    exact: float | None = None
    """What theory says, where it is not the published formula."""
    digits: int = 2
    seeds: int | None = None
    split: str = ""
    """Whose clients: the authors' or Louvain's."""
    status: str = DONE
    settings: str = ""
    """The file in `experiments` that runs it."""

    @property
    def difference(self) -> float | None:
        """Ours minus published."""
        return None if self.ours is None or self.published is None else self.ours - self.published

    @property
    def agrees(self) -> bool | None:
        """Whether ours, rounded like the published figure, is the same."""
        return None if self.difference is None else round(self.ours or 0.0, self.digits) == self.published

    @property
    def deviations(self) -> float | None:
        """The difference in published standard deviations."""
        return None if self.difference is None or not self.published_std else self.difference / self.published_std

    @property
    def conclusive(self) -> bool:
        """Whether all its seeds have run, in full and on the authors' clients: others say nothing about the paper."""
        return self.status == DONE and self.split == AUTHORS

    def to_json(self) -> Json:
        """As plain JSON values."""
        figures = ("published", "published_std", "ours", "ours_std", "ours_error", "exact", "difference")
        named = {"dataset": self.dataset, "labels": dict(self.labels), "quantity": self.quantity}
        return named | {name: getattr(self, name) for name in (*figures, *REST)}

    def texts(self) -> tuple[str, str, str]:
        """Published, ours and difference, as people read them."""
        ours = shown(self.ours, self.ours_std, self.digits) if self.ours is not None else self.status
        return shown(self.published, self.published_std, self.digits), ours, signed(self.difference, self.digits)


@dataclass(frozen=True)
class Missing:
    """Missing rows, and how to get them."""

    dataset: str
    reason: str
    command: str


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """Everything about one part of the paper."""

    name: str
    title: str
    source: str
    """Where the published figures are from."""
    lines: Sequence[Line]
    sheets: Sequence[Sheet]
    findings: Sequence[str] = ()
    """What the lines say, in sentences."""
    missing: Sequence[Missing] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """PNG by file name."""
    results_csv: str | None = None
    """Our figures alone, one line each."""
    cells: Sequence[Cell] = ()
    """Those behind it."""

    def to_json(self) -> Json:
        """As one JSON object; pictures and tables are files."""
        return {
            "part": self.name,
            "title": self.title,
            "source": self.source,
            "lines": [line.to_json() for line in self.lines],
            "findings": list(self.findings),
            "missing": [vars(entry) for entry in self.missing],
        }

    def to_markdown(self) -> str:
        """A section: findings, tables, pictures, and missing rows."""
        parts = [f"## {self.title}\n", f"Published: {self.source}.\n"]
        parts += ["\n".join(f"- {sentence}" for sentence in self.findings) + "\n"] if self.findings else []
        parts += [sheet.to_markdown() for sheet in self.sheets]
        parts += [f"![{self.title}]({name})\n" for name in self.pictures]
        parts += [f"- **{m.dataset}**: {m.reason} Then: `{m.command}`." for m in self.missing]
        return "\n".join(parts).rstrip() + "\n"

    def files(self) -> dict[str, str | bytes]:
        """Every file of this part, by name."""
        files: dict[str, str | bytes] = {
            f"{self.name}.md": self.to_markdown(),
            f"{self.name}-published.csv": published_csv(self.lines),
        }
        if self.results_csv is not None:
            files[f"{self.name}.csv"] = self.results_csv
        return {**files, **self.pictures}


def published_csv(lines: Sequence[Line]) -> str:
    """One line for each figure: published, ours, difference."""
    labels = list(dict.fromkeys(name for line in lines for name in line.labels))
    exact, error = ([n] if any(getattr(line, n) is not None for line in lines) else [] for n in ("exact", "ours_error"))
    figures = ["published", "published_std", *exact, "ours", "ours_std", *error, "difference"]
    rows = [
        [line.dataset, *(line.labels.get(name) for name in labels), line.quantity]
        + [None if value is None else f"{value:.6g}" for value in (getattr(line, name) for name in figures)]
        + [getattr(line, name) for name in REST]
        for line in lines
    ]
    return to_csv(["dataset", *labels, "quantity", *figures, *REST], rows)


@dataclass(frozen=True)
class Standing:
    """What a figure of ours rests on."""

    status: str
    seeds: int
    split: str

    def is_poorer_than(self, other: Standing) -> bool:
        """Whether it has fewer seeds, or lacks the authors' clients, which the other has."""
        return self.seeds < other.seeds or (other.split == AUTHORS and self.split != AUTHORS)


def earlier_figures(folder: Path, part: str) -> dict[tuple[str, ...], Standing]:
    """The figures of ours that a folder holds of a part, by data set, labels and quantity."""
    file = folder / f"{part}-published.csv"
    return _figures(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else {}


def lost_figures(folder: Path, result: PartResult) -> list[tuple[str, ...]]:
    """Which of them this result lacks, or has from fewer seeds or other clients."""
    now = _figures(published_csv(result.lines).splitlines())
    earlier = earlier_figures(folder, result.name)
    return [name for name, figure in earlier.items() if name not in now or now[name].is_poorer_than(figure)]


def _figures(text: Iterable[str]) -> dict[tuple[str, ...], Standing]:
    found = {}
    for row in csv.DictReader(text):
        columns = list(row)
        named = columns[: columns.index("quantity") + 1] if "quantity" in columns else columns[:1]
        if row.get("ours"):
            seeds = row.get("seeds") or ""
            found[tuple(row[name] for name in named)] = Standing(
                row.get("status") or "", int(seeds) if seeds.isdecimal() else 0, row.get("split") or ""
            )
    return found


def shown(value: float | None, std: float | None, digits: int) -> str:
    """``87.71 ± 0.65``."""
    if value is None:
        return ""
    return f"{value:,.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def signed(value: float | None, digits: int) -> str:
    """``+0.54``; a plain 0 where nothing is left after rounding."""
    if value is None:
        return ""
    rounded = round(value, digits)
    return "0" if rounded == 0 else f"{rounded:+,.{digits}f}".replace("-", "−")
