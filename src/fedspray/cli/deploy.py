"""``fedspray deploy``: federations between organisations, the coordinator's side."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspray.cli import options
from fedspray.cli.output import Output
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.deploy.project import Project
    from fedspray.experiment import RunSettings

LOCAL_EPILOG = """
[bold]Example[/bold]

fedspray deploy local --dataset banks --clients 3 --rounds 3 --out try-it
"""

INIT_EPILOG = """
[bold]Example[/bold]

fedspray deploy init fraud --site north --site south --host fl.example.org --features 32 --classes 2 --rounds 100
"""


def keep_private(context: typer.Context) -> None:
    """What these commands write is for its owner alone."""
    from fedspray.deploy.privacy import private_files

    context.with_resource(private_files())


app = typer.Typer(
    help="Federations between organisations: the coordinator's commands.", no_args_is_help=True, callback=keep_private
)

Grace = Annotated[
    float,
    typer.Option("--grace", help="Seconds that a round waits for late sites once enough trained.", metavar="S"),
]

ProjectFolder = Annotated[Path, typer.Argument(help="The project's folder.", metavar="PROJECT")]
SiteName = Annotated[str, typer.Argument(help="One of its sites.", metavar="SITE")]
EVENTS_SHOWN = 10
Foreground = Annotated[
    bool, typer.Option("--foreground", help="Become the process instead of starting one: for systemd.")
]


def need_nvflare() -> None:
    """Says how to install what these commands need."""
    import importlib.util

    if importlib.util.find_spec("nvflare") is None:
        raise InputError("NVFlare is not installed: install fedspray with its extra, [deploy] (see docs/deployment.md)")


@app.command("local", epilog=LOCAL_EPILOG)
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
    threads: Annotated[int, options.training("--threads", "Threads of each site.", "N", min=1)] = 1,
    grace: Grace = 60.0,
    as_json: options.AsJson = False,
) -> None:
    """Run a federation on this machine: a server and a site per client as processes of their own, over mutual TLS."""
    need_nvflare()
    from fedspray import files
    from fedspray.experiment import Experiment
    from fedspray.federate import open_data
    from fedspray.report.tables import run_table
    from fedspray.runs.settings import resolve

    output, values = Output(as_json), options.experiment_values(locals())
    experiment = Experiment.from_values(values, "command line")
    run_settings = experiment.run
    resolve(run_settings)  # refuse bad settings before any data is touched
    with output.busy(f"preparing {experiment.data.dataset} …"):
        federation = open_data(experiment.data)
    options.note_tidied(output, federation)
    from fedspray.deploy.local import RUN, LocalFederation

    here = LocalFederation(out, federation, run_settings, grace=grace, threads=threads)
    _end_like_ctrl_c()
    with _live(output, here.project, RUN) as (tell, tend):
        summary: dict[str, Any] = here.run(tell, tend)
    files.write_json(out / "result.json", summary)
    if not as_json:
        output.show(run_table(summary))
    output.note(f"kept in {out}; each site's personal model is in {out}/kits/SITE/models")
    output.result(summary)


@app.command("init", epilog=INIT_EPILOG)
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the project.", metavar="PROJECT")],
    sites: Annotated[
        list[str] | None,
        typer.Option("--site", help="A site's name, or NAME=ORGANISATION; one for each site.", metavar="NAME"),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="The server's name, as sites reach it.", metavar="HOST")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="The server's port.", metavar="PORT", min=1, max=65535)] = 8002,
    features: Annotated[
        str | None,
        typer.Option(
            "--features", help="Number of features, their names (a,b,c), or a file of names.", metavar="F|NAMES|FILE"
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes", help="Number of classes, their names (a,b,c), or a file of names.", metavar="C|NAMES|FILE"
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The federation's name. [dim]default: the folder's[/dim]", metavar="NAME"),
    ] = None,
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
    grace: Grace = 60.0,
    csr: Annotated[
        Path | None,
        typer.Option("--csr", help="A folder with the sites' certificate requests, SITE.csr.", metavar="DIR"),
    ] = None,
    make_keys: Annotated[
        bool,
        typer.Option("--make-keys", help="Make the private keys of sites without a request here: for trying out."),
    ] = False,
    valid_days: Annotated[
        int, typer.Option("--valid-days", help="Days that the certificates are valid.", metavar="N", min=1)
    ] = 360,
) -> None:
    """Make a federation: the agreement, a certificate authority, and hardened start-up kits."""
    need_nvflare()
    from fedspray.deploy.agreement import Agreement
    from fedspray.deploy.coordinator import init_project, schema
    from fedspray.deploy.kits import Address
    from fedspray.deploy.project import Project

    output = Output()
    given = sites or _ask("sites, separated by commas", "--site").replace(" ", "").split(",")
    names = [site.partition("=")[0] for site in given]
    organisations = {name: site.partition("=")[2] or name for name, site in zip(names, given, strict=True)}
    address = Address(host or _ask("the server's host name", "--host"), port)
    task = schema(
        features or _ask("number of features, or their names separated by commas", "--features"),
        classes or _ask("number of classes, or their names separated by commas", "--classes"),
    )
    experiment = _experiment(locals())
    agreement = Agreement.between(name or folder.name, names, task, experiment)
    with output.busy("making keys and kits …"):
        parcels = init_project(
            folder,
            agreement,
            address,
            grace=grace,
            organisations=organisations,
            requests=csr,
            make_keys=make_keys,
            valid_days=valid_days,
        )
    for parcel, request in parcels.items():
        if request is None:
            output.note(f"{parcel} holds a private key: send it safely, then delete it here")
        else:
            _tell_signed(output, request, parcel)
    waiting = Project.open(folder).without_certificate()
    if waiting:
        output.note(f"{', '.join(waiting)}: for each certificate request, fedspray deploy sign {folder} SITE.csr")
    output.note(f"then: fedspray deploy start {folder}, and fedspray deploy run {folder}")


@app.command("sign")
def sign(
    folder: ProjectFolder,
    request: Annotated[
        Path, typer.Argument(help="What a site sent: fedspray site request made it.", metavar="SITE.csr")
    ],
    again: Annotated[bool, typer.Option("--again", help="Also if the site has a certificate already.")] = False,
) -> None:
    """Sign a site's certificate request and pack its kit, which holds no secret, into a zip file."""
    need_nvflare()
    from fedspray.deploy import coordinator
    from fedspray.deploy.project import Project

    _tell_signed(Output(), request, coordinator.sign(Project.open(folder), request, again=again))


