"""The process of a kit: takes the kit for itself and is NVFlare's server or client from then on.

The lock is held as long as this process lives, and by nobody below it: a job process may outlive it for a moment.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from fedspray.deploy.locks import Lock, holder

PID_FILE = "fedspray.pid"
PATIENCE = 2.0
"""Seconds: whoever looks whether the lock is held holds it for a moment."""


def main(kit: Path, module: str, arguments: list[str]) -> None:
    """Runs one of NVFlare's modules in a kit that nobody else runs."""
    lock = Lock(kit / PID_FILE)
    try:
        lock.acquire(PATIENCE)
    except TimeoutError:
        print(f"error: {kit} is running already, as process {holder(kit / PID_FILE)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        lock.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
