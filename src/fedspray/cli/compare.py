"""``fedspray compare``: algorithms x backbones x data sets x seeds, with statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspray.cli import options, study
from fedspray.cli.output import Output

EPILOG = """
[bold]Examples[/bold]

fedspray compare --algorithm local --algorithm fedavg --algorithm fedspray --rounds 50 --seeds 5

fedspray compare comparison.toml --jobs 4

fedspray compare comparison.toml --backend dask --cluster tcp://10.0.0.1:8786
"""


def compare(
    config: study.Config = None,
    dataset: study.Datasets = None,
    partitioner: options.Partitioner = None,
    partition_dir: options.PartitionDir = None,
    clients: options.Clients = None,
    nodes: options.Nodes = None,
    alpha: options.Alpha = None,
    partition_seed: Annotated[int | None, options.PARTITION_SEED] = None,
    prepare: options.Prepare = None,
    split: options.Split = None,
    split_scope: options.SplitScope = None,
    algorithm: study.Algorithms = None,
    backbone: study.Backbones = None,
    rounds: study.Rounds = None,
    seeds: study.Seeds = None,
    settings: study.Settings = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", help="The method that the others are compared with.", metavar="NAME"),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", help="Draws of test nodes; 0 leaves it out.", metavar="N", min=0)
    ] = 2000,
    jobs: study.Jobs = None,
    threads: study.Threads = 1,
    backend: study.Backend = "loky",
    cluster: study.Cluster = None,
    cells: study.Cells = study.CELLS,
    keep_runs: study.KeepRuns = False,
    out: study.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare algorithms over data sets, backbones and seeds; finished cells are never run twice."""
    from fedspray.report.comparisons import comparison_sheets
    from fedspray.report.files import check_target
    from fedspray.report.outcome import ComparisonResult
    from fedspray.studies.comparison import Entry
    from fedspray.studies.tuning import tune_rows

    given = locals()
    output = Output(as_json)
    plan, work = study.read_plan(config, given), study.Work.of({**given, "output": output})
    folder = out or Path("studies") / (config.stem if config else "compare")
    check_target(folder / "comparison.json", [".json"], "--out")
    rows, searches = tune_rows(plan.rows(), plan.tune, work.run) if plan.tune else (plan.rows(), [])
    # Seed by seed, so that what is there after a while can be compared.
    by_seed = [cell for seed in plan.seeds for row in rows for cell in row.cells([seed])]
    outcomes = work.run("comparing", by_seed)
    entries = [Entry.of(row, outcomes[i :: len(rows)]) for i, row in enumerate(rows)]
    result = ComparisonResult.of(entries, plan.reference, draws=bootstrap, tuning=searches)
    result.save(folder, settings=study.again(config, given))
    summary, sheets = result.summary, comparison_sheets(result.summary)
    if not as_json:
        for sheet in sheets:
            output.show(sheet.to_rich())
    pages = len(summary["pages"])
    written = {0: "", 1: ", report.html"}.get(pages, f", {pages} pages report-*.html")
    output.note(f"wrote comparison.json, .md, .tex, .csv{written} to {folder}; cells are in {cells}")
    output.result(summary)
    study.finish(work.outcomes)
