"""A whole federation on this machine: real processes and mutual TLS over loopback, for trying out and for tests."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedspray import files, stored
from fedspray.data.federation import Federation
from fedspray.deploy import kinds
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import write_event
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.driver import Driver
from fedspray.deploy.provisioning.kits import Address, make_kits
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.progress import read_exchanges
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.policy import accept_all
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.runs.run import begin_with

RUN = "run"


class LocalFederation:
    """A server and its sites as processes of this machine, which are started again when they die.

    Args:
        folder: a new folder for everything.
        federation: each client becomes a site.
        settings: the run's.
        grace: seconds that a round waits for late sites.
        threads: torch's, at each site.
    """

    def __init__(
        self, folder: Path, federation: Federation, settings: RunSettings, *, grace: float = 60.0, threads: int = 1
    ) -> None:
        federation.check_labels(settings.keep_split)
        agreement = Agreement(federation.roster, settings)
        self.project = Project(folder, Address("localhost", free_port()), grace)
        files.new_folder(folder)
        self.project.save()
        federation.save(folder / "data")
        agreement = make_kits(folder, agreement, self.project.address, keys_for=agreement.roster.clients)
        agreement.save(folder)
        for name in agreement.roster.clients:
            data = (folder / "data" / "clients" / name).absolute()
            replace(Site.open(self.project.site(name)), data=data, threads=threads).save()
            accept_all(self.project.site(name))
        begin_with(self.project.run_folder(RUN), agreement.roster, settings, None, federation.fingerprint())
        agreement.save(self.project.run_folder(RUN))
        self._kits = [self.project.server, *(self.project.site(name) for name in agreement.roster.clients)]
        self._names, self._threads = agreement.roster.clients, threads
        self._wire = _Wire(self.project.address.port)
        self.restarts = 0
        self.pids: dict[str, int] = {}

    def run(self, tell: Callable[[str], None], tend: Callable[[], None] = lambda: None) -> Json:
        """Starts everything, brings the run to its end, stops everything, and returns the result."""
        began = time.time()
        try:
            for kit in self._kits:
                self._start(kit)

            def look_after() -> None:
                self._supervise(tell)
                self._wire.look()
                tend()

            driver = Driver(self.project, RUN, tell=tell, tend=look_after)
            result = driver.drive()
            return {**result, "engine": self._engine(result, began)}
        finally:
            processes.stop(self._kits, seconds=1.0)

    def _start(self, kit: Path) -> None:
        self.pids[kit.name] = processes.start(kit, self._threads)

    def _supervise(self, tell: Callable[[str], None]) -> None:
        for kit in self._kits:
            if processes.running(kit) is None:
                self.restarts += 1
                self._start(kit)
                sentence = f"process {self.pids[kit.name]} takes the place of {kit.name}, which ended"
                tell(sentence)
                write_event(self.project.run_folder(RUN), "restarted", kit.name, sentence)

    def _engine(self, result: Json, began: float) -> Json:
        folder = self.project.run_folder(RUN)
        exchanges = [each for row in result["seeds"] for each in read_exchanges(folder, row["seed"])]
        sites = [site for exchange in exchanges for site in exchange["sites"].values()]
        return {
            "name": "nvflare",
            "host": self.project.address.host,
            "port": self.project.address.port,
            "server_pid": self.pids["server"],
            "site_pids": {name: self.pids[name] for name in self._names},
            "jobs": len(stored.read(folder / "jobs.json", kinds.Jobs)["jobs"]),
            "restarts": self.restarts,
            "bytes_payload": sum(site["bytes_down"] + site.get("bytes_up", 0) for site in sites),
            "bytes_wire": self._wire.total(),
            "seconds": time.time() - began,
            "overhead_per_round": overhead_per_round(exchanges),
        }


def overhead_per_round(exchanges: list[Json]) -> float | None:
    """Seconds of wall time per round beyond the sites' work: their CPU time, spread over the cores of this machine.

    The first round, in which the sites read their data, is left out.
    """
    extra = []
    for before, after in itertools.pairwise(exchanges):
        if after["round"] == before["round"] + 1:
            work = sum(site.get("cpu_seconds", 0.0) for site in after["sites"].values())
            extra.append(after["time"] - before["time"] - work / (os.cpu_count() or 1))
    return sum(extra) / len(extra) if extra else None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


class _Wire:
    """Bytes of all connections to a port, headers of TLS included, as the kernel counts them (Linux's `ss`)."""

    def __init__(self, port: int) -> None:
        self._port, self._tool = port, shutil.which("ss")
        self._seen: dict[str, int] = {}

    def look(self) -> None:
        """Reads the counters; what a connection carried after the last look is lost when it is closed."""
        if self._tool is None:
            return
        command = [self._tool, "-tinOH", f"sport = :{self._port}"]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        for line in lines:
            parts = line.split()
            counted = re.findall(r"bytes_(?:sent|received):(\d+)", line)
            if len(parts) > 4:
                self._seen[parts[4]] = sum(int(number) for number in counted)

    def total(self) -> int | None:
        """All bytes, both ways; None where they cannot be counted."""
        return sum(self._seen.values()) if self._seen else None
