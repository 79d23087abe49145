"""``fedspray predict``: use a personal model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.markup import escape

from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output


@examples(
    "fedspray predict --model runs/pubmed/seed-0/models/client_01.safetensors --graph mine.npz --out predictions.csv",
)
def predict(
    *,
    model: Annotated[Path, flag("A personal model: RUN/seed-…/models/CLIENT.safetensors.", "FILE")],
    graph: Annotated[Path, flag("A client's folder, or a graph in npz format.", "DIR|FILE.npz")],
    out: Annotated[Path, flag("The predictions, as CSV.", "FILE.csv")],
    as_json: AsJson = False,
) -> None:
    """Predict the class of every node of a graph with a client's personal model."""
    from fedspray.data.reading import read_graph
    from fedspray.report.files import check_target, write_predictions
    from fedspray.runs.models import PersonalModel

    output = Output(as_json)
    check_target(out, (".csv",), "--out")
    personal = PersonalModel.load(model)
    nodes = read_graph(graph)
    probabilities = personal.predict(nodes)
    write_predictions(out, probabilities, nodes.node_names, personal.task.class_names)
    known = nodes.labelled
    accuracy = float((probabilities.argmax(axis=1) == nodes.labels)[known].mean()) if known.any() else None
    summary = {
        "model": str(model),
        "client": personal.client,
        "nodes": nodes.num_nodes,
        "labelled_nodes": int(known.sum()),
        "accuracy": accuracy,
        "out": str(out),
    }
    if not as_json:
        shown = "n/a" if accuracy is None else f"{100 * accuracy:.1f}%"
        output.show(
            f"{nodes.num_nodes:,} nodes predicted with the model of {escape(personal.client)} → {escape(str(out))} "
            f"(accuracy on the {int(known.sum()):,} labelled ones: {shown})"
        )
    output.result(summary)
