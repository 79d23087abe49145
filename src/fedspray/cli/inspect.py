"""``fedspray inspect``: statistics and pictures of a federation."""

from __future__ import annotations

from collections.abc import Callable
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
    from fedspray.data import advice
    from fedspray.data.statistics import describe
    from fedspray.report.clients import advice_table, clients_csv, clients_table
    from fedspray.report.figures import clients_figure, to_png
    from fedspray.report.files import check_target, write_file

    for path, suffix, option in ((plot, ".png", "--plot"), (csv, ".csv", "--csv"), (out, ".json", "--out")):
        if path is not None:
            check_target(path, [suffix], option)
    output = Output(as_json)
    federation = knobs.open_federation(output, knobs.values(given))
    statistics = describe(federation)
    found = statistics.to_json()
    if not as_json:
        output.show(clients_table(statistics, output.width))
    makers: list[tuple[Path | None, Callable[[], str | bytes]]] = [
        (out, lambda: to_json(found)),
        (csv, lambda: clients_csv(statistics)),
        (plot, lambda: to_png(clients_figure(statistics))),
    ]
    for path, make in makers:
        if path is not None:
            write_file(path, make())
            output.note(f"wrote {path}")
    if advise:
        given_advice = advice.advise(federation)
        output.show(advice_table(given_advice))
        for sentence in advice.caveats():
            output.note(sentence)
        found["advice"] = advice.to_json(given_advice)
    output.result(found)
