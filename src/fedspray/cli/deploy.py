"""``fedspray deploy``: federations between organisations, the coordinator's side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedspray.cli import options
from fedspray.cli.output import Output
from fedspray.errors import InputError

EPILOG = """
[bold]Example[/bold]

fedspray deploy local --dataset banks --clients 3 --rounds 3 --out try-it
"""

app = typer.Typer(help="Federations between organisations: the coordinator's commands.", no_args_is_help=True)

Grace = Annotated[
    float, typer.Option("--grace", help="Seconds that a round waits for late sites once enough answered.", metavar="S")
]


def need_nvflare() -> None:
    """Says how to install what these commands need."""
    import importlib.util

    if importlib.util.find_spec("nvflare") is None:
        raise InputError("NVFlare is not installed: pip install 'fedspray[deploy]'")


@app.command("local", epilog=EPILOG)
def local(
    out: Annotated[Path, typer.Option("--out", help="A new folder for everything.", metavar="DIR")],
    dataset: Annotated[str | None, options.DATASET] = None,
    partitioner: options.Partitioner = None,
    partition_dir: options.PartitionDir = None,
    clients: options.Clients = None,
    nodes: options.Nodes = None,
    alpha: options.Alpha = None,
    partition_seed: Annotated[int | None, options.PARTITION_SEED] = None,
    algorithm: options.Algorithm = None,
    backbone: options.Backbone = None,
    backbone_of: options.BackboneOf = None,
    preset: options.Preset = None,
    rounds: options.Rounds = None,
    local_epochs: options.LocalEpochs = None,
    participation: options.Participation = None,
    min_clients: options.MinClients = None,
    selection: options.Selection = None,
    settings: options.Settings = None,
    seed: options.RunSeed = None,
    seeds: options.RunSeeds = None,
    keep_split: options.KeepSplit = False,
    threads: Annotated[int, options.training("--threads", "torch's threads at each site.", "N", min=1)] = 1,
    grace: Grace = 60.0,
    as_json: options.AsJson = False,
) -> None:
    """Run a federation on this machine: a server and a site per client as processes of their own, over mutual TLS."""
    need_nvflare()
    from fedspray.report.tables import run_table
    from fedspray.runs import store
    from fedspray.runs.experiment import Experiment, open_source

    output = Output(as_json)
    values = options.experiment_values(
        dataset=dataset,
        partitioner=partitioner,
        partition_dir=partition_dir,
        clients=clients,
        nodes=nodes,
        alpha=alpha,
        partition_seed=partition_seed,
        algorithm=algorithm,
        backbone=backbone,
        preset=preset,
        rounds=rounds,
        local_epochs=local_epochs,
        participation=participation,
        min_clients=min_clients,
        selection=selection,
        seed=seed,
        seeds=seeds,
        keep_split=keep_split,
        settings=settings,
        backbone_of=backbone_of,
    )
    experiment = Experiment.from_values(values, "command line")
    run_settings = experiment.run_settings()
    run_settings.build()  # refuse bad settings before any data is touched
    with output.busy(f"preparing {experiment.dataset} …"):
        federation = open_source(experiment.source())
    from fedspray.deploy.local import LocalFederation

    here = LocalFederation(out, federation, run_settings, grace=grace, threads=threads)
    summary: dict[str, Any] = here.run(output.note)
    store.write_json(out / "result.json", summary)
    if not as_json:
        output.show(run_table(summary))
    output.note(f"kept in {out}; each site's personal model is in {out}/kits/SITE/models")
    output.result(summary)
