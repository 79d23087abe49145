"""``fedspray deploy``: federations between organisations, the coordinator's side."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from fedspray.cli import knobs
from fedspray.cli.flags import AsJson, Count, argument, examples, flag, group, whole
from fedspray.cli.organisations import (
    Foreground,
    Grace,
    ProjectFolder,
    ServiceFolder,
    ServiceKind,
    ServiceUser,
    SiteName,
    ask,
    organisational,
    warn_of_end,
    write_service,
)
from fedspray.cli.output import Output
from fedspray.errors import InputError, RunStopped

if TYPE_CHECKING:
    from fedspray.deploy.provisioning.membership import Applicant
    from fedspray.deploy.provisioning.project import Project

COMMANDS = (
    *("init", "sign", "amend", "start", "run", "status", "disable", "enable", "stop"),
    *("add", "approve", "remove", "renew", "rotate", "resume", "service"),
)
deploy = group(
    "deploy",
    "Federations between organisations: the coordinator's commands.",
    {
        "local": "fedspray.cli.local:local",
        **{each: f"{__name__}:{each}" for each in COMMANDS},
        **{each: f"fedspray.cli.records:deploy_{each}" for each in ("events", "backup", "restore")},
        "forget": "fedspray.cli.records:forget",
    },
)

Request = Annotated[Path, argument("A site's certificate request, from fedspray site request.", "SITE.csr")]
Again = Annotated[bool, flag("Sign even if the site already has a certificate.")]
SITES_FILE = flag(
    "A TOML file of sites: [[site]] with name, organisation, contact, nodes.", "FILE.toml", name="--sites"
)
ValidDays = Annotated[Count, flag("Days for which the certificates are valid.", "N")]
RESUME_EVERY = 5.0
"""Seconds between looks for runs to resume."""
EVENTS_SHOWN, RUN_EVENTS_SHOWN = 10, 3


@examples(
    "fedspray deploy init fraud --site north --site south --host fl.example.org --features 32 --classes 2 --rounds 100"
)
@organisational
def init(
    folder: Annotated[Path, argument("A new folder for the project.", "PROJECT")],
    /,
    *,
    sites: Annotated[
        list[str] | None,
        flag("A site's name, or NAME=ORGANISATION; one for each site.", "NAME", name="--site", default="asked for"),
    ] = None,
    host: Annotated[str | None, flag("The server's name, as sites reach it.", "HOST", default="asked for")] = None,
    port: Annotated[int, whole(1, 65535), flag("The server's port.", "PORT")] = 8002,
    features: Annotated[
        str | None,
        flag("Number of features, their names (a,b,c), or a file of names.", "F|NAMES|FILE", default="asked for"),
    ] = None,
    classes: Annotated[
        str | None,
        flag("Number of classes, their names (a,b,c), or a file of names.", "C|NAMES|FILE", default="asked for"),
    ] = None,
    sites_file: Annotated[Path | None, SITES_FILE] = None,
    name: Annotated[str | None, flag("The federation's name.", "NAME", default="the folder's")] = None,
    given: knobs.Training | None = None,
    grace: Grace = 60.0,
    csr: Annotated[Path | None, flag("A folder with the sites' certificate requests, SITE.csr.", "DIR")] = None,
    make_keys: Annotated[bool, flag("Create the keys of sites without a request here; only for trials.")] = False,
    valid_days: ValidDays = 360,
) -> None:
    """Create a federation: the agreement, a certificate authority, and hardened start-up kits."""
    from fedspray.deploy.agreement import Agreement
    from fedspray.deploy.provisioning.federation import init_project, schema
    from fedspray.deploy.provisioning.kits import Address
    from fedspray.deploy.provisioning.membership import known_of

    output = Output()
    if not sites and sites_file is None:
        sites = _ask("sites, separated by commas", "--site").replace(" ", "").split(",")
    applicants = _applicants(sites, sites_file)
    names = [site.name for site in applicants]
    organisations, about = known_of(applicants)
    address = Address(host or _ask("the server's host name", "--host"), port)
    task = schema(
        features or _ask("number of features, or their names separated by commas", "--features"),
        classes or _ask("number of classes, or their names separated by commas", "--classes"),
    )
    agreement = Agreement.between(name or folder.name, names, task, knobs.read(None, given).run)
    with output.busy("making keys and kits …"):
        archives = init_project(
            folder,
            agreement,
            address,
            grace=grace,
            organisations=organisations,
            requests=csr,
            make_keys=make_keys,
            valid_days=valid_days,
            about=about,
        )
    _tell_made(output, folder, archives)


def _tell_made(output: Output, folder: Path, archives: dict[Path, Path | None]) -> None:
    """What to do with each kit, and what comes next."""
    for zip_file, request in archives.items():
        if request is None:
            output.note(f"{zip_file} holds a private key: send it safely, then delete it here")
        else:
            _tell_signed(output, request, zip_file)
    _tell_fingerprint(output, _project(folder))
    waiting = _project(folder).without_certificate()
    if waiting:
        output.note(f"{', '.join(waiting)}: for each certificate request, fedspray deploy sign {folder} SITE.csr")
    output.note(f"then: fedspray deploy start {folder}, and fedspray deploy run {folder}")


@organisational
def sign(folder: ProjectFolder, request: Request, /, *, again: Again = False) -> None:
    """Sign a site's certificate request and pack its kit, which holds no secret, into a zip file."""
    from fedspray.deploy.provisioning import federation

    _tell_signed(Output(), request, federation.sign(_project(folder), request, again=again))


