"""``fedspray datasets``: the names that ``--dataset`` takes."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from fedspray.cli.flags import AsJson, examples
from fedspray.cli.output import Output

COUNTS = ("num_nodes", "num_edges", "num_features", "num_classes", "default_clients")


@examples(
    "fedspray datasets",
    "FEDSPRAY_DATA=/my/data fedspray datasets --json",
)
def datasets(*, as_json: AsJson = False) -> None:
    """List the data sets by name, with their published counts and whether their files are here."""
    from fedspray.datasets import DataFolders, catalogue

    output = Output(as_json)
    folders = DataFolders.from_environment()
    rows: list[dict[str, Any]] = [
        {
            "name": card.name,
            "title": card.title,
            **{count: getattr(card, count) for count in COUNTS},
            "at_hand": card.at_hand(folders),
            "citation": card.citation,
        }
        for card in catalogue().values()
    ]
    searched = [str(folder) for folder in (folders.data, folders.cache) if folder is not None]
    if not as_json:
        _show(output, rows)
        output.note(f"files are looked up in {', then '.join(searched)}; missing ones are downloaded on use")
    output.result({"datasets": rows, "folders": searched})


def _show(output: Output, rows: list[dict[str, Any]]) -> None:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("name", no_wrap=True)
    for column in ("nodes", "edges", "features", "classes", "clients"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("at hand", no_wrap=True)
    table.add_column("what it is")
    for row in rows:
        counts = ["any" if row[count] is None else f"{row[count]:,}" for count in COUNTS]
        table.add_row(row["name"], *counts, "yes" if row["at_hand"] else "no", row["title"])
    output.show(table)
