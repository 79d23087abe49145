"""``fedspray tune``: choose settings on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspray.cli import options, study
from fedspray.cli.output import Output, to_json
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.studies.plan import Plan
    from fedspray.studies.tuning import TunePlan

EPILOG = """
[bold]Examples[/bold]

fedspray tune --grid distill_weight=0.5,1,2,5 --rounds 50

fedspray tune experiments/tune-pubmed.toml

fedspray tune --dataset pubmed --backbone sage --grid distill_weight=1,2,5 --tuning-seeds 2
"""


def tune(
    config: study.Config = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            help="A setting and the values to try; repeatable. Or \\[compare.tune] in the file says it.",
            metavar="NAME=A,B,…",
        ),
    ] = None,
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
    settings: study.Settings = None,
    tuning_seeds: Annotated[
        int | None,
        typer.Option(
            "--tuning-seeds", help="Seeds of every trial, from 1000 on. [dim]default: 1[/dim]", metavar="N", min=1
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion",
            help="What is best at the best trial: mean, overall, minority, balanced, loss … [dim]default: mean[/dim]",
            metavar="NAME",
        ),
    ] = None,
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
    from fedspray.report.files import check_target, write_file
    from fedspray.studies.tuning import chosen_toml, tune_rows

    output = Output(as_json)
    plan, work = study.read_plan(config, locals()), study.Work.of(locals())
    search = _search(plan, grid, tuning_seeds, criterion, trials)
    names = dict.fromkeys(name for points in search.grid.values() for name in points) if grid else {}
    folder = out or Path("studies") / "-".join([config.stem if config else "tune", *names])
    check_target(folder / "search.json", [".json"], "--out")
    _, records = tune_rows(plan.rows(), search, work.run)
    write_file(folder / "search.json", to_json({"searches": records}))
    write_file(folder / "chosen.toml", chosen_toml(records))
    if not as_json:
        for record in records:
            output.show(search_sheet(record).to_rich())
    output.note(f"wrote search.json and chosen.toml to {folder}; cells are in {cells}")
    output.result({"searches": records})
    study.finish(work.outcomes)


def _search(
    plan: Plan, grid: Sequence[str] | None, seeds: int | None, criterion: str | None, trials: int | None
) -> TunePlan:
    """The search of the file, changed by flags; with ``--grid``, that takes the place of all its grids."""
    from fedspray.studies.tuning import FIRST_SEED, TunePlan

    methods = [method.name for method in plan.methods]
    given: dict[str, Any] = {"criterion": criterion, "trials": trials}
    given["seeds"] = None if seeds is None else tuple(range(FIRST_SEED, FIRST_SEED + seeds))
    given = {name: value for name, value in given.items() if value is not None}
    if grid:
        names = dict(study.listed("--grid", item) for item in grid)
        if len(names) < len(grid):
            raise InputError("--grid names a setting twice, but all its values go into one --grid NAME=A,B,…")
        basis = plan.tune or TunePlan()
        search = replace(basis, grid=dict.fromkeys(methods, names), shared={}, untuned=(), **given)
    elif plan.tune is not None:
        search = replace(plan.tune, **given)
    else:
        raise InputError("there is nothing to choose: give --grid NAME=A,B,…, or a file with [compare.tune]")
    search.check(methods, plan.seeds)
    plan.check_search(search)
    return search