@organisational
def amend(
    folder: ProjectFolder,
    /,
    *,
    given: knobs.Amendment | None = None,
    yes: Annotated[bool, flag("Give up runs that are not finished.")] = False,
) -> None:
    """Change the agreement; anything you leave out stays. Each site must accept the new file."""
    from fedspray.deploy.agreement import Agreement
    from fedspray.deploy.operations.runs import unfinished_runs
    from fedspray.deploy.provisioning.federation import amended

    project, output = _project(folder), Output()
    old = project.proposed()
    new = Agreement(old.roster, amended(old.settings, knobs.values(given)), coordinator=project.coordinator_key())
    changes = old.changes(new)
    if not changes:
        output.note("nothing to change: the agreement stays as it is")
        return
    unfinished = unfinished_runs(project)
    if unfinished and not yes:
        raise InputError(
            f"{', '.join(unfinished)} is not finished and can't continue under another agreement: finish it "
            f"with fedspray deploy run {folder} --attach --run {unfinished[0]}, or pass --yes to give it up"
        )
    for change in changes:
        output.show(change)
    project.take_on(new)
    _tell_to_agree(output, project)


@organisational
def start(folder: ProjectFolder, /, *, foreground: Foreground = False) -> None:
    """Start the server."""
    from fedspray.deploy.operations import processes
    from fedspray.deploy.provisioning.certificates import check_dates

    project = _project(folder)
    check_dates(project.server)
    warn_of_end(Output(), project.server)
    project.agreement().check_version()
    if processes.running(project.server) is None:
        processes.check_port(project.address.host, project.address.port)
    if foreground:
        processes.replace_this_process(project.server)
    Output().note(f"the server {processes.start_and_watch(project.server, port=project.address.port)}")


