"""``fedspray algorithms``: the algorithms and their settings."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table

from fedspray.cli.flags import AsJson, argument, flag
from fedspray.cli.output import Output


def algorithms(
    name: Annotated[str | None, argument("Show the settings of this one.", "NAME", complete="algorithms")] = None,
    /,
    *,
    link: Annotated[
        list[str] | None, flag("Show what leaves with this link, as `fedspray run` takes it.", "LINK")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or the settings of one and what leaves a client with it."""
    from fedspray import algorithms as registry

    rows = [_describe(each) for each in ([name] if name else registry.names())]
    if name:
        rows[0]["leaves"] = _leaves(name, link)
    output = Output(as_json)
    if as_json:
        output.result(rows)
        return
    if name is None:
        table = Table("algorithm", "what it does", "citation", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(escape(row[key]) for key in ("name", "summary", "citation")))
        output.show(table)
        output.note("for the settings of one: fedspray algorithms NAME")
        return
    found = rows[0]
    about = escape(f"{found['summary']} ({found['citation']})")
    output.show(f"[bold]{escape(found['name'])}[/bold]: {about}\n")
    table = Table("setting", "default", "meaning", box=None, pad_edge=False)
    for setting in found["settings"]:
        choices = f" ({', '.join(setting['choices'])})" if setting["choices"] else ""
        table.add_row(setting["name"], escape(str(setting["default"])), escape(setting["description"] + choices))
    output.show(table)
    output.show("\nWhat leaves a client (F: features, C: classes):")
    table = Table("field and shape", "what it is", "the server gets", box=None, pad_edge=False)
    for row in found["leaves"]:
        shapes = " ".join(dict.fromkeys(row["shapes"].values()))
        table.add_row(*map(escape, (f"{row['field']} {shapes}", row["what"], row["said"])))
    output.show(table)
    for kind in ("backbone", "preset"):
        for each, values in found[f"{kind}s"].items():
            listed = escape(", ".join(f"{name}={value}" for name, value in values.items()))
            output.show(f"\n{kind} [bold]{escape(each)}[/bold]: {listed or 'as above'}")


def _leaves(name: str, link: list[str] | None) -> list[dict[str, Any]]:
    """Every field that leaves a client, with shapes in letters; bytes depend on the data."""
    from fedspray.data.federation import Task
    from fedspray.experiment import RunSettings
    from fedspray.runs.leaves import what_leaves
    from fedspray.runs.settings import resolve

    run = resolve(RunSettings(algorithm=name, link=tuple(link or ())))
    letters = {1009: "F", 29: "C", 58: "2C"}
    found = []
    for entry in what_leaves(run, Task(1009, 29)):
        shapes = {key: ", ".join(letters.get(size, str(size)) for size in of) for key, of in entry.shapes.items()}
        told = {**entry.to_json(), "shapes": {key: f"[{shape}]" for key, shape in shapes.items()}, "said": entry.said}
        found.append({name: value for name, value in told.items() if name != "bytes"})
    return found


def _describe(name: str) -> dict[str, Any]:
    from fedspray import algorithms as registry
    from fedspray import backbones, messages
    from fedspray.backbones.base import Backbone

    found = registry.find(name)
    keys = messages.fates(found.uplink)
    own = [f for f in fields(found) if f.name != "backbone"]
    listed = [f for f in (*own, *fields(Backbone)) if f.name not in found.ignores]
    usual = {f.name: f.default for f in fields(Backbone)}
    return {
        "name": name,
        "summary": found.summary,
        "citation": found.citation,
        "settings": [
            {
                "name": f.name,
                "default": None if f.default is MISSING else f.default,
                "description": f.metadata.get("description", ""),
                "choices": f.metadata.get("choices"),
            }
            for f in listed
        ],
        "backbones": {
            backbone: {
                f.name: f.default
                for f in fields(backbones.find(backbone))
                if f.name not in found.ignores and usual.get(f.name, MISSING) != f.default
            }
            for backbone in backbones.names()
        },
        "presets": {preset: dict(values) for preset, values in found.presets.items()},
        "uplink": {pattern: key.text for pattern, key in keys.items()},
        "fates": {
            pattern: {
                "fate": key.fate,
                "weight": key.weight,
                "reason": key.reason,
                "kind": key.kind.name,
                "told": key.told,
            }
            for pattern, key in keys.items()
        },
        "downlink": dict(found.downlink),
        "shares_gnn": found.shares_gnn,
    }