@app.command("amend")
def amend(
    folder: ProjectFolder,
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
    yes: Annotated[bool, typer.Option("--yes", help="Give up runs that are not finished.")] = False,
) -> None:
    """Change what is agreed on with the same sites; what is not given stays. Each site must agree to the new file."""
    flags = options.experiment_values(locals())
    need_nvflare()
    from fedspray.deploy.agreement import FILE, Agreement
    from fedspray.deploy.coordinator import amended, unfinished_runs
    from fedspray.deploy.project import Project

    project, output = Project.open(folder), Output()
    old = project.agreement()
    new = Agreement(old.roster, amended(old.settings, flags), coordinator=project.coordinator_key())
    changes = old.changes(new)
    if not changes:
        output.note("nothing changes: the agreement is as it was")
        return
    unfinished = unfinished_runs(project)
    if unfinished and not yes:
        raise InputError(
            f"{', '.join(unfinished)} is not finished and cannot go on under another agreement: bring it to its end "
            f"with fedspray deploy run {folder} --attach --run {unfinished[0]}, or give --yes to give it up"
        )
    for change in changes:
        output.show(change)
    new.save(project.folder)
    new.save(project.server / "local")
    output.note(f"send {project.folder / FILE} to every site, for: fedspray site agree KIT {FILE}")


@app.command("start")
def start(folder: ProjectFolder, foreground: Foreground = False) -> None:
    """Start the server."""
    need_nvflare()
    from fedspray.deploy import processes
    from fedspray.deploy.certificates import check_dates
    from fedspray.deploy.project import Project

    project = Project.open(folder)
    check_dates(project.server)
    project.agreement().check_version()
    if processes.running(project.server) is None:
        processes.check_port(project.address.host, project.address.port)
    if foreground:
        processes.replace_this_process(project.server)
    pid = processes.start_and_watch(project.server, port=project.address.port)
    log = project.server / processes.LOG_FILE
    Output().note(f"the server runs as process {pid} on port {project.address.port}; its log is {log}")


