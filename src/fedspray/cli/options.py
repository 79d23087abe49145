"""The options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspray.cli.output import Output
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.data.federation import Federation
    from fedspray.experiment import Experiment

DATA_PANEL = "Data"


def _complete_dataset(incomplete: str) -> list[str]:
    from fedspray.datasets import names

    return [name for name in names() if name.startswith(incomplete)]


def _complete_partitioner(incomplete: str) -> list[str]:
    from fedspray import plugins

    return [name for name in plugins.names("fedspray.partitioners") if name.startswith(incomplete)]


DATASET = typer.Option(
    "--dataset",
    help="A name from `fedspray datasets`, a graph in npz format, or a folder: a saved federation, or one npz for "
    "each client.",
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
Prepare = Annotated[
    str | None,
    typer.Option(
        "--prepare",
        help="Done to a graph before it is cut: largest-component, normalise-rows, or both, joined by commas.",
        metavar="STEPS",
        rich_help_panel=DATA_PANEL,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="Percent of the labelled nodes for training, validation and test. [dim]default: 40/30/30[/dim]",
        metavar="A/B/C",
        rich_help_panel=DATA_PANEL,
    ),
]
SplitScope = Annotated[
    str | None,
    typer.Option(
        "--split-scope",
        help="client: every client draws its own split; graph: one is drawn before the graph is cut. "
        "[dim]default: client[/dim]",
        metavar="SCOPE",
        rich_help_panel=DATA_PANEL,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Draws the splits. [dim]default: 0; a saved federation keeps its own split[/dim]",
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


TRAINING_PANEL = "Training"


def _complete_algorithm(incomplete: str) -> list[str]:
    from fedspray import plugins

    return [name for name in plugins.names("fedspray.algorithms") if name.startswith(incomplete)]


def training(flag: str, text: str, metavar: str, panel: str = TRAINING_PANEL, **more: Any) -> Any:
    """An option of the commands that train."""
    return typer.Option(flag, help=text, metavar=metavar, rich_help_panel=panel, **more)


Algorithm = Annotated[
    str | None,
    training(
        "--algorithm",
        "A name from `fedspray algorithms`, or package.module:Name. [dim]default: fedspray[/dim]",
        "NAME",
        autocompletion=_complete_algorithm,
    ),
]
Backbone = Annotated[
    str | None,
    training("--backbone", "gcn, sgc, sage, mlp, gat, or package.module:Name. [dim]default: gcn[/dim]", "NAME"),
]
BackboneOf = Annotated[
    list[str] | None,
    training("--backbone-of", "Another backbone for one client (where no GNN is shared).", "CLIENT=NAME"),
]
Preset = Annotated[str | None, training("--preset", "A named set of the algorithm's settings, e.g. paper.", "NAME")]
Rounds = Annotated[int | None, training("--rounds", "Number of rounds. [dim]default: 300[/dim]", "R")]
LocalEpochs = Annotated[int | None, training("--local-epochs", "Local steps in a round. [dim]default: 5[/dim]", "E")]
Participation = Annotated[float | None, training("--participation", "Share of clients that train in a round.", "X")]
MinClients = Annotated[
    int | None, training("--min-clients", "Stop when fewer clients than this train in a round.", "K")
]
Selection = Annotated[
    str | None, training("--selection", "The reported round by validation: loss, accuracy, balanced …", "RULE")
]
Settings = Annotated[
    list[str] | None,
    training("--set", "Any setting of the algorithm or backbone; see `fedspray algorithms`.", "NAME=VALUE"),
]
RunSeed = Annotated[int | None, training("--seed", "One seed. [dim]default: 0[/dim]", "INT", min=0)]
RunSeeds = Annotated[int | None, training("--seeds", "Several seeds, from 0 on.", "N", min=1)]
KeepSplit = Annotated[
    bool,
    typer.Option(
        "--keep-split",
        help="Use the splits of a saved federation for every seed, instead of drawing them from the seed.",
        rich_help_panel=TRAINING_PANEL,
    ),
]


Dtype = Annotated[
    str | None, training("--dtype", "Of weights and messages: float32 or float64. [dim]default: float32[/dim]", "TYPE")
]


def experiment_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of an experiment, under the names that its file has.

    Args:
        given: a command's arguments by name, its ``locals()``; all that is no flag of an experiment is ignored.
    """
    from fedspray.experiment import knobs

    values = {name: given.get(name) for name in knobs()}
    values |= {
        "keep_split": values["keep_split"] or None,
        "set": _pairs("--set", given.get("settings")),
        "backbone_of": _pairs("--backbone-of", given.get("backbone_of")),
    }
    return {name: value for name, value in values.items() if value not in (None, {})}


def read_experiment(config: Path | None, flags: dict[str, Any]) -> Experiment:
    """The experiment in a file, if one is given, with its values overridden by flags."""
    from fedspray.experiment import Experiment, check_node_lists

    values = {} if config is None else Experiment.read_values(config)
    if "dataset" in flags and "partition_dir" not in flags:
        check_node_lists(values, flags["dataset"], str(config))
    for name in ("set", "backbone_of"):
        if name in values and name in flags and isinstance(values[name], dict):
            flags = {**flags, name: {**values[name], **flags[name]}}
    if "seed" in flags or "seeds" in flags:
        values = {name: value for name, value in values.items() if name not in ("seed", "seeds")}
    return Experiment.from_values({**values, **flags}, "command line" if config is None else str(config))


def _pairs(flag: str, items: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items or []:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{flag} is {item!r}, but must be of the form NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def open_federation(output: Output, given: Mapping[str, Any]) -> Federation:
    """Builds the federation that the shared options describe, with a spinner on standard error.

    Args:
        output: where to say what is being done.
        given: a command's arguments by name, its ``locals()``; all that is no option of the data is ignored.
    """
    from fedspray.experiment import data_knobs
    from fedspray.federate import build_federation

    with output.busy(f"preparing {given['dataset']} …"):
        federation = build_federation(**{name: given[name] for name in (*data_knobs(), "seed") if name in given})
    note_tidied(output, federation)
    return federation


def note_tidied(output: Output, federation: Federation) -> None:
    """Says what was done to the edges of a user's own graph, if anything was."""
    tidied = federation.settings.get("tidied")
    if tidied:
        output.note(f"{federation.settings['dataset']}: {tidied}")
