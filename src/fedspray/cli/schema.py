"""``fedspray schema``: agreeing on what the columns of tables mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.markup import escape

from fedspray import display
from fedspray.cli.flags import AsJson, Count, argument, examples, flag, group
from fedspray.cli.output import Output
from fedspray.cli.tables import Memory, Nodes, progress
from fedspray.errors import InputError

COMMANDS = ("check", "diff", "count", "merge")
schema = group(
    "schema",
    "What the columns of your tables mean: compare schemas, agree on scales and vocabularies.",
    {each: f"{__name__}:{each}" for each in COMMANDS},
)
SchemaFile = Annotated[Path, argument("A schema.", "FILE.toml")]


def check(file: SchemaFile, /) -> None:
    """Check a schema field by field."""
    from fedspray.tables.schema import Schema

    read = Schema.load(file)
    entries = display.count(len(read.features), "entry for features", "entries for features")
    Output().note(f"{file} is a schema with {entries}")


def diff(first: SchemaFile, second: SchemaFile, /, *, as_json: AsJson = False) -> None:
    """List everything on which two schemas disagree, except names of files and columns."""
    from fedspray.tables.diff import compare
    from fedspray.tables.schema import Schema

    output = Output(as_json)
    found = compare(Schema.load(first), Schema.load(second))
    for difference in found:
        output.show(escape(difference.sentence))
    if not found:
        output.note("the same row becomes the same features and class under both")
    output.result({"same": not found, "differences": [vars(difference) for difference in found]})


@examples(
    "fedspray schema count schema.toml --nodes customers.csv --site north --out north.json",
    "fedspray schema count schema.toml --nodes customers.csv --site north --kit KIT --out north.json",
)
def count(
    file: SchemaFile,
    /,
    *,
    nodes: Nodes = None,
    site: Annotated[str, flag("This site's name.", "NAME")],
    out: Annotated[Path, flag("The statistics to review and send.", "FILE.json")],
    minimum: Annotated[Count, flag("Rows that must share a value before it is included.", "N")] = 10,
    kit: Annotated[Path | None, flag("The site's start-up kit, whose ledger gets what is in the file.", "DIR")] = None,
    memory: Memory = "512MB",
) -> None:
    """Count this site's rows for shared scales and vocabularies, and show everything that would leave."""
    from fedspray.tables.asking import write_new
    from fedspray.tables.contribute import contribute
    from fedspray.tables.schema import Schema

    output = Output()
    if kit is not None and not (kit / "local").is_dir():
        raise InputError(f"--kit {kit} is not a site's start-up kit: it has no folder local")
    with progress(output) as told:
        made = contribute(Schema.load(file), nodes, site, minimum=minimum, memory=memory, on_progress=told)
    text = made.to_json()
    write_new(out, text)
    output.show(escape(text.rstrip()))
    held = ", ".join(f"{number} of {title}" for title, number in made.withheld.items())
    output.note(f"that is everything in {out}; withheld, with fewer than {minimum} rows: {held or 'nothing'}")
    if kit is not None:
        from fedspray.deploy.ledger import write_statistics

        write_statistics(kit, site, out.name, text)
        output.note(f"entered in the ledger of {kit}")
    output.note(f"if it may leave, send it: fedspray schema merge {file} … --out agreed.toml")


def merge(
    file: SchemaFile,
    statistics: Annotated[list[Path], argument("What each site counted.", "FILE.json", many=True)],
    /,
    *,
    out: Annotated[Path, flag("The schema with the scales, vocabularies and classes of all sites.", "FILE.toml")],
) -> None:
    """Fill a schema with the sites' combined counts."""
    from fedspray.tables.asking import write_new
    from fedspray.tables.schema import Schema
    from fedspray.tables.statistics import Contribution, merge

    agreed = merge(Schema.load(file), [Contribution.load(each) for each in statistics])
    write_new(out, agreed.to_toml())
    sites = display.count(len(statistics), "site")
    Output().note(f"{out} has the scales and vocabularies of {sites}: each imports with it")
