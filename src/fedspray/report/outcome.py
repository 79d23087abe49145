"""The result of a comparison, for Python and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspray import files
from fedspray.display import count, line, percent_spread, table
from fedspray.evaluation.metrics import METRICS
from fedspray.files import Json
from fedspray.report.comparisons import comparison_csv, comparison_sheets, earlier_pages, page_names
from fedspray.report.files import write_file
from fedspray.report.html import write_page
from fedspray.report.methods import Comparison, comparisons_of
from fedspray.runs.result import COLOURS, new_figure
from fedspray.studies.cells import Row
from fedspray.studies.comparison import summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FILE = "comparison.json"


@dataclass(frozen=True, eq=False)
class ComparisonResult:
    """Methods side by side, with statistics."""

    summary: Json
    """The JSON object that every table is made of."""
    pages: Mapping[tuple[str, str], Comparison] = field(default_factory=dict)
    """The data of each page, by data set and backbone; empty if read from a folder."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], reference: str, *, draws: int = 2000, tuning: Sequence[Json] = ()
    ) -> ComparisonResult:
        """From finished cells; see `summarise`."""
        pages = comparisons_of(rows, reference)
        summary = summarise(rows, reference, draws=draws, tuning=tuning)
        return cls({**summary, "pages": page_names(list(pages))}, pages)

    @classmethod
    def load(cls, folder: str | Path) -> ComparisonResult:
        """Reads what `save` wrote, without the pages' data."""
        return cls(files.read_json(Path(folder) / FILE))

    def save(self, folder: str | Path, *, settings: str = "") -> Path:
        """Writes comparison.json, .md, .tex, .csv and the pages; pages of an earlier comparison there are removed.

        ``settings`` says how to rerun the rows, for a column of the CSV file.
        """
        target = Path(folder)
        sheets, names = comparison_sheets(self.summary), page_names(list(self.pages))
        stale = earlier_pages(target / FILE) - set(names)
        content = json.dumps({**self.summary, "pages": names}, indent=2, allow_nan=False, ensure_ascii=False)
        write_file(target / FILE, f"{content}\n")
        write_file(target / "comparison.md", "\n".join(sheet.to_markdown() for sheet in sheets))
        write_file(target / "comparison.tex", "\n".join(sheet.to_latex() for sheet in sheets))
        write_file(target / "comparison.csv", comparison_csv(self.summary, settings))
        for comparison, name in zip(self.pages.values(), names, strict=True):
            write_page(comparison, target / name)
        for name in stale:
            (target / name).unlink(missing_ok=True)
        return target

    @property
    def table(self) -> pd.DataFrame:
        """One row per data set, backbone and method: mean and standard deviation of every metric on test nodes."""
        import pandas as pd

        rows = []
        for row in self.summary["rows"]:
            rows.append({**_place(row), "seeds": len(row["seeds"])})
            for name in METRICS:
                if name in row:
                    rows[-1] |= {name: row[name]["mean"], f"{name}_std": row[name]["std"]}
        return pd.DataFrame(rows)

    @property
    def per_seed(self) -> pd.DataFrame:
        """One row per data set, backbone, method and seed."""
        import pandas as pd

        rows = [
            {**_place(row), "seed": seed, **{name: row[name]["values"][i] for name in METRICS if name in row}}
            for row in self.summary["rows"]
            for i, seed in enumerate(row["seeds"])
        ]
        return pd.DataFrame(rows)

    @property
    def tests(self) -> pd.DataFrame:
        """Every method against the reference: difference, interval, p-values."""
        import pandas as pd

        return pd.DataFrame(self.summary["tests"])

    def plot(self) -> Figure:
        """Overall and minority accuracy of every method: mean and standard deviation over seeds."""
        figure, axes = new_figure()
        frame = self.table
        varied = [name for name in ("dataset", "backbone") if frame[name].nunique() > 1]
        places = np.arange(len(frame))
        for shift, (name, colour) in zip((-0.1, 0.1), COLOURS.items(), strict=True):
            mean, std = (frame[column].astype(float) for column in (name, f"{name}_std"))
            axes.errorbar(places + shift, mean, yerr=std.fillna(0), fmt="o", color=colour, capsize=3, label=name)
        axes.set_xticks(
            places, [", ".join(row) for row in frame[["method", *varied]].to_numpy()], rotation=20, ha="right"
        )
        axes.set_ylabel("accuracy on test nodes")
        axes.legend(frameon=False)
        return figure

    @property
    def failures(self) -> list[Json]:
        """Cells that failed, and why."""
        return list(self.summary["failures"])

    def __repr__(self) -> str:
        rows = self.summary["rows"]
        methods = ", ".join(dict.fromkeys(row["method"] for row in rows))
        data = ", ".join(dict.fromkeys(row["dataset"] for row in rows))
        return line(self, data, methods, count(len(self.summary["seeds"]), "seed"), count(len(rows), "row"))

    def _repr_html_(self) -> str:
        names = ("overall", "minority", "balanced", "macro_f1")
        rows = [[*_place(row).values(), *(percent_spread(row[name]) for name in names)] for row in self.summary["rows"]]
        columns = ["data set", "backbone", "method", *(METRICS[name].title for name in names)]
        seeds = count(len(self.summary["seeds"]), "seed")
        failed = f" {count(len(self.failures), 'cell')} failed." if self.failures else ""
        note = f"Compared with {self.summary['reference']}: see .tests.{failed}"
        return table(f"Test accuracy in %, {seeds}", columns, rows, note)


def _place(row: Json) -> Json:
    return {name: row[name] for name in ("dataset", "backbone", "method")}
