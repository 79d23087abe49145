"""``fedspray site``: federations between organisations, a site's side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from rich.padding import Padding

from fedspray.cli.flags import AsJson, Cores, argument, flag, group
from fedspray.cli.organisations import (
    Foreground,
    Kit,
    ServiceFolder,
    ServiceKind,
    ServiceUser,
    confirm,
    organisational,
    warn_of_end,
    write_service,
)
from fedspray.cli.output import Output
from fedspray.errors import InputError

COMMANDS = ("request", "unpack", "check", "start", "status", "ledger", "agree", "renew", "service", "stop")
ELSEWHERE = {
    **{each: f"fedspray.cli.consent:{each}" for each in ("runs", "accept", "refuse")},
    **{each: f"fedspray.cli.records:site_{each}" for each in ("events", "backup", "restore")},
}
site = group(
    "site",
    "Federations between organisations: a site's commands.",
    {each: f"{__name__}:{each}" for each in COMMANDS} | ELSEWHERE,
)

NOT_RUNNING, NOT_CONNECTED = 3, 4
"""Exit codes of `fedspray site status`."""
NewKit = Annotated[Path, argument("The folder that is or becomes the start-up kit.", "KIT")]
ZipFile = Annotated[Path, argument("The coordinator's zip file.", "SITE.zip")]


@organisational
def request(kit: NewKit, /, *, name: Annotated[str, flag("This site's name in the federation.", "NAME")]) -> None:
    """Create a private key, which never leaves this folder, and a certificate request to send to the coordinator."""
    from fedspray.deploy.provisioning.certificates import key_fingerprint, make_request, read_request, to_read_aloud

    made, output = make_request(kit, name), Output()
    output.note(f"your key is {to_read_aloud(key_fingerprint(read_request(made)[1]))}")
    output.note(f"send {made} to the coordinator; when {name}.zip comes back: fedspray site unpack {kit} {name}.zip")


@organisational
def unpack(kit: NewKit, zip_file: ZipFile, /) -> None:
    """Unpack the coordinator's zip file around the private key you made here."""
    from fedspray.deploy.provisioning import archive
    from fedspray.deploy.provisioning.certificates import file_fingerprint, to_read_aloud

    site, output = archive.unpack(zip_file, kit), Output()
    output.note(f"the zip file is {to_read_aloud(file_fingerprint(zip_file))}: the coordinator must see the same")
    output.note(f"{kit} is the kit of {site.name}; next: fedspray site check {kit} --data PATH")


