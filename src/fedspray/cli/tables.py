"""``fedspray import``: from an organisation's own files to graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape

from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output
from fedspray.display import count
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.tables.database import OnProgress
    from fedspray.tables.problems import Problems

Memory = Annotated[str, flag("What the database may hold in memory; the rest goes to disk.", "SIZE")]
Nodes = Annotated[
    list[str] | None,
    flag("A table of nodes; repeatable, may have * and {client}.", "FILE", default="the schema's files"),
]
Edges = Annotated[
    list[str] | None,
    flag("A table of edges; repeatable, may have * and {client}.", "FILE", default="the schema's files"),
]


@examples(
    "fedspray import --nodes '{client}/customers.csv' --edges '{client}/transfers.csv' --suggest schema.toml",
    "fedspray import --schema schema.toml --out banks",
    "fedspray import --schema schema.toml --nodes customers.csv --edges transfers.csv --client north --out north",
    "fedspray import --edges friends.txt --out friends.npz",
)
def import_files(
    *,
    schema: Annotated[Path | None, flag("What the columns mean.", "FILE.toml")] = None,
    nodes: Nodes = None,
    edges: Edges = None,
    graph: Annotated[Path | None, flag("Instead of tables: a graph in one file.", "FILE.npz|pt|graphml|gexf")] = None,
    out: Annotated[
        Path | None, flag("The new folder of a federation or client, or one graph in npz format.", "DIR|FILE.npz")
    ] = None,
    client: Annotated[str | None, flag("All rows belong to this client: write only its folder.", "NAME")] = None,
    suggest: Annotated[Path | None, flag("Look at the files and write a first schema to edit.", "FILE.toml")] = None,
    strict: Annotated[
        bool, flag("Refuse the files if any row has a problem; by default such rows are skipped.")
    ] = False,
    memory: Memory = "512MB",
    as_json: AsJson = False,
) -> None:
    """Turn your own tables or graph files into a client's folder, a federation or one graph."""
    from fedspray.tables import asking

    output = Output(as_json)
    if (out is None) == (suggest is None):
        raise InputError("give either --out (what to build) or --suggest (a schema to write)")
    files = asking.Files(schema, nodes, edges, graph, memory)
    if suggest is not None:
        with progress(output) as told:
            text = asking.write_suggestion(files, suggest, told)
        output.note(f"{suggest} is a first guess: read it, edit it, then fedspray import --schema {suggest} --out DIR")
        output.result({"schema": str(suggest), "lines": text.count("\n")})
        return
    started = time.perf_counter()
    assert out is not None
    with progress(output) as told:
        done = asking.make(files, out, client, strict, told)
    note_problems(output, done.problems)
    for note in done.notes:
        output.note(note)
    for trap in done.traps:
        output.note(f"warning: {trap.sentence}")
    summary: dict[str, Any] = done.summary() | {"seconds": round(time.perf_counter() - started, 3)}
    kinds = {"nodes": "node", "edges": "edge", "features": "feature", "classes": "class"}
    sizes = [count(summary[f"num_{many}"], one, many) for many, one in kinds.items()]
    output.show(f"[bold]{escape(str(out))}[/bold]: {done.kind}, {', '.join(sizes)}, in {summary['seconds']:.1f} s")
    if done.kind == "federation":
        output.note(f"look at it with: fedspray inspect --dataset {out}")
    output.result(summary)


def note_problems(output: Output, problems: Problems) -> None:
    """Says which rows were left out, and how many."""
    for sentence in (*problems.sentences, *problems.skipped()):
        output.note(sentence)


@contextmanager
def progress(output: Output) -> Iterator[OnProgress | None]:
    """A bar on standard error for each step that takes time; nothing where that is no terminal."""
    if not output.messages.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=output.messages, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def told(what: str, share: float) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bars.update(task, completed=1.0)
                tasks[what] = bars.add_task(escape(what), total=1.0)
            bars.update(tasks[what], completed=share)

        yield told