@organisational
def run(
    folder: ProjectFolder,
    /,
    *,
    name: Annotated[
        str | None,
        flag("The run's name.", "RUN", name="--run", default="the time, or with --attach the last"),
    ] = None,
    attach: Annotated[bool, flag("Return to a run that was started earlier.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the agreed experiment and follow it live; it survives crashes, and Ctrl-C leaves it running."""
    from fedspray.deploy.operations import processes
    from fedspray.deploy.operations.driver import Driver
    from fedspray.deploy.operations.runs import begin_run, check_certificates, last_run, missed_rounds
    from fedspray.report.tables import run_table

    output, project = Output(as_json), _project(folder)
    check_certificates(project)
    warn_of_end(output, project.server, project.coordinator)
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
        raise InputError(f"{project.run_folder(chosen)} does not exist: leave out --attach to start a new run")
    try:
        with live(output, project, chosen) as (tell, tend):
            summary = Driver(project, chosen, tell=tell, tend=tend).drive()
    except KeyboardInterrupt:
        back = f"fedspray deploy run {folder} --attach --run {chosen}"
        alive = processes.running(project.server) is not None
        output.note(f"the run continues; return to it with: {back}" if alive else f"the server is down; later: {back}")
        raise
    if not as_json:
        output.show(run_table(summary))
        for site, rounds in missed_rounds(project, chosen).items():
            output.show(f"{site} missed {_listed(rounds)}")
    output.note(f"kept in {project.run_folder(chosen)}; each site keeps its own personal model")
    output.result(summary)


@organisational
def status(folder: ProjectFolder, /, *, as_json: AsJson = False) -> None:
    """Show the server, the sites and the runs."""
    from fedspray.deploy.operations.runs import check_certificates, project_status
    from fedspray.deploy.provisioning.certificates import to_read_aloud

    output, project = Output(as_json), _project(folder)
    check_certificates(project)
    warn_of_end(output, project.server, *(project.site(name) for name in project.with_certificate()))
    found = project_status(project)
    if not as_json:
        server = found["server"]
        output.show(f"[bold]server[/bold] {found['address']}: {'stopped' if server is None else f'process {server}'}")
        output.show(f"[bold]fingerprint[/bold] {to_read_aloud(found['fingerprint'])}")
        for site, jobs in found["sites"].items():
            state = "not connected" if jobs is None else "in a job" if jobs else "connected"
            if site in found["since"]:
                state += f" (since {found['since'][site]})"
            if site in found["about"] and jobs is None and "contact" in found["about"][site]:
                state += f", contact {escape(found['about'][site]['contact'])}"
            if site in found["without_certificate"]:
                state = "its certificate request is not signed yet"
            if site in found["disabled"]:
                state = "disabled"
            if site in found["left"]:
                state = "removed"
            output.show(f"[bold]site[/bold] {site}: {state}")
        for name, row in found["runs"].items():
            waits = f", waits for {', '.join(row['waiting_for'])}" if row["waiting_for"] else ""
            output.show(f"[bold]run[/bold] {name}: {row['state']}, round {row['round']} of {row['rounds']}{waits}")
            for site, rounds in row["missed"].items():
                output.show(f"  {site} missed {_listed(rounds)}")
            for event in row["events"][-RUN_EVENTS_SHOWN:]:
                output.show(f"  {event['time']}: {escape(event['sender'])}: {escape(event['what'])}")
        for event in found["events"][-EVENTS_SHOWN:]:
            output.show(f"[bold]event[/bold] {event['time']}: {event['event']}: {event['sender']}: {event['what']}")
    output.result(found)


@organisational
def disable(folder: ProjectFolder, site: SiteName, /) -> None:
    """Cut a site off at once, until it is enabled: its connections close, and a running job continues without it."""
    from fedspray.deploy.provisioning import federation

    new = federation.set_disabled(_project(folder), site, True)
    Output().note(f"{site} is disabled" if new else f"{site} was disabled already")


@organisational
def enable(folder: ProjectFolder, site: SiteName, /) -> None:
    """Readmit a disabled site."""
    from fedspray.deploy.provisioning import federation

    new = federation.set_disabled(_project(folder), site, False)
    Output().note(f"{site} is enabled" if new else f"{site} was not disabled")


@organisational
def add(
    folder: ProjectFolder,
    /,
    *,
    sites: Annotated[list[str] | None, flag("A site's name, or NAME=ORGANISATION.", "NAME", name="--site")] = None,
    sites_file: Annotated[Path | None, SITES_FILE] = None,
) -> None:
    """Add sites: every site must accept the new agreement; runs include the new sites once they connect."""
    from fedspray.deploy.provisioning import membership

    applicants, project = _applicants(sites, sites_file), _project(folder)
    if not applicants:
        raise InputError("there is no site to add: give --site NAME or --sites FILE.toml")
    membership.add(project, applicants)
    output = Output()
    _tell_to_agree(output, project)
    names = ", ".join(site.name for site in applicants)
    output.note(f"{names}: for each certificate request, fedspray deploy sign {folder} SITE.csr")


@organisational
def approve(folder: ProjectFolder, request: Request, /, *, again: Again = False) -> None:
    """Admit a site that sent a request: add it if it is new, sign its certificate and pack its kit."""
    from fedspray.deploy.provisioning import membership

    project, output = _project(folder), Output()
    _tell_signed(output, request, membership.approve(project, request, again=again))
    if project.proposed().fingerprint() != project.agreement().fingerprint():
        _tell_to_agree(output, project)


@organisational
def remove(folder: ProjectFolder, site: SiteName, /) -> None:
    """Remove a site for good: its key stops working, and runs continue without it."""
    from fedspray.deploy.provisioning import membership

    new = membership.remove(_project(folder), site)
    Output().note(
        f"{site} is removed; what it sent before stays in past rounds" if new else f"{site} had already been removed"
    )


@organisational
def renew(folder: ProjectFolder, /, *, valid_days: ValidDays = 360) -> None:
    """Renew all certificates, including the authority's; old ones stay valid until they expire."""
    _renew(folder, valid_days, new_authority=False)


@organisational
def rotate(folder: ProjectFolder, /, *, valid_days: ValidDays = 360) -> None:
    """Replace the certificate authority: every site installs its new certificate before the server starts again."""
    _renew(folder, valid_days, new_authority=True)


def _renew(folder: Path, valid_days: int, *, new_authority: bool) -> None:
    from fedspray.deploy.provisioning import membership

    output = Output()
    for made in membership.renew(_project(folder), valid_days=valid_days, new_authority=new_authority):
        output.note(f"send {made} to its site, for: fedspray site renew KIT {made.name}")
    output.note(f"then, for the server's own: fedspray deploy stop {folder}, and fedspray deploy start {folder}")


@organisational
def resume(folder: ProjectFolder, /, *, once: Annotated[bool, flag("Exit when no run is left.")] = False) -> None:
    """Finish interrupted runs, now and after every restart, without a terminal: for a service."""
    from fedspray.deploy.operations.driver import Driver
    from fedspray.deploy.operations.runs import resumable_runs

    output, project, given_up = Output(), _project(folder), set[str]()
    while True:
        runs = [name for name in resumable_runs(project) if name not in given_up]
        for name in runs:
            try:
                Driver(project, name, tell=output.note).drive()
                output.note(f"{name} is done")
            except (RunStopped, InputError) as error:
                given_up.add(name)
                output.note(f"{name} will not be resumed: {error}")
        if once and not runs:
            return
        time.sleep(RESUME_EVERY)


@organisational
def service(
    folder: ProjectFolder, /, *, out: ServiceFolder, user: ServiceUser = "fedspray", kind: ServiceKind = "systemd"
) -> None:
    """Write hardened files for systemd or containers that run the server and resume unfinished runs after a reboot."""
    from fedspray.deploy.operations import containers
    from fedspray.deploy.operations.service import project_units

    project = _project(folder)
    made = {
        "systemd": lambda: project_units(project.folder, user),
        "compose": lambda: containers.project_compose(project.folder, project.address),
        "kubernetes": lambda: containers.project_manifest(project.folder, project.address),
    }
    write_service(Output(), out, kind, made[kind]())


@organisational
def stop(folder: ProjectFolder, /) -> None:
    """Stop the server; runs continue from their last round when it starts again."""
    from fedspray.deploy.operations import processes

    ended = processes.stop([_project(folder).server])
    Output().note("the server stopped" if ended else "the server was not running")


def _project(folder: Path) -> Project:
    from fedspray.deploy.provisioning.project import Project

    return Project.open(folder)


def _ask(what: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise InputError(f"{flag} is missing: {what}")
    return ask(what)


def _applicants(sites: list[str] | None, file: Path | None) -> list[Applicant]:
    from fedspray.deploy.provisioning.membership import Applicant, read_sites

    named = [site.partition("=") for site in sites or []]
    return [
        *(Applicant(name, organisation or None) for name, _, organisation in named),
        *(read_sites(file) if file else ()),
    ]


def _tell_to_agree(output: Output, project: Project) -> None:
    output.note(f"send {project.folder / 'agreement.json'} to every site, for: fedspray site agree KIT agreement.json")
    _tell_fingerprint(output, project)


def _tell_fingerprint(output: Output, project: Project) -> None:
    from fedspray.deploy.provisioning.certificates import federation_fingerprint, to_read_aloud

    found = federation_fingerprint(project.coordinator, project.proposed().fingerprint())
    output.note(f"fingerprint of authority and agreement: {to_read_aloud(found)}")
    output.note("read it out to every site, for: fedspray site check KIT --fingerprint '…'")


def _tell_signed(output: Output, request: Path, zip_file: Path) -> None:
    from fedspray.deploy.provisioning.certificates import file_fingerprint, key_fingerprint, read_request, to_read_aloud

    name, key = read_request(request)
    output.note(f"{zip_file} holds no secret; compare these by phone with the engineer of {name}:")
    output.note(f"  key of {name}: {to_read_aloud(key_fingerprint(key))}")
    output.note(f"  zip file: {to_read_aloud(file_fingerprint(zip_file))}")


def _listed(rounds: Sequence[int]) -> str:
    """Rounds in words: those that follow each other as first and last."""
    runs: list[list[int]] = []
    for number in sorted(set(rounds)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{'round' if told == [str(rounds[0])] else 'rounds'} {', '.join(told)}"


@contextmanager
def live(output: Output, project: Project, run: str) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """On a terminal: a table of the sites and the last validation figures, twice a second."""
    if not output.messages.is_terminal:
        yield output.note, lambda: None
        return
    from rich.live import Live

    from fedspray.report.deployment import progress_table

    with Live(console=output.messages, refresh_per_second=2, transient=True) as live:
        yield output.note, lambda: live.update(progress_table(project.run_folder(run), project.agreement()))
