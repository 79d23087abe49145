"""``fedspray compare``: algorithms x backbones x data sets x seeds, with statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedspray.cli import knobs, study
from fedspray.cli.flags import AsJson, examples, flag, whole
from fedspray.cli.output import Output


@examples(
    "fedspray compare --algorithm local --algorithm fedavg --algorithm fedspray --rounds 50 --seeds 5",
    "fedspray compare comparison.toml --jobs 4",
    "fedspray compare comparison.toml --backend dask --cluster tcp://10.0.0.1:8786",
)
def compare(
    config: study.Config = None,
    /,
    *,
    given: knobs.Study | None = None,
    reference: Annotated[
        str | None, flag("The method to compare the others with.", "NAME", default="fedspray, or the first")
    ] = None,
    bootstrap: Annotated[int, whole(0), flag("Bootstrap draws of test nodes; 0 turns it off.", "N")] = 2000,
    work: study.WorkFlags = study.WORK,
    out: study.Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare algorithms over data sets, backbones and seeds; finished cells are never run twice."""
    from fedspray.report.comparisons import comparison_sheets
    from fedspray.report.files import check_target
    from fedspray.report.outcome import ComparisonResult
    from fedspray.studies.grid import run_rows
    from fedspray.studies.tuning import tune_rows

    output = Output(as_json)
    wanted, workers = study.read_study(config, given, reference), study.Workers(work, output)
    folder = out or Path("studies") / (config.stem if config else "compare")
    check_target(folder / "comparison.json", [".json"], "--out")
    rows, searches = tune_rows(wanted.rows(), wanted.search, workers.run) if wanted.search else (wanted.rows(), [])
    rows = run_rows("comparing", rows, workers.run)
    result = ComparisonResult.of(rows, wanted.reference, draws=bootstrap, tuning=searches)
    result.save(folder, settings=study.again(config, given))
    if not as_json:
        for sheet in comparison_sheets(result.summary):
            output.show(sheet.to_rich())
    pages = len(result.pages)
    written = {0: "", 1: ", report.html"}.get(pages, f", {pages} pages report-*.html")
    output.note(f"wrote comparison.json, .md, .tex, .csv{written} to {folder}; cells are in {work.cells}")
    output.result(result.summary)
    study.finish(workers.ended)
