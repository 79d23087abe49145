"""What parts made of runs show: tables, pictures over a setting, and our figures as CSV."""

from __future__ import annotations

from collections.abc import Sequence

from fedspray.report.figures import to_png
from fedspray.report.sheets import Sheet, to_csv
from fedspray.report.sweeps import sweep_figure
from fedspray.studies.comparison import figures
from reproduction.access import AUTHORS
from reproduction.lines import Line, PartResult
from reproduction.trained import Order, TrainedPart


def part_result(
    name: str,
    title: str,
    source: str,
    study: TrainedPart,
    order: Order,
    findings: Sequence[str] = (),
    pictured: str | None = None,
) -> PartResult:
    """A part that is nothing but a study: its tables and, over one setting, its picture."""
    drawn = {}
    if pictured is not None and (figure := _sweep_picture(study, pictured)) is not None:
        drawn[f"{name}.png"] = figure
    return PartResult(
        name=name,
        title=title,
        source=source,
        lines=study.lines,
        sheets=result_sheets(title.partition(":")[0], study, order),
        findings=findings,
        missing=study.missing(order),
        pictures=drawn,
        results_csv=results_csv(study, order),
        cells=study.cells,
    )


def results_csv(study: TrainedPart, order: Order) -> str | None:
    """Our finished rows, in percent, with sample standard deviations; only on the authors' clients.

    None if there are none, or only quick ones: a file of real results must not be overwritten by them.
    """
    names = [name for name in study.rows[0].labels if name not in ("algorithm", "backbone")] if study.rows else []
    columns = ["dataset", "algorithm", "backbone", "metric", "mean", "std", "seeds", "settings", *names]
    rows = [
        [line.dataset, line.labels["algorithm"], line.labels["backbone"], line.quantity]
        + [f"{line.ours:.4f}", None if line.ours_std is None else f"{line.ours_std:.4f}", line.seeds, line.settings]
        + [line.labels[name] for name in names]
        for line in study.lines
        if line.ours is not None and line.split in (AUTHORS, "")
    ]
    return to_csv(columns, rows) if rows and not order.quick else None


def result_sheets(title: str, study: TrainedPart, order: Order) -> list[Sheet]:
    """For each data set and metric: published, ours and difference; notes under the last."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in study.lines:
        groups.setdefault((line.dataset, line.quantity), []).append(line)
    ordered = sorted(groups, key=lambda place: [dataset for dataset, _ in groups].index(place[0]))
    return [
        _sheet(f"{title}: {dataset}, {metric}, in %", groups[dataset, metric], last * study.notes(order))
        for (dataset, metric), last in ((place, place == ordered[-1]) for place in ordered)
    ]


def _sheet(title: str, lines: Sequence[Line], note: str) -> Sheet:
    names = list(lines[0].labels)
    names.sort(key=lambda name: name != "backbone")  # tables are read by backbone
    rows = [
        [*(f"{line.labels[name]}" for name in names), *line.texts(), "" if line.seeds is None else str(line.seeds)]
        for line in lines
    ]
    sections = [i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0]]
    columns = [*names, "published", "ours", "difference", "seeds"]
    return Sheet(title, columns, rows, sections=sections, num_labels=len(names), note=note)


def _sweep_picture(study: TrainedPart, setting: str) -> bytes | None:
    """Our curves, with the published points; None while nothing is finished."""
    published = {
        (line.dataset, *line.labels.values(), line.quantity): line.published
        for line in study.lines
        if line.published is not None
    }
    rows = []
    for trained in study.rows:
        if not trained.row.results:
            continue
        row = {"value": trained.labels[setting], **figures(trained.row), "method": trained.labels["algorithm"]}
        row["published"] = {m: published.get((*trained.key, m)) for m in ("overall", "minority")}
        rows.append(row)
    if len({row["value"] for row in rows}) < 2:
        return None
    figure = sweep_figure({"setting": setting, "metrics": ["overall", "minority"], "rows": rows})
    figure.suptitle(f"{figure.get_suptitle()}, {rows[0]['settings']['rounds']} rounds", fontsize=12)
    return to_png(figure)
