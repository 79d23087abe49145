"""``fedspray inspect``: statistics and pictures of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedspray.cli import knobs
from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output, to_json

_FILES = "Files to write"


@examples(
    "fedspray inspect --dataset banks",
    "fedspray inspect --dataset pubmed --partitioner louvain --clients 7 --plot pubmed.png",
    "fedspray inspect --dataset my-federation/ --json > statistics.json",
    "fedspray inspect --dataset my-federation/ --advise",
)
def inspect(
    *,
    given: knobs.Data,
    plot: Annotated[
        Path | None, flag("Two pictures: label counts and homophily by class, per client.", "FILE.png", box=_FILES)
    ] = None,
    csv: Annotated[Path | None, flag("The client table, one line per client.", "FILE.csv", box=_FILES)] = None,
    out: Annotated[Path | None, flag("The JSON object of `--json`.", "FILE.json", box=_FILES)] = None,
    advise: Annotated[
        bool, flag("Also say whom federating is likely to help, from statistics alone, and how often that is wrong.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show who holds what: nodes, edges, labels, majority and minority, homophily, divergence."""
    from fedspray.report.files import check_target, write_file

    for path, suffixes, option in (
        (plot, (".png",), "--plot"),
        (csv, (".csv",), "--csv"),
        (out, (".json",), "--out"),
    ):
        if path is not None:
            check_target(path, suffixes, option)
    output = Output(as_json)
    federation = knobs.open_federation(output, given)

    from fedspray.data.statistics import describe
    from fedspray.report.clients import clients_csv, clients_table

    statistics = describe(federation)
    if not as_json:
        output.show(clients_table(statistics, output.width))
    if out is not None:
        write_file(out, to_json(statistics.to_json()))
        output.note(f"wrote {out}")
    if csv is not None:
        write_file(csv, clients_csv(statistics))
        output.note(f"wrote {csv}")
    if plot is not None:
        from fedspray.report.figures import clients_figure, to_png

        write_file(plot, to_png(clients_figure(statistics)))
        output.note(f"wrote {plot}")
    found = statistics.to_json()
    if advise:
        from fedspray.data import advice
        from fedspray.report.clients import advice_table

        given_advice = advice.advise(federation)
        output.show(advice_table(given_advice))
        for sentence in advice.caveats():
            output.note(sentence)
        found["advice"] = advice.to_json(given_advice)
    output.result(found)
