"""Every process of a kit starts here: it is guarded first, and NVFlare's server, client or job from then on.

A main process takes the kit for itself. The lock is held as long as it lives, and by nobody below it: a job process
may outlive it for a moment.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from fedspray.deploy.ledger import STARTED
from fedspray.deploy.locks import PID_FILE, Lock, holder
from fedspray.deploy.network import sockets
from fedspray.deploy.network.patches import install
from fedspray.deploy.site.status import watch
from fedspray.files import OWNER_ALONE

PATIENCE = 2.0
"""Seconds: checking the lock means holding it for a moment."""
SERVER_JOB = "nvflare.private.fed.app.server.runner_process"
JOBS = ("nvflare.private.fed.app.client.worker_process", SERVER_JOB)


def main(kit: Path, module: str, arguments: list[str]) -> None:
    """Runs one of NVFlare's modules, guarded; a main module only in a kit that nobody else runs."""
    os.umask(OWNER_ALONE)
    lock = Lock(kit / PID_FILE)
    if module not in JOBS:
        try:
            lock.acquire(PATIENCE)
        except TimeoutError:
            print(f"error: {kit} is running already, as process {holder(kit / PID_FILE)}", file=sys.stderr)
            sys.exit(2)
        sockets.sweep()
    try:
        guard = install(kit)
        if module not in JOBS:
            guard.record(STARTED, "server" if guard.is_server else "site", f"process {os.getpid()}")
        if module == SERVER_JOB:
            from fedspray.deploy.network.answers import guard_answers

            guard_answers()
        elif module not in JOBS and not guard.is_server:
            guard.on_refusal = watch(kit).refused
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        lock.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
