"""The life of a federation: a site leaves, another joins, certificates are renewed, everything reboots; one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("nvflare")

from federations import FEDSPRAY, fedspray
from test_deploy_people import kit, say

from fedspray import files
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import read_events
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.local import free_port
from fedspray.deploy.provisioning.archive import take_certificates, unpack
from fedspray.deploy.provisioning.certificates import certificate_of, make_request, warning_of
from fedspray.deploy.provisioning.membership import approve, renew
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.progress import read_exchanges, read_progress

pytestmark = pytest.mark.nightly

SITES, LOST, NEW = ("bank_00", "bank_01", "bank_02", "bank_03", "bank_04"), "bank_04", "bank_05"
ROUNDS = 160


class Federation:
    """Five sites, each started by the command of its unit."""

    def __init__(self, place: Path) -> None:
        self.place, self.project = place, place / "fraud"
        self.started: list[subprocess.Popen[Any]] = []
        say("partition", "--dataset", "banks", "--clients", "6", "--nodes", "9000", "--out", place / "data")
        listed = "".join(f'[[site]]\nname = "{site}"\ncontact = "{site}@example.org"\nnodes = 1500\n' for site in SITES)
        (place / "sites.toml").write_text(listed)
        address = ["--host", "localhost", "--port", str(free_port()), "--grace", "3"]
        what = ["--features", "32", "--classes", "2", "--rounds", str(ROUNDS), "--min-clients", "2"]
        what += ["--algorithm", "fedavg", "--set", "local_epochs=60"]  # slow enough for people to act meanwhile
        listing: list[str | Path] = ["--sites", place / "sites.toml", "--make-keys", "--valid-days", "20"]
        said = say("deploy", "init", self.project, *address, *what, *listing)
        assert "bank_03.zip holds a private key" in said
        for site in SITES:
            self.unpack(site)

    def unpack(self, site: str) -> None:
        say("site", "unpack", kit(self.place, site), self.project / "zips" / f"{site}.zip")
        found = say("site", "check", kit(self.place, site), "--data", self.place / "data" / "clients" / site)
        found = " ".join(found.split())
        assert "the coordinator expects 1,500 nodes" in found

    def start(self, *arguments: str | Path) -> None:
        command = [str(FEDSPRAY), *map(str, arguments), "--foreground"]
        nothing = subprocess.DEVNULL
        self.started.append(subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True))

    def start_all(self, sites: tuple[str, ...]) -> None:
        self.start("deploy", "start", self.project)
        for site in sites:
            self.start("site", "start", kit(self.place, site), "--accept-all")

    def kill(self, folder: Path) -> None:
        pid = processes.running(folder)
        assert pid is not None
        for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
            process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        processes.stop([self.project / "kits" / "server", *(kit(self.place, site) for site in (*SITES, NEW))])
        for process in self.started:
            process.kill()
            process.communicate()

    def events(self) -> list[tuple[str, str]]:
        return [(event["event"], event["sender"]) for event in read_events(self.project / "runs" / "year")]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.close()


def wait_until(is_so: Callable[[], Any], what: str, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_one_run_through_all_of_it(federation: Federation) -> None:
    place, project = federation.place, federation.project
    folder = project / "runs" / "year"

    def reached(round_index: int) -> Callable[[], bool]:
        return lambda: read_progress(folder).get("round", 0) >= round_index

    federation.start_all(SITES)
    wait_until(lambda: processes.running(project / "kits" / "server"), "the server did not start")
    driver = fedspray("deploy", "run", project, "--run", "year", "--json")
    federation.started.append(driver)
    wait_until(reached(5), "round 5 was not reached")

    # One site is gone for good.
    federation.kill(kit(place, LOST))
    say("deploy", "remove", project, LOST)
    wait_until(lambda: ("left", LOST) in federation.events(), "nobody noticed that a site left")
    away = read_progress(folder)["round"]
    wait_until(reached(away + 3), "no round without the site")

    # Another one asks to join; the others agree; the run goes on with it.
    # (By what the commands call: starting Python a dozen times takes longer than the run.)
    archive = approve(Project.open(project), make_request(kit(place, NEW), NEW))
    replace(unpack(archive, kit(place, NEW)), data=place / "data" / "clients" / NEW).save()
    for name in SITES[:4]:
        Agreement.load(project).save(kit(place, name) / "local")
    federation.start("site", "start", kit(place, NEW), "--accept-all")
    wait_until(lambda: ("joined", NEW) in federation.events(), "nobody noticed that a site joined")
    joined = read_progress(folder)["round"]
    wait_until(reached(joined + 3), "no round with the new site")

    # All certificates are renewed, while the run goes on.
    now = (*SITES[:4], NEW)
    assert "ends in 19 days" in (warning_of(kit(place, "bank_00")) or "")
    for made in renew(Project.open(project), valid_days=360):
        take_certificates(made, kit(place, made.stem))
    assert warning_of(kit(place, "bank_00")) is None

    # The power fails everywhere; everything is started again by its own command.
    before = read_progress(folder)["round"]
    assert before < ROUNDS
    driver.kill()
    for each in (project / "kits" / "server", *(kit(place, site) for site in now)):
        federation.kill(each)
    os.sync()
    federation.start_all(now)
    wait_until(lambda: processes.running(project / "kits" / "server"), "the server did not start again")
    resumed = fedspray("deploy", "resume", project, "--once")  # what the unit does, until the run is done
    federation.started.append(resumed)
    assert resumed.wait(timeout=400) == 0, resumed.communicate()

    (seed,) = files.read_json(folder / "result.json")["seeds"]
    assert set(seed["clients"]) == set(now)
    exchanges = {each["round"]: each["sites"] for each in read_exchanges(folder, 0)}
    assert set(exchanges[1]) == set(SITES)
    assert set(exchanges[ROUNDS]) == set(now)
    assert exchanges[ROUNDS][NEW]["failed"] is None
    for site in now:
        assert (kit(place, site) / "models" / "year" / "seed-0" / "model.safetensors").exists()
        assert certificate_of(kit(place, site))["days_left"] > 300
    events = federation.events()
    order = [events.index(each) for each in (("left", LOST), ("joined", NEW))]
    assert order == sorted(order)
    ended = [event["what"] for event in read_events(folder) if event["event"] == "job ended"]
    assert any("server was restarted" in what for what in ended), ended
    refused = [event for event in read_events(project / "kits" / "server") if event["event"] == "refused"]
    honest = [event for event in refused if event["sender"].partition(" ")[0] in now and "sm__" in event["what"]]
    assert honest == [], "jobs that end are no reason for an alarm"
    ledger = json.loads(fedspray("site", "ledger", kit(place, NEW), "--json").communicate()[0])
    assert 0 < ledger["runs"]["year"]["answers"] < ROUNDS + 2
