"""``fedspray sweep``: one setting over a list of values, with a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedspray.cli import knobs, study
from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output, to_json


@examples(
    "fedspray sweep --vary distill_weight=0,0.5,1,2,5 --rounds 50 --seeds 3",
    "fedspray sweep comparison.toml --vary local_epochs=1,2,5,10 --algorithm fedspray --algorithm fedavg",
)
def sweep(
    config: study.Config = None,
    /,
    *,
    vary: Annotated[
        str, flag("Any setting and its values, or clients, nodes, alpha, split … of the data.", "NAME=A,B,…")
    ],
    given: knobs.Study | None = None,
    work: study.WorkFlags = study.WORK,
    out: study.Out = None,
    as_json: AsJson = False,
) -> None:
    """Run one setting over a list of values and draw both accuracies over it."""
    from fedspray.report.comparisons import sweep_csv, sweep_sheet
    from fedspray.report.files import check_target, write_file
    from fedspray.report.sweeps import sweep_png
    from fedspray.studies.comparison import Entry
    from fedspray.studies.sweep import summarise_sweep, sweep_rows

    output = Output(as_json)
    plan, workers = study.read_plan(config, given), study.Workers(work, output)
    if plan.tune is not None:
        output.note(f"{config}: [compare.tune] is not for sweeps, which choose nothing")
    setting, values = study.listed("--vary", vary)
    study.check_unset(setting, given)
    rows = sweep_rows(plan, setting, values)
    folder = out or Path("studies") / f"{config.stem if config else 'sweep'}-{setting}"
    check_target(folder / "sweep.json", [".json"], "--out")
    outcomes = workers.run(f"sweeping {setting}", [cell for _, row in rows for cell in row.cells(plan.seeds)])
    count = len(plan.seeds)
    entries = [(value, Entry.of(row, outcomes[i * count : (i + 1) * count])) for i, (value, row) in enumerate(rows)]
    summary = summarise_sweep(setting, entries)
    write_file(folder / "sweep.json", to_json(summary))
    write_file(folder / "sweep.csv", sweep_csv(summary))
    write_file(folder / "sweep.png", sweep_png(summary))
    if not as_json:
        output.show(sweep_sheet(summary).to_rich())
    output.note(f"wrote sweep.png, .csv and .json to {folder}; cells are in {work.cells}")
    output.result(summary)
    study.finish(workers.outcomes)
