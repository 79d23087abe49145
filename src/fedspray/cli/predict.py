"""``fedspray predict``: use a personal model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output
from fedspray.cli.tables import progress
from fedspray.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph


@examples(
    "fedspray predict --model runs/pubmed/seed-0/models/client_01.safetensors --graph mine.npz --out predictions.csv",
    "fedspray predict --model north.safetensors --nodes new.csv --known old.csv --edges all.csv --out new.parquet",
)
def predict(
    *,
    model: Annotated[Path, flag("A personal model: RUN/seed-…/models/CLIENT.safetensors.", "FILE")],
    graph: Annotated[Path | None, flag("A client's folder, or a graph in npz format.", "DIR|FILE.npz")] = None,
    nodes: Annotated[
        list[str] | None,
        flag("Instead of a graph: a table of the nodes to predict, read through the model's schema.", "FILE"),
    ] = None,
    edges: Annotated[list[str] | None, flag("Tables of edges.", "FILE")] = None,
    known: Annotated[
        list[str] | None, flag("Tables of further nodes, there for their edges and not predicted.", "FILE")
    ] = None,
    out: Annotated[Path, flag("The predictions.", "FILE.csv|FILE.parquet")],
    as_json: AsJson = False,
) -> None:
    """Predict the class of every node of a graph, or of rows of a table, with a client's personal model."""
    from fedspray.report.files import check_target, write_predictions
    from fedspray.runs.models import PersonalModel

    output = Output(as_json)
    check_target(out, (".csv", ".parquet"), "--out")
    personal = PersonalModel.load(model)
    whole, chosen, problems = _read(output, personal.task.schema, graph, nodes, edges, known)
    probabilities = personal.predict(whole)[chosen]
    names = None if whole.node_names is None else [whole.node_names[node] for node in chosen]
    write_predictions(out, probabilities, names, personal.task.class_names)
    labels = whole.labels[chosen]
    labelled = labels >= 0
    accuracy = float((probabilities.argmax(axis=1) == labels)[labelled].mean()) if labelled.any() else None
    summary = {
        "model": str(model),
        "client": personal.client,
        "nodes": len(chosen),
        "labelled_nodes": int(labelled.sum()),
        "accuracy": accuracy,
        "problems": problems,
        "out": str(out),
    }
    if not as_json:
        told = f"{len(chosen):,} nodes predicted with the model of {escape(personal.client)} → {escape(str(out))}"
        if accuracy is not None:
            told += f" (accuracy on the {int(labelled.sum()):,} labelled ones: {100 * accuracy:.1f}%)"
        output.show(told)
    output.result(summary)


def _read(
    output: Output,
    schema: str | None,
    graph: Path | None,
    nodes: list[str] | None,
    edges: list[str] | None,
    known: list[str] | None,
) -> tuple[Graph, NDArray[np.int64], dict[str, int]]:
    """The graph, which of its nodes to predict, and how many rows of its tables had a problem, by kind."""
    import numpy as np

    from fedspray.data.reading import read_graph
    from fedspray.tables.importing import import_new
    from fedspray.tables.schema import Schema

    if (graph is None) == (nodes is None):
        raise InputError("give either --graph or --nodes, what to predict")
    if graph is not None:
        if edges or known:
            raise InputError("--graph is a whole graph, so --edges and --known do not go with it")
        whole = read_graph(graph)
        return whole, np.arange(whole.num_nodes), {}
    if schema is None:
        raise InputError(
            "the model was not trained on imported tables, so it has no schema to read --nodes: give --graph"
        )
    with progress(output) as told:
        made, chosen = import_new(Schema.from_toml(schema), nodes or [], edges, known or [], on_progress=told)
    for sentence in made.problems.sentences:
        output.note(sentence)
    return made.whole(), np.flatnonzero(chosen), dict(made.problems.counts)
