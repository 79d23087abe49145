"""``fedspray report``: one run, or several on the same federation, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.text import Text

from fedspray.cli.flags import AsJson, argument, examples, flag
from fedspray.cli.output import Output


@examples(
    "fedspray report runs/mine",
    "fedspray report runs/pubmed-local runs/pubmed-fedspray runs/pubmed-fedavg --out pubmed.html",
    "fedspray report runs/pubmed-* --reference fedavg --out pubmed.html",
)
def report(
    *runs: Annotated[Path, argument("Folders of finished runs on the same federation.", "DIR…", many=True)],
    out: Annotated[Path, flag("The page.", "FILE.html")] = Path("report.html"),
    reference: Annotated[
        str | None,
        flag("The algorithm to compare the others with.", "NAME", default="local, or else the first run"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about runs: results, minority report card, curves, clients, proxies, cost, settings."""
    from fedspray.report.files import check_target
    from fedspray.report.html import write_report

    output = Output(as_json)
    check_target(out, (".html",), "--out")
    with output.busy("reading the runs …"):
        summary = write_report(list(runs), out, reference=reference)
    if not as_json:
        output.show(Text(summary["finding"]))
    output.note(f"wrote {out} ({summary['bytes'] / 1e6:.1f} MB)")
    output.result({"out": str(out), **summary})
