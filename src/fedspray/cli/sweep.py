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
    """Vary one setting over a list of values and plot both accuracies."""
    from fedspray.report.comparisons import sweep_csv, sweep_sheet
    from fedspray.report.figures import to_png
    from fedspray.report.files import check_target, write_file
    from fedspray.report.sweeps import sweep_figure
    from fedspray.studies.grid import run_rows
    from fedspray.studies.sweep import summarise_sweep, sweep_rows

    output = Output(as_json)
    wanted, workers = study.read_study(config, given), study.Workers(work, output)
    if wanted.search is not None:
        output.note(f"{config}: [compare.tune] is ignored in a sweep")
    setting, values = study.listed("--vary", vary)
    study.check_unset(setting, given)
    rows = sweep_rows(wanted, setting, values)
    folder = out or Path("studies") / f"{config.stem if config else 'sweep'}-{setting}"
    check_target(folder / "sweep.json", [".json"], "--out")
    swept = run_rows(f"sweeping {setting}", [row for _, row in rows], workers.run)
    summary = summarise_sweep(setting, [(value, row) for (value, _), row in zip(rows, swept, strict=True)])
    write_file(folder / "sweep.json", to_json(summary))
    write_file(folder / "sweep.csv", sweep_csv(summary))
    write_file(folder / "sweep.png", to_png(sweep_figure(summary)))
    if not as_json:
        output.show(sweep_sheet(summary).to_rich())
    output.note(f"wrote sweep.png, .csv and .json to {folder}; cells are in {work.cells}")
    output.result(summary)
    study.finish(workers.ended)
