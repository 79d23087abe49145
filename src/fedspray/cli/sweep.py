"""``fedspray sweep``: one setting over a list of values, with a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspray.cli import options, study
from fedspray.cli.output import Output, to_json

EPILOG = """
[bold]Examples[/bold]

fedspray sweep --vary distill_weight=0,0.5,1,2,5 --rounds 50 --seeds 3

fedspray sweep comparison.toml --vary local_epochs=1,2,5,10 --algorithm fedspray --algorithm fedavg
"""


def sweep(
    vary: Annotated[
        str,
        typer.Option(
            "--vary",
            help="Any setting and its values, or clients, nodes, alpha, split … of the data.",
            metavar="NAME=A,B,…",
        ),
    ],
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
    jobs: study.Jobs = None,
    threads: study.Threads = 1,
    backend: study.Backend = "loky",
    cluster: study.Cluster = None,
    cells: study.Cells = study.CELLS,
    keep_runs: study.KeepRuns = False,
    out: study.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one setting over a list of values and draw both accuracies over it."""
    from fedspray.report.comparisons import sweep_csv, sweep_sheet
    from fedspray.report.files import check_target, write_file
    from fedspray.report.sweeps import sweep_png
    from fedspray.studies.comparison import Entry
    from fedspray.studies.sweep import summarise_sweep, sweep_rows

    given = locals()
    output = Output(as_json)
    plan, work = study.read_plan(config, given), study.Work.of({**given, "output": output})
    if plan.tune is not None:
        output.note(f"{config}: [compare.tune] is not for sweeps, which choose nothing")
    setting, values = study.listed("--vary", vary)
    study.check_unset(setting, given)
    rows = sweep_rows(plan, setting, values)
    folder = out or Path("studies") / f"{config.stem if config else 'sweep'}-{setting}"
    check_target(folder / "sweep.json", [".json"], "--out")
    outcomes = work.run(f"sweeping {setting}", [cell for _, row in rows for cell in row.cells(plan.seeds)])
    count = len(plan.seeds)
    entries = [(value, Entry.of(row, outcomes[i * count : (i + 1) * count])) for i, (value, row) in enumerate(rows)]
    summary = summarise_sweep(setting, entries)
    write_file(folder / "sweep.json", to_json(summary))
    write_file(folder / "sweep.csv", sweep_csv(summary))
    write_file(folder / "sweep.png", sweep_png(summary))
    if not as_json:
        output.show(sweep_sheet(summary).to_rich())
    output.note(f"wrote sweep.png, .csv and .json to {folder}; cells are in {cells}")
    output.result(summary)
    study.finish(work.outcomes)