@app.command("run")
def run(
    folder: ProjectFolder,
    name: Annotated[
        str | None,
        typer.Option(
            "--run", help="The run's name. [dim]default: the time, or with --attach the last[/dim]", metavar="RUN"
        ),
    ] = None,
    attach: Annotated[bool, typer.Option("--attach", help="Come back to a run that was begun before.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run what was agreed on and show it live; after crashes it goes on by itself. Ctrl-C leaves it running."""
    need_nvflare()
    from fedspray.deploy import processes
    from fedspray.deploy.coordinator import begin_run, check_certificates, last_run
    from fedspray.deploy.driver import Driver
    from fedspray.deploy.project import Project
    from fedspray.report.tables import run_table

    output, project = Output(as_json), Project.open(folder)
    check_certificates(project)
    project.agreement().check_version()
    if processes.running(project.server) is None:
        raise InputError(f"the server is not running: fedspray deploy start {folder}")
    if processes.was_moved(project.server):
        raise InputError(
            f"{folder} was moved while its server was running: "
            f"fedspray deploy stop {folder}, then fedspray deploy start {folder}"
        )
    chosen = (name or last_run(project)) if attach else begin_run(project, name)
    if not project.run_folder(chosen).is_dir():
        raise InputError(f"{project.run_folder(chosen)} does not exist: without --attach a new run is begun")
    try:
        with _live(output, project, chosen) as (tell, tend):
            summary = Driver(project, chosen, tell=tell, tend=tend).drive()
    except KeyboardInterrupt:
        output.note(f"the run goes on; come back with: fedspray deploy run {folder} --attach --run {chosen}")
        raise
    if not as_json:
        output.show(run_table(summary))
        _show_missed(output, project, chosen)
    output.note(f"kept in {project.run_folder(chosen)}; each site keeps its own personal model")
    output.result(summary)


@app.command("status")
def status(folder: ProjectFolder, as_json: options.AsJson = False) -> None:
    """Show the server, the sites and the runs."""
    need_nvflare()
    from fedspray.deploy.coordinator import check_certificates, project_status
    from fedspray.deploy.project import Project

    output, project = Output(as_json), Project.open(folder)
    check_certificates(project)
    found = project_status(project)
    if not as_json:
        server = found["server"]
        output.show(f"[bold]server[/bold] {found['address']}: {'stopped' if server is None else f'process {server}'}")
        for site, jobs in found["sites"].items():
            state = "not connected" if jobs is None else "in a job" if jobs else "connected"
            if site in found["without_certificate"]:
                state = "its certificate request is not signed yet"
            if site in found["disabled"]:
                state = "disabled"
            output.show(f"[bold]site[/bold] {site}: {state}")
        for name, row in found["runs"].items():
            output.show(
                f"[bold]run[/bold] {name}: {row['state']}, round {row['round']} of {row['rounds']}{_waits(row)}"
            )
        for event in found["events"][-EVENTS_SHOWN:]:
            output.show(f"[bold]event[/bold] {event['time']}: {event['event']}: {event['sender']}: {event['what']}")
    output.result(found)


@app.command("disable")
def disable(folder: ProjectFolder, site: SiteName) -> None:
    """Cut a site off, at once and until it is enabled: its connections are closed, a running job goes on without it."""
    need_nvflare()
    from fedspray.deploy import coordinator
    from fedspray.deploy.project import Project

    new = coordinator.set_disabled(Project.open(folder), site, True)
    Output().note(f"{site} is disabled" if new else f"{site} was disabled already")


@app.command("enable")
def enable(folder: ProjectFolder, site: SiteName) -> None:
    """Let a site in again that was disabled."""
    need_nvflare()
    from fedspray.deploy import coordinator
    from fedspray.deploy.project import Project

    new = coordinator.set_disabled(Project.open(folder), site, False)
    Output().note(f"{site} is enabled" if new else f"{site} was not disabled")


@app.command("stop")
def stop(folder: ProjectFolder) -> None:
    """Stop the server; a run goes on from its last round when the server is started again."""
    need_nvflare()
    from fedspray.deploy import processes
    from fedspray.deploy.project import Project

    ended = processes.stop([Project.open(folder).server])
    Output().note("the server stopped" if ended else "the server was not running")


def _end_like_ctrl_c() -> None:
    """Whatever ends this command, a closed terminal too, its processes end with it."""

    def end(number: int, frame: Any) -> None:
        for each in ending:  # closing a terminal may send more than one, and the processes must be ended in peace
            signal.signal(each, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)  # is remembered where NVFlare swallows exceptions
        raise KeyboardInterrupt

    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    for each in ending:
        signal.signal(each, end)


def _ask(what: str, flag: str) -> str:
    import sys

    if not sys.stdin.isatty():
        raise InputError(f"{flag} is missing: {what}")
    return str(typer.prompt(what, err=True))


def _experiment(given: Mapping[str, Any]) -> RunSettings:
    from fedspray.experiment import Experiment

    return Experiment.from_values(options.experiment_values(given), "command line").run


def _tell_signed(output: Output, request: Path, parcel: Path) -> None:
    from fedspray.deploy.certificates import file_fingerprint, key_fingerprint, read_request, to_read_aloud

    name, key = read_request(request)
    output.note(f"{parcel} holds no secret; compare with the engineer of {name} on the telephone:")
    output.note(f"  key of {name}: {to_read_aloud(key_fingerprint(key))}")
    output.note(f"  zip file: {to_read_aloud(file_fingerprint(parcel))}")


def _waits(row: dict[str, Any]) -> str:
    return f", waits for {', '.join(row['waiting_for'])}" if row["waiting_for"] else ""


def _show_missed(output: Output, project: Project, run: str) -> None:
    from fedspray.deploy.coordinator import missed_rounds

    for site, rounds in missed_rounds(project, run).items():
        output.show(f"{site} missed rounds {', '.join(map(str, rounds))}")


@contextmanager
def _live(output: Output, project: Project, run: str) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """On a terminal: a table of the sites and the last validation figures, twice a second."""
    if not output.messages.is_terminal:
        yield output.note, lambda: None
        return
    from rich.live import Live

    from fedspray.report.deployment import progress_table

    with Live(console=output.messages, refresh_per_second=2, transient=True) as live:
        yield output.note, lambda: live.update(progress_table(project.run_folder(run), project.agreement()))
