"""The options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspray.cli.output import Output

if TYPE_CHECKING:
    from fedspray.data.federation import Federation

DATA_PANEL = "Data"


def _complete_dataset(incomplete: str) -> list[str]:
    from fedspray.datasets import names

    return [name for name in names() if name.startswith(incomplete)]


def _complete_partitioner(incomplete: str) -> list[str]:
    from fedspray import plugins

    return [name for name in plugins.names("fedspray.partitioners") if name.startswith(incomplete)]


DATASET = typer.Option(
    "--dataset",
    help="A name from `fedspray datasets`, a graph in npz format, or the folder of a saved federation.",
    metavar="NAME|FILE|DIR",
    autocompletion=_complete_dataset,
    rich_help_panel=DATA_PANEL,
)
Dataset = Annotated[str, DATASET]
Partitioner = Annotated[
    str | None,
    typer.Option(
        "--partitioner",
        help="How one graph is cut into clients: louvain, metis, label-skew, files, or "
        "package.module:Name. [dim]default: louvain[/dim]",
        metavar="NAME",
        autocompletion=_complete_partitioner,
        rich_help_panel=DATA_PANEL,
    ),
]
PartitionDir = Annotated[
    Path | None,
    typer.Option(
        "--partition-dir",
        help="For `--partitioner files`: a folder with one list of node ids per client.",
        metavar="DIR",
        rich_help_panel=DATA_PANEL,
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(
        "--clients",
        help="Number of clients. [dim]default: the data set's own[/dim]",
        metavar="K",
        rich_help_panel=DATA_PANEL,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        help="For `banks`: number of nodes of all clients together.",
        metavar="N",
        rich_help_panel=DATA_PANEL,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        help="For `--partitioner label-skew`: concentration of the Dirichlet distribution; small is skewed.",
        metavar="X",
        rich_help_panel=DATA_PANEL,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Draws the 40/30/30 split of every client. [dim]default: 0; a saved federation keeps its own split[/dim]",
        min=0,
        metavar="INT",
        rich_help_panel=DATA_PANEL,
    ),
]
PARTITION_SEED = typer.Option(
    "--partition-seed",
    help="Draws the partition, and the graphs of `banks`.",
    min=0,
    metavar="INT",
    rich_help_panel=DATA_PANEL,
)
PartitionSeed = Annotated[int, PARTITION_SEED]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object on standard output; all else goes to standard error.",
    ),
]


def open_federation(
    output: Output,
    dataset: str,
    *,
    partitioner: str | None = None,
    partition_dir: Path | None = None,
    clients: int | None = None,
    nodes: int | None = None,
    alpha: float | None = None,
    seed: int | None = None,
    partition_seed: int = 0,
) -> Federation:
    """Builds the federation that the shared options describe, with a spinner on standard error."""
    from fedspray.federate import build_federation

    with output.busy(f"preparing {dataset} …"):
        return build_federation(
            dataset,
            partitioner=partitioner,
            partition_dir=partition_dir,
            clients=clients,
            nodes=nodes,
            seed=seed,
            partition_seed=partition_seed,
            alpha=alpha,
        )
