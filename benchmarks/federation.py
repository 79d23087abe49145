"""What a federation of real processes costs as it grows: seconds per round, memory, the server's work.

    python -m benchmarks.federation --sites 7 --sites 20 --sites 30 --out results/benchmarks/federation.json

Each size is one run of `fedspray deploy local` on small graphs of `banks`: a server and its sites on this machine, over
mutual TLS. Sites share the machine's cores, so the overhead of a round is its wall time beyond their CPU time spread
over the cores; other programs that run meanwhile make it larger.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shlex
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

from fedspray import build_federation, files
from fedspray.deploy.operations.local import LocalFederation
from fedspray.deploy.operations.processes import family
from fedspray.deploy.server.progress import read_exchanges, read_progress
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.runs.store import versions

EVERY = 0.5
"""Seconds between two looks at the processes."""
GRACE = 600.0
"""Seconds that a round waits: nobody is to be left out because processes start slowly."""
MEGABYTE = 2**20


class Watcher(threading.Thread):
    """Looks at the processes of a federation: the memory of each kit's, the CPU time of the server's."""

    def __init__(self, federation: LocalFederation, run: Path) -> None:
        super().__init__(daemon=True)
        self._federation, self._run = federation, run
        self.done = threading.Event()
        self.peak: dict[str, int] = {}
        """Resident bytes of a kit's processes, its libraries included."""
        self.all_together = 0
        """Bytes of all processes, what they share counted once."""
        self.server_seconds: dict[int, float] = {}
        """The server's CPU time so far, when a round was first seen."""

    def run(self) -> None:
        """Until `done` is set."""
        while not self.done.wait(EVERY):
            self._work()
            self._memory()

    def _work(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, KeyError, InputError):
            seconds = sum(sum(each.cpu_times()[:2]) for each in family(self._federation.pids["server"]))
            self.server_seconds.setdefault(int(read_progress(self._run).get("round", 0)), seconds)

    def _memory(self) -> None:
        together = 0
        for name, pid in list(self._federation.pids.items()):
            with contextlib.suppress(psutil.NoSuchProcess):  # a process ended just now
                members = family(pid)
                self.peak[name] = max(self.peak.get(name, 0), sum(each.memory_info().rss for each in members))
                together += sum(each.memory_full_info().pss for each in members)
        self.all_together = max(self.all_together, together)

    def server_per_round(self, rounds: int) -> float | None:
        """CPU seconds of the server for each round after the first; None if fewer than half of them were seen."""
        seen = sorted(each for each in self.server_seconds.items() if 0 < each[0] <= rounds)
        if not seen or 2 * (seen[-1][0] - seen[0][0]) < rounds:
            return None
        (first, before), (last, after) = seen[0], seen[-1]
        return (after - before) / (last - first)


def measure(sites: int, rounds: int, nodes: int, folder: Path) -> Json:
    """One federation from its start to its end."""
    data = build_federation("banks", clients=sites, nodes=nodes * sites)
    settings = RunSettings(algorithm="fedspray2", values={"rounds": rounds, "min_clients": sites})
    federation = LocalFederation(folder, data, settings, grace=GRACE)
    run = federation.project.run_folder("run")
    watcher, load = Watcher(federation, run), os.getloadavg()[0]
    watcher.start()
    result = federation.run(lambda sentence: print(f"  {sentence}", file=sys.stderr))
    watcher.done.set()
    watcher.join()
    exchanges, engine = read_exchanges(run, 0), result["engine"]
    began = datetime.fromisoformat(files.read_json(run / "settings.json")["started"]).timestamp()
    answers = [answer for exchange in exchanges for answer in exchange["sites"].values()]
    return {
        "sites": sites,
        "rounds": rounds,
        "nodes_per_site": nodes,
        "failures": sum(answer["failed"] is not None for answer in answers),
        "restarts": engine["restarts"],
        "jobs": engine["jobs"],
        "overhead_per_round": engine["overhead_per_round"],
        "seconds_per_round": (exchanges[-1]["time"] - exchanges[0]["time"]) / (len(exchanges) - 1),
        "seconds_to_first_round": exchanges[0]["time"] - began,
        "seconds": engine["seconds"],
        "site_cpu_per_round": sum(answer.get("cpu_seconds", 0.0) for answer in answers) / len(answers),
        "server_cpu_per_round": watcher.server_per_round(rounds),
        "bytes_payload": engine["bytes_payload"],
        "bytes_wire": engine["bytes_wire"],
        "server_megabytes": watcher.peak.pop("server") / MEGABYTE,
        "site_megabytes": median(watcher.peak.values()) / MEGABYTE,
        "all_megabytes": watcher.all_together / MEGABYTE,
        "load_before": load,
    }


def main() -> None:
    """Measures every size and writes all of them; an earlier file's other sizes are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, action="append", required=True, metavar="N")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=300, help="of each site")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    options = parser.parse_args()
    known = files.read_json(options.out)["sizes"] if options.out.exists() else []
    sizes = {row["sites"]: row for row in known}
    for sites in options.sites:
        with tempfile.TemporaryDirectory() as folder:
            sizes[sites] = measure(sites, options.rounds, options.nodes, Path(folder) / "federation")
        print(sizes[sites])
        content = {
            "command": f"python -m benchmarks.federation {shlex.join(sys.argv[1:])}",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": {"cores": os.cpu_count(), "system": platform.system(), "machine": platform.machine()},
            "versions": versions(("fedspray", "torch", "numpy", "nvflare", "grpcio")),
            "sizes": [sizes[each] for each in sorted(sizes)],
        }
        files.write_json(options.out, content)


if __name__ == "__main__":
    main()
