"""``fedspray tune``: choose settings on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedspray.cli import knobs, study
from fedspray.cli.flags import AsJson, Count, examples, flag
from fedspray.cli.output import Output, to_json
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.studies.study import Study
    from fedspray.studies.tuning import Search


@examples(
    "fedspray tune --grid distill_weight=0.5,1,2,5 --rounds 50",
    "fedspray tune experiments/tune-pubmed.toml",
    "fedspray tune --dataset pubmed --backbone sage --grid distill_weight=1,2,5 --tuning-seeds 2",
)
def tune(
    config: study.Config = None,
    /,
    *,
    grid: Annotated[
        list[str] | None,
        flag("A setting and the values to try; repeatable. Default: [compare.tune] in the file.", "NAME=A,B,…"),
    ] = None,
    given: knobs.Search | None = None,
    tuning_seeds: Annotated[
        Count | None, flag("Seeds of every trial, from 1000 on.", "N", default="the file's, or 1")
    ] = None,
    criterion: Annotated[
        str | None,
        flag(
            "The criterion for the best trial: mean, overall, minority, balanced, loss …",
            "NAME",
            default="the file's, or mean",
        ),
    ] = None,
    trials: Annotated[Count | None, flag("Try this many points, drawn from the grid.", "N", default="all")] = None,
    work: study.WorkFlags = study.WORK,
    out: study.Out = None,
    as_json: AsJson = False,
) -> None:
    """Choose settings from a grid by validation accuracy; test nodes are never used."""
    from fedspray.report.comparisons import search_sheet
    from fedspray.report.files import check_target, write_file
    from fedspray.studies.tuning import chosen_toml, tune_rows

    output = Output(as_json)
    wanted, workers = study.read_study(config, given), study.Workers(work, output)
    search = _search(wanted, grid, tuning_seeds, criterion, trials)
    names = dict.fromkeys(name for points in search.grid.values() for name in points) if grid else {}
    folder = out or Path("studies") / "-".join([config.stem if config else "tune", *names])
    check_target(folder / "search.json", [".json"], "--out")
    _, records = tune_rows(wanted.rows(), search, workers.run)
    write_file(folder / "search.json", to_json({"searches": records}))
    write_file(folder / "chosen.toml", chosen_toml(records))
    if not as_json:
        for record in records:
            output.show(search_sheet(record).to_rich())
    output.note(f"wrote search.json and chosen.toml to {folder}; cells are in {work.cells}")
    output.result({"searches": records})
    study.finish(workers.ended)


def _search(
    wanted: Study, grid: Sequence[str] | None, seeds: int | None, criterion: str | None, trials: int | None
) -> Search:
    """The file's search, changed by flags; ``--grid`` replaces all its grids."""
    from fedspray.studies.tuning import FIRST_SEED, Search

    methods = list(wanted.methods)
    given: dict[str, Any] = {"criterion": criterion, "trials": trials}
    given["seeds"] = None if seeds is None else tuple(range(FIRST_SEED, FIRST_SEED + seeds))
    given = {name: value for name, value in given.items() if value is not None}
    if grid:
        names = dict(study.listed("--grid", item) for item in grid)
        if len(names) < len(grid):
            raise InputError("--grid names a setting twice: put all its values into one --grid NAME=A,B,…")
        basis = wanted.search or Search()
        search = replace(basis, grid=dict.fromkeys(methods, names), shared={}, untuned=(), **given)
    elif wanted.search is not None:
        search = replace(wanted.search, **given)
    else:
        raise InputError("nothing to choose: give --grid NAME=A,B,…, or a file with [compare.tune]")
    search.check(methods, wanted.seeds)
    wanted.check_search(search)
    return search
