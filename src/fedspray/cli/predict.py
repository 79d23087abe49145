"""``fedspray predict``: use a personal model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output
from fedspray.cli.tables import note_problems, progress
from fedspray.display import count
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.runs.predictions import Asked


@examples(
    "fedspray predict --model runs/pubmed/seed-0/models/client_01 --graph mine.npz --out predictions.csv",
    "fedspray predict --model north --nodes new.csv --known old.csv --edges all.csv --out new.parquet",
    "fedspray predict --model north --nodes all.csv --edges all-edges.csv --only-new --out new.parquet",
)
def predict(
    *,
    model: Annotated[Path, flag("A personal model: RUN/seed-…/models/CLIENT.", "DIR")],
    graph: Annotated[Path | None, flag("A client's folder, or a graph in npz format.", "DIR|FILE.npz")] = None,
    nodes: Annotated[
        list[str] | None,
        flag("Instead of a graph: a table of the nodes to predict, read through the model's schema.", "FILE"),
    ] = None,
    edges: Annotated[list[str] | None, flag("Tables of edges.", "FILE")] = None,
    known: Annotated[
        list[str] | None, flag("Tables of further nodes, there for their edges and not predicted.", "FILE")
    ] = None,
    only_new: Annotated[bool, flag("Skip nodes of the graph the model was trained on.")] = False,
    out: Annotated[Path, flag("The predictions.", "FILE.csv|FILE.parquet")],
    as_json: AsJson = False,
) -> None:
    """Predict the class of every node of a graph, or of rows of a table, with a client's personal model."""
    from fedspray.report.files import check_target, write_columns
    from fedspray.runs.models import PersonalModel

    output = Output(as_json)
    check_target(out, (".csv", ".parquet"), "--out")
    personal = PersonalModel.load(model)
    asked = _read(output, personal.task.schema, graph, nodes, edges, known)
    found = personal.predictions(asked, only_new=only_new)
    write_columns(out, found.columns)
    part = found.headline
    summary = {
        "model": str(model),
        "client": personal.client,
        "nodes": len(found.nodes),
        "labelled_nodes": int((found.graph.labels[found.nodes] >= 0).sum()),
        "accuracy": None if part is None else found.accuracies[part]["accuracy"],
        "accuracy_of": part,
        "accuracies": found.accuracies,
        "calibrated": personal.facts.get("calibration") is not None,
        "problems": dict(found.skipped),
        "out": str(out),
    }
    if not as_json:
        output.show(
            f"{count(len(found.nodes), 'node')} predicted with the model of {escape(personal.client)} "
            f"→ {escape(str(out))}"
        )
        for name, row in found.accuracies.items():
            output.show(f"accuracy on {row['nodes']:,} {_KINDS[name]}: {100 * row['accuracy']:.1f}%")
        if not summary["calibrated"]:
            output.note("confidences are not calibrated: the model had no validation nodes")
    output.result(summary)


_KINDS = {
    "new": "labelled nodes that the model has never seen",
    "train": "nodes that the model was trained on",
    "val": "validation nodes, on which its round was chosen",
    "test": "test nodes",
    "unlabelled": "nodes that had no label in training",
    "unknown": "labelled nodes; the model cannot tell whether it was trained on them",
}


def _read(
    output: Output,
    schema: str | None,
    graph: Path | None,
    nodes: list[str] | None,
    edges: list[str] | None,
    known: list[str] | None,
) -> Asked:
    """The graph, and which of its nodes to predict."""
    from fedspray.data.reading import read_graph
    from fedspray.runs.predictions import ask

    if (graph is None) == (nodes is None):
        raise InputError("give either --graph or --nodes: the nodes to predict")
    if graph is not None and (edges or known):
        raise InputError("--graph is a whole graph, so leave out --edges and --known")
    if graph is None and schema is None:
        raise InputError(
            "the model was not trained on imported tables, so it has no schema to read --nodes: give --graph"
        )
    with progress(output) as told:
        asked = ask(schema, nodes if graph is None else read_graph(graph), edges, known, told)
    if asked.problems is not None:
        note_problems(output, asked.problems)
    return asked
