"""``fedspray algorithms``: what can be run, and its settings."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any

import typer

from fedspray.cli import options
from fedspray.cli.output import Output


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this one.", metavar="[NAME]")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the algorithms, or the settings of one."""
    from rich.markup import escape
    from rich.table import Table

    from fedspray import algorithms as registry

    rows = [_describe(each) for each in ([name] if name else registry.names())]
    output = Output(as_json)
    if as_json:
        output.result(rows)
        return
    if name is None:
        table = Table("algorithm", "what it does", "citation", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(escape(row[key]) for key in ("name", "summary", "citation")))
        output.show(table)
        output.note("settings of one: fedspray algorithms NAME")
        return
    found = rows[0]
    about = escape(f"{found['summary']} ({found['citation']})")
    output.show(f"[bold]{escape(found['name'])}[/bold]: {about}\n")
    table = Table("setting", "default", "meaning", box=None, pad_edge=False)
    for setting in found["settings"]:
        table.add_row(setting["name"], escape(str(setting["default"])), escape(setting["description"]))
    output.show(table)
    for preset, values in found["presets"].items():
        listed = escape(", ".join(f"{name}={value}" for name, value in values.items()))
        output.show(f"\npreset [bold]{escape(preset)}[/bold]: {listed}")


def _describe(name: str) -> dict[str, Any]:
    from fedspray import algorithms as registry
    from fedspray.backbones.base import Backbone

    found = registry.find(name)
    listed = [f for f in fields(found) if f.name != "backbone"] + list(fields(Backbone))
    return {
        "name": name,
        "summary": found.summary,
        "citation": found.citation,
        "settings": [
            {
                "name": f.name,
                "default": None if f.default is MISSING else f.default,
                "description": f.metadata.get("description", ""),
            }
            for f in listed
        ],
        "presets": {preset: dict(values) for preset, values in found.presets.items()},
        "uplink": dict(found.uplink),
        "downlink": dict(found.downlink),
        "shares_gnn": found.shares_gnn,
    }