@organisational
def check(
    kit: Kit,
    /,
    *,
    data: Annotated[
        Path | None, flag("Where this site's data are: a client's folder or a graph in npz format.", "PATH")
    ] = None,
    fingerprint: Annotated[
        str | None, flag("What the coordinator reads out: refuse a kit of another federation or agreement.", "HEX")
    ] = None,
    threads: Annotated[Cores | None, flag("Threads.", "N", default="1, or as kept")] = None,
    proxy: Annotated[
        str | None,
        flag("An HTTP proxy on the way to the server (CONNECT), or none.", "URL", default="none, or as kept"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check kit, certificates, data and schema, rehearse one local epoch, and list what would leave."""
    from fedspray.deploy.site.check import check_site
    from fedspray.deploy.site.kit import Site
    from fedspray.deploy.site.proxy import checked

    output = Output(as_json)
    site = Site.open(kit)
    if data is not None:
        site = replace(site, data=data.resolve())
    if threads is not None:
        site = replace(site, threads=threads)
    if proxy is not None:
        site = replace(site, proxy=None if proxy == "none" else checked(proxy))
    with output.busy("checking …"):
        found = check_site(site, fingerprint)
    if site != Site.open(kit):
        site.save()  # only what was found good is kept
    warn_of_end(output, kit)
    if not as_json:
        _show(output, kit, found)
    output.result(found)


@organisational
def start(
    kit: Kit,
    /,
    *,
    accept_all: Annotated[bool, flag("From now on accept every run under the agreement without asking.")] = False,
    foreground: Foreground = False,
) -> None:
    """Start this site; it connects to the server and waits for jobs."""
    from fedspray.deploy.operations import processes
    from fedspray.deploy.provisioning.certificates import certificate_of
    from fedspray.deploy.provisioning.kits import check_policies
    from fedspray.deploy.site import policy
    from fedspray.deploy.site.kit import Site

    site = Site.open(kit)
    processes.check_stopped(kit)  # before anything is changed
    if site.data is None:
        raise InputError(f"{site.name} has no data yet: set them with fedspray site check {kit} --data PATH")
    certificate_of(kit)  # refuses certificates that are of no use
    warn_of_end(Output(), kit)
    site.agreement()  # refuses other code
    check_policies(kit)
    site.check_writable()
    if accept_all:
        policy.accept_all(kit)
    if not policy.Policy.read(kit).unasked:
        Output().note(f"each run waits for your answer: fedspray site runs {kit} (or start with --accept-all)")
    if foreground:
        processes.replace_this_process(kit, site.threads)
    Output().note(f"{site.name} {processes.start_and_watch(kit, site.threads)}")


@organisational
def status(kit: Kit, /, *, as_json: AsJson = False) -> int:
    """Show whether this site is running and connected, and how far its runs are; monitors can use the exit code."""
    from fedspray.deploy.ledger import last_answers
    from fedspray.deploy.provisioning.certificates import certificate_of
    from fedspray.deploy.site import consent
    from fedspray.deploy.site.status import benefits, look, site_name

    output = Output(as_json)
    found = {"site": site_name(kit), **look(kit), "certificate": certificate_of(kit)}
    found["runs"], found["benefit"] = last_answers(kit), benefits(kit)
    found["asking"] = [each["offer"]["run"] for each in consent.answers(kit) if each["answer"] is None]
    if not as_json:
        busy = "in a job" if found["job_pids"] else "idle"
        process = "" if found["pid"] is None else f" (process {found['pid']}, {busy})"
        reason = "" if found["reason"] is None else f": {escape(found['reason'])}"
        since = "" if found["since"] is None else f" since {found['since']}"
        output.show(f"[bold]{found['site']}[/bold]: {found['state']}{since}{process}{reason}")
        output.show(f"  server {found['server']}, last heard of {found['last_contact'] or 'never'}")
        output.show(f"  certificate until {found['certificate']['valid_until']}")
        warn_of_end(output, kit)
        for name, last in found["runs"].items():
            said = f"{name}: last answer for round {last['round']} of seed {last['seed']}, {last['time']}"
            output.show(f"  {escape(said)}")
            for sentence in found["benefit"].get(name, ()):
                output.show(f"  {escape(sentence)}")
        for name in found["asking"]:
            output.show(f"  {name} waits for your answer: fedspray site runs {kit}")
    output.result(found)
    return {"connected": 0, "stopped": NOT_RUNNING}.get(found["state"], NOT_CONNECTED)


def ledger(
    kit: Kit,
    /,
    *,
    verify: Annotated[bool, flag("Prove that no line was changed or removed since it was written.")] = False,
    heads: Annotated[
        list[str] | None,
        flag("With --verify: what the coordinator has of this ledger (deploy status --json).", "SHA256", name="--head"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what has left this site so far (answers, bytes and fields of each run), and what was refused."""
    from fedspray.deploy.ledger import read_events, what_left
    from fedspray.deploy.site.kit import Site

    site, output, events = Site.open(kit), Output(as_json), read_events(kit)
    if verify or heads:
        _verify(output, kit, heads or [])
        return
    runs = what_left(kit)
    if not as_json:
        for name, run in runs.items():
            _show_left(output, name, run)
        if not runs:
            output.show(f"nothing left {site.name} so far")
        for event in events:
            output.show(f"{event['time']}: {event['event']}: {event['sender']}: {event['what']}")
    output.result({"site": site.name, "runs": runs, "events": events})


def _show_left(output: Output, name: str, run: dict[str, Any]) -> None:
    """What left in a run: fields that say the same of themselves together."""
    output.show(f"[bold]{escape(name)}[/bold]: {run['answers']} answers, {run['bytes']:,} bytes")
    words = {"server_gets": "the server gets", "reveals": "it reveals", "protection": "protection"}
    alike: dict[str, list[str]] = {}
    for field, entry in sorted(run["fields"].items()):
        said = "; ".join(f"{told}: {entry[word]}" for word, told in words.items() if entry[word])
        alike.setdefault(said, []).append(f"{field} ({entry['times']}x, {entry['bytes']:,} bytes)")
    for said, fields in alike.items():
        output.show(Padding(escape(", ".join(fields)), (0, 0, 0, 2)))
        output.show(Padding(escape(said or "nothing is declared of it"), (0, 0, 0, 6)))


def _verify(output: Output, kit: Path, heads: list[str]) -> None:
    from fedspray.deploy import ledger

    found = ledger.verify(kit, heads)
    older = f", after {found['unsealed']} lines of an older version that are not" if found["unsealed"] else ""
    output.show(f"all {found['lines']} lines are as they were written, one behind the other{older}")
    if found["cut_off"]:
        output.show(f"a crash cut off line {', '.join(map(str, found['cut_off']))}")
    output.show(f"the last line ends with {found['head'] or 'nothing'}")
    output.result(found)


@organisational
def agree(
    kit: Kit,
    file: Annotated[Path, argument("The coordinator's new agreement.json.", "FILE")],
    /,
    *,
    yes: Annotated[bool, flag("Do not ask.")] = False,
) -> None:
    """Review what a new agreement changes, and accept it."""
    from fedspray.deploy.agreement import Agreement
    from fedspray.deploy.provisioning.kits import update_paths
    from fedspray.deploy.site import consent
    from fedspray.deploy.site.kit import Site

    site, output = Site.open(kit), Output()
    new = Agreement.load(file).check_version()
    if site.name not in new.roster.clients:
        raise InputError(f"{site.name!r} is not in {file}, whose sites are {', '.join(new.roster.clients)}")
    old: Agreement | None = None
    try:
        old = Agreement.load(kit / "local")
        changes = old.changes(new)  # of whatever version: it is not going to be run
    except InputError as error:
        output.note(f"the previous agreement cannot be compared ({error}); this is all of the new one:")
        changes = new.lines()
    for line in changes:
        output.show(line)
    if not yes:
        confirm("Take it on?", "the new agreement was not accepted")
    if old is not None and old.joins(new):
        consent.carry_over(kit, old.fingerprint(), new.fingerprint())
    new.save(kit / "local")
    update_paths(kit)
    output.note(f"{site.name} agreed to {new.fingerprint()[:12]}")


@organisational
def renew(kit: Kit, zip_file: ZipFile, /) -> None:
    """Install new certificates from a zip file; key, data and agreement stay as they are."""
    from fedspray.deploy.provisioning.archive import take_certificates
    from fedspray.deploy.provisioning.certificates import certificate_of

    site = take_certificates(zip_file, kit)
    until = certificate_of(kit)["valid_until"]
    Output().note(f"{site.name} has a certificate until {until}; a running site uses it when it is started again")


@organisational
def service(kit: Kit, /, *, out: ServiceFolder, user: ServiceUser = "fedspray", kind: ServiceKind = "systemd") -> None:
    """Write hardened files for systemd or containers that start the site with the machine and restart it if it dies."""
    from fedspray.deploy.operations import containers
    from fedspray.deploy.operations.service import site_units
    from fedspray.deploy.site.kit import Site

    site = Site.open(kit)
    if site.data is None:
        raise InputError(f"{site.name} has no data yet: set them with fedspray site check {kit} --data PATH")
    made = {
        "systemd": lambda data: site_units(kit, site.name, data, user),
        "compose": lambda data: containers.site_compose(kit, site.name, data),
        "kubernetes": lambda data: containers.site_manifest(kit, site.name, data),
    }
    write_service(Output(), out, kind, made[kind](site.data))


@organisational
def stop(kit: Kit, /) -> None:
    """Stop this site and its job; its state is kept."""
    from fedspray.deploy.operations import processes
    from fedspray.deploy.site.kit import Site

    site = Site.open(kit)
    ended = processes.stop([kit])
    Output().note(f"{site.name} stopped" if ended else f"{site.name} was not running")


def _show(output: Output, kit: Path, found: dict[str, Any]) -> None:
    from fedspray.deploy.provisioning.certificates import to_read_aloud

    what = f"{found['algorithm']} with {found['backbone']}, {found['rounds']} rounds"
    lines = {
        "site": found["site"],
        "server": f"{found['server']} lets this site in" if found["reachable"] else escape(found["reason"]),
        "certificate": f"valid until {found['certificate']['valid_until']} ({found['certificate']['days_left']} days)",
        "agreement": f"{found['agreement'][:12]}: {what}",
        "fingerprint": f"{to_read_aloud(found['fingerprint'])}: the coordinator must see the same",
        "code": "not in the agreement" if found["code"] is None else f"{found['code'][:12]}, as agreed",
        "data": f"{found['data']}: {found['nodes']:,} nodes, {found['edges']:,} edges, labels {found['label_counts']}"
        + ("" if found["expected_nodes"] is None else f"; the coordinator expects {found['expected_nodes']:,} nodes"),
        "rehearsal": f"one local epoch took {found['epoch_seconds']:.2f} s",
        "memory": f"about {found['memory_megabytes']:,} MB",
        "each round": f"{found['bytes_up_per_round']:,} bytes leave and {found['bytes_down_per_round']:,} arrive",
    }
    for name, text in lines.items():
        output.show(f"[bold]{name:12}[/bold] {text}")
    output.show("[bold]what leaves[/bold]")
    for field, said in found["leaves"].items():
        output.show(f"  {escape(field)}: {escape(said)}")
    start = f"fedspray site start {kit} (for a trial: with --accept-all)"
    output.note(f"everything is ready: {start}" if found["reachable"] else f"once the server answers: {start}")
