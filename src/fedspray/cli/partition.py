"""``fedspray partition``: build a federation once and save it as a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape

from fedspray import files
from fedspray.cli import knobs
from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output
from fedspray.errors import InputError


@examples(
    "fedspray partition --dataset pubmed --partitioner metis --clients 10 --out pubmed-metis",
    "fedspray partition --dataset banks --clients 100 --nodes 1000000 --out banks-100",
)
def partition(
    *,
    given: knobs.Data,
    out: Annotated[Path, flag("The new folder: one sub-folder per client and a manifest.", "DIR")],
    as_json: AsJson = False,
) -> None:
    """Cut a graph into clients, or draw `banks`, and save the federation as a folder."""
    files.check_new(out, "--out")
    output = Output(as_json)
    started = time.perf_counter()
    federation = knobs.open_federation(output, knobs.values(given))
    try:
        with output.busy(f"writing {out} …"):
            federation.save(out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error
    graphs = [client.graph for client in federation.clients]
    summary: dict[str, Any] = {
        "out": str(out),
        "name": federation.name,
        "num_clients": federation.num_clients,
        "num_features": federation.task.num_features,
        "num_classes": federation.task.num_classes,
        "total_nodes": sum(graph.num_nodes for graph in graphs),
        "total_edges": sum(graph.num_edges for graph in graphs),
        "smallest_client": min(graph.num_nodes for graph in graphs),
        "largest_client": max(graph.num_nodes for graph in graphs),
        "bytes": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
        "seconds": round(time.perf_counter() - started, 3),
        "settings": dict(federation.settings),
    }
    if not as_json:
        output.show(
            f"[bold]{escape(str(out))}[/bold]: {summary['num_clients']:,} clients, {summary['total_nodes']:,} nodes "
            f"({summary['smallest_client']:,} to {summary['largest_client']:,} each), "
            f"{summary['total_edges']:,} edges, {summary['bytes'] / 1e6:,.1f} MB, "
            f"in {summary['seconds']:.1f} s"
        )
        output.note(f"look at it with: fedspray inspect --dataset {out}")
    output.result(summary)
