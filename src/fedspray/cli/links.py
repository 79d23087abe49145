"""``fedspray links``: steps for messages between clients and server."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table

from fedspray.cli.flags import AsJson, argument
from fedspray.cli.output import Output


def links(
    name: Annotated[str | None, argument("Show the settings of this one.", "NAME", complete="links")] = None,
    /,
    *,
    as_json: AsJson = False,
) -> None:
    """List the steps messages can pass through between clients and server, or the settings of one."""
    from fedspray import links as registry

    rows: list[dict[str, Any]] = [
        {
            "name": each,
            "summary": found.summary,
            "reveals": found.reveals,
            "settings": [
                {"name": f.name, "default": f.default, "description": f.metadata["description"]} for f in fields(found)
            ],
        }
        for each in ([name] if name else registry.names())
        for found in (registry.find(each),)
    ]
    output = Output(as_json)
    if as_json:
        output.result(rows)
        return
    table = Table("link", "setting", "default", "what it does", box=None, pad_edge=False)
    for row in rows:
        reveals = f" (it reveals {row['reveals']})" if row["reveals"] else ""
        table.add_row(row["name"], "", "", escape(f"{row['summary']}{reveals}"))
        for setting in row["settings"]:
            table.add_row("", setting["name"], escape(str(setting["default"])), escape(setting["description"]))
    output.show(table)
    output.note("use them with fedspray run --link 'NAME SETTING=VALUE …'")
