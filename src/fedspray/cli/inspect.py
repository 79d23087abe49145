"""``fedspray inspect``: a federation in numbers and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspray.cli import options
from fedspray.cli.output import Output, to_json

EPILOG = """
[bold]Examples[/bold]

fedspray inspect --dataset banks

fedspray inspect --dataset pubmed --partitioner louvain --clients 7 --plot pubmed.png

fedspray inspect --dataset my-federation/ --json > statistics.json
"""

_PANEL = "Files to write"


def inspect(
    dataset: options.Dataset,
    partitioner: options.Partitioner = None,
    partition_dir: options.PartitionDir = None,
    clients: options.Clients = None,
    nodes: options.Nodes = None,
    alpha: options.Alpha = None,
    seed: options.Seed = None,
    partition_seed: options.PartitionSeed = 0,
    prepare: options.Prepare = None,
    split: options.Split = None,
    split_scope: options.SplitScope = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Two pictures: label counts and homophily by class, per client.",
            metavar="FILE.png",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", help="The client table, one line per client.", metavar="FILE.csv", rich_help_panel=_PANEL
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The JSON object of `--json`.", metavar="FILE.json", rich_help_panel=_PANEL),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show who holds what: nodes, edges, labels, majority and minority, homophily, divergence."""
    from fedspray.report.files import check_target, write_file

    for path, suffixes, option in (
        (plot, (".png",), "--plot"),
        (csv, (".csv",), "--csv"),
        (out, (".json",), "--out"),
    ):
        if path is not None:
            check_target(path, suffixes, option)
    output = Output(as_json)
    federation = options.open_federation(output, locals())

    from fedspray.data.statistics import describe
    from fedspray.report.clients import clients_csv, clients_table

    statistics = describe(federation)
    if not as_json:
        output.show(clients_table(statistics, output.width))
    if out is not None:
        write_file(out, to_json(statistics.to_json()))
        output.note(f"wrote {out}")
    if csv is not None:
        write_file(csv, clients_csv(statistics))
        output.note(f"wrote {csv}")
    if plot is not None:
        from fedspray.report.figures import clients_png

        write_file(plot, clients_png(statistics))
        output.note(f"wrote {plot}")
    output.result(statistics.to_json())
