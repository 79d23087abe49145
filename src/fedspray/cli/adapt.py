"""``fedspray adapt``: a personal model for an organisation that joins after training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from fedspray import files
from fedspray.cli.flags import AsJson, Count, examples, flag, whole
from fedspray.cli.output import Output
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.data.federation import Client


@examples(
    "fedspray adapt --shared run/seed-0/shared.safetensors --data east --out east-model",
    "fedspray adapt --shared run/seed-0 --data east.npz --client east --out east-model --rounds 40",
)
def adapt(
    *,
    shared: Annotated[Path, flag("What a run's clients share: RUN/seed-…/shared.safetensors.", "FILE")],
    data: Annotated[
        Path, flag("The newcomer's data: a client's folder (`fedspray import --client`), or a graph.", "DIR|FILE.npz")
    ],
    out: Annotated[Path, flag("The new folder of its personal model.", "DIR")],
    client: Annotated[
        str | None, flag("What to call the newcomer.", "NAME", default="the folder's or file's name")
    ] = None,
    rounds: Annotated[Count, flag("Rounds of local training.", "N")] = 20,
    seed: Annotated[int, whole(0), flag("Draws the split, if the data have none, and everything else.", "N")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a personal model for an organisation that didn't take part, starting from a finished run's shared model."""
    from fedspray.runs import adapt as newcomer

    output = Output(as_json)
    files.check_new(out, "--out")
    joining = _client(data, client, seed)
    part = newcomer.SharedPart.load(shared, newcomer.task_of(joining))
    with output.busy(f"training for {joining.name} …"):
        model = newcomer.adapt(part, joining, rounds=rounds, seed=seed)
    model.save(out)
    found = model.predictions(joining).accuracies
    summary = {
        "shared": str(shared),
        "client": joining.name,
        "algorithm": part.settings.algorithm,
        "round": model.snapshot.round_index,
        "accuracies": found,
        "out": str(out),
    }
    if not as_json:
        told = ", ".join(f"{part} {100 * row['accuracy']:.1f}% of {row['nodes']:,}" for part, row in found.items())
        output.show(f"personal model of {escape(joining.name)}, round {summary['round']} → {escape(str(out))}; {told}")
    output.result(summary)


def _client(data: Path, name: str | None, seed: int) -> Client:
    """The newcomer with its own split, or with one that is drawn."""
    import numpy as np

    from fedspray.data.federation import Client
    from fedspray.data.reading import read_graph_and_split
    from fedspray.data.splits import draw_split

    graph, split = read_graph_and_split(data)
    if not graph.labelled.any():
        raise InputError(f"{data} has no labels, but training needs some")
    called = name or data.stem
    return Client(called, graph, split or draw_split(graph, seed, called), np.arange(graph.num_nodes))
