"""``fedspray tune``: choose settings on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspray.cli import options, study
from fedspray.cli.output import Output, to_json
from fedspray.errors import InputError

EPILOG = """
[bold]Examples[/bold]

fedspray tune --grid distill_weight=0.5,1,2,5 --rounds 50

fedspray tune --dataset pubmed --backbone sage --grid distill_weight=1,2,5 --grid temperature=1,2 --tuning-seeds 2
"""


def tune(
    grid: Annotated[
        list[str],
        typer.Option("--grid", help="A setting and the values to try; repeatable.", metavar="NAME=A,B,…"),
    ],
    config: study.Config = None,
    dataset: study.Datasets = None,
    partitioner: options.Partitioner = None,
    partition_dir: options.PartitionDir = None,
    clients: options.Clients = None,
    nodes: options.Nodes = None,
    alpha: options.Alpha = None,
    partition_seed: Annotated[int | None, options.PARTITION_SEED] = None,
    algorithm: study.Algorithms = None,
    backbone: study.Backbones = None,
    rounds: study.Rounds = None,
    settings: study.Settings = None,
    tuning_seeds: Annotated[
        int, typer.Option("--tuning-seeds", help="Seeds of every trial, from 1000 on.", metavar="N", min=1)
    ] = 1,
    criterion: Annotated[
        str,
        typer.Option(
            "--criterion",
            help="What is largest at the best trial: mean, overall, minority, balanced, loss.",
            metavar="NAME",
        ),
    ] = "mean",
    trials: Annotated[
        int | None,
        typer.Option("--trials", help="Try this many points, drawn from the grid.", metavar="N", min=1),
    ] = None,
    jobs: study.Jobs = None,
    threads: study.Threads = 1,
    backend: study.Backend = "loky",
    cluster: study.Cluster = None,
    cells: study.Cells = study.CELLS,
    keep_runs: study.KeepRuns = False,
    out: study.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Choose settings from a grid by validation accuracy; test nodes are not looked at."""
    from fedspray.report.comparisons import search_sheet
    from fedspray.report.files import write_file
    from fedspray.studies.tuning import FIRST_SEED, TunePlan, tune_rows

    output = Output(as_json)
    plan = study.read_plan(
        config,
        {
            **study.data_values(partitioner, partition_dir, clients, nodes, alpha, partition_seed),
            "rounds": rounds,
        },
        {"datasets": dataset, "algorithms": algorithm, "backbones": backbone},
        settings,
    )
    names = dict(study.listed("--grid", item) for item in grid)
    if len(names) < len(grid):
        raise InputError("--grid names a setting twice, but all its values go into one --grid NAME=A,B,…")
    methods = [method.name for method in plan.methods]
    search = TunePlan(
        seeds=tuple(range(FIRST_SEED, FIRST_SEED + tuning_seeds)),
        criterion=criterion,
        trials=trials,
        grid=dict.fromkeys(methods, names),
    )
    search.check(methods, plan.seeds)
    work = study.Work(output, cells, jobs, threads, backend, cluster, keep_runs)
    folder = out or Path("studies") / f"{config.stem if config else 'tune'}-{'-'.join(names)}"
    _, records = tune_rows(plan.rows(), search, work.run)
    if not as_json:
        for record in records:
            output.show(search_sheet(record).to_rich())
    write_file(folder / "search.json", to_json({"searches": records}))
    output.note(f"wrote search.json to {folder}; cells are in {cells}")
    output.result({"searches": records})
