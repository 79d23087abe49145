"""``fedspray deploy local``: a federation of processes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fedspray import files
from fedspray.cli import knobs
from fedspray.cli.deploy import live
from fedspray.cli.flags import AsJson, Cores, examples, flag
from fedspray.cli.organisations import Grace, organisational
from fedspray.cli.output import Output


@examples("fedspray deploy local --dataset banks --clients 3 --rounds 3 --out try-it")
@organisational
def local(
    *,
    out: Annotated[Path, flag("A new folder for everything.", "DIR")],
    given: knobs.Experiment | None = None,
    threads: Annotated[Cores, flag("Threads of each site.", "N", box="Training")] = 1,
    grace: Grace = 60.0,
    as_json: AsJson = False,
) -> None:
    """Run a federation on this machine: a server and one site per client, each a process, over mutual TLS."""
    from fedspray.report.tables import run_table
    from fedspray.runs.settings import resolve

    output, experiment = Output(as_json), knobs.read(None, given)
    resolve(experiment.run)  # check settings before touching data
    federation = knobs.open_federation(output, experiment.data.to_json())
    from fedspray.deploy.operations.local import RUN, LocalFederation

    here = LocalFederation(out, federation, experiment.run, grace=grace, threads=threads)
    with live(output, here.project, RUN) as (tell, tend):
        summary: dict[str, Any] = here.run(tell, tend)
    files.write_json(out / "result.json", summary)
    if not as_json:
        output.show(run_table(summary))
    output.note(f"saved in {out}; each site's personal model is in {out}/kits/SITE/models")
    output.note(f"view it with: fedspray report {out}/runs/{RUN}")
    output.result(summary)
