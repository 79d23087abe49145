"""``fedspray plan``: predict what a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from fedspray.cli import knobs
from fedspray.cli.flags import AsJson, Cores, argument, examples, flag
from fedspray.cli.output import Output

if TYPE_CHECKING:
    from fedspray.runs.plan import Forecast


@examples(
    "fedspray plan --dataset banks --clients 100 --nodes 1000000",
    "fedspray plan experiment.toml --seeds 5",
)
def plan(
    config: Annotated[Path | None, argument("An experiment in TOML; flags override its values.", "FILE.toml")] = None,
    /,
    *,
    given: knobs.Experiment | None = None,
    threads: Annotated[Cores, flag("Threads.", "N", box="Training")] = 1,
    as_json: AsJson = False,
) -> None:
    """Predict memory, time and bytes of a run from trial rounds on a sample of its data."""
    from fedspray.federate import open_data
    from fedspray.runs.plan import make_plan
    from fedspray.runs.settings import resolve

    output, experiment = Output(as_json), knobs.read(config, given)
    resolve(experiment.run)  # check settings before touching data
    with output.busy(f"trying {experiment.data.dataset} …"):
        found = make_plan(open_data(experiment.data), experiment.run, threads=threads)
    if not output.as_json:
        output.show(_table(found))
    if found.fits is False:
        output.note(
            "Full batches won't fit into memory: use smaller clients, --set sample_nodes=N or a larger machine."
        )
    output.result(found.to_json())


def _table(found: Forecast) -> Table:
    table = Table("", "", show_header=False)
    sample = "all of them tried" if found.sample_nodes == found.num_nodes else f"{found.sample_nodes:,} tried"
    table.add_row("clients, nodes", f"{found.num_clients:,}, {found.num_nodes:,} ({sample})")
    if found.memory is not None:
        of = "" if found.memory_available is None else f" of {found.memory_available / 1e9:.1f} available"
        table.add_row("memory", f"{found.memory / 1e9:.2f} GB{of}")
    table.add_row("CPU time", f"{found.cpu_seconds_per_round:.3g} s per round, {_minutes(found.cpu_seconds)} in all")
    table.add_row(
        "bytes",
        f"{_size(found.bytes_up_per_round)} up and {_size(found.bytes_down_per_round)} down per round, "
        f"{_size(found.bytes_total)} in all",
    )
    return table


def _minutes(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
