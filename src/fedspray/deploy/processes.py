"""Starting and stopping the server and the sites: one process each, and its job processes below it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from fedspray.errors import InputError

PID_FILE = "fedspray.pid"
LOG_FILE = "console.log"
_children: list[subprocess.Popen[bytes]] = []
"""Those that this process started: whoever starts a process must hear of its end."""


def command(kit: Path) -> list[str]:
    """What runs a kit: NVFlare's server or client, without its shell scripts."""
    root = kit.resolve()
    if (root / "startup" / "fed_server.json").is_file():
        module, config, who = "server.server_train", "fed_server.json", ["org=coordinator"]
    elif (root / "startup" / "fed_client.json").is_file():
        module, config, who = "client.client_train", "fed_client.json", [f"uid={_site_name(root)}", "org=site"]
    else:
        raise InputError(f"{kit} is not a start-up kit of a server or a site")
    flags = ["-m", str(root), "-s", config, "--set", "secure_train=true", *who, "config_folder=config"]
    return [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}", *flags]


def environment(threads: int = 1) -> dict[str, str]:
    """More threads than cores make OpenMP spin; the number of threads may also change the last bits of a result."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def start(kit: Path, threads: int = 1) -> int:
    """Starts a kit in the background and returns its process id."""
    if running(kit) is not None:
        raise InputError(f"{kit} is running already, as process {running(kit)}")
    (kit / "transfer").mkdir(exist_ok=True)
    with (kit / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(
            command(kit),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(threads),
            start_new_session=True,
        )
    (kit / PID_FILE).write_text(f"{process.pid}\n")
    _children.append(process)
    return process.pid


def replace_this_process(kit: Path, threads: int = 1) -> None:
    """Becomes the kit's process: for systemd and other supervisors."""
    (kit / "transfer").mkdir(exist_ok=True)
    (kit / PID_FILE).write_text(f"{os.getpid()}\n")
    argv = command(kit)
    os.execve(argv[0], argv, environment(threads))


def running(kit: Path) -> int | None:
    """The process of a kit, if it lives."""
    _hear_of_ends()
    try:
        process = psutil.Process(int((kit / PID_FILE).read_text()))
        ours = str(kit.resolve()) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except (FileNotFoundError, ValueError, psutil.Error):
        return None
    return process.pid if ours else None


def stop(kits: Sequence[Path], seconds: float = 5.0) -> list[Path]:
    """Ends the processes of some kits and their job processes; returns the kits that had any."""
    found = [kit for kit in kits if running(kit) is not None]
    parents = [psutil.Process(int((kit / PID_FILE).read_text())) for kit in found]
    family = [member for parent in parents for member in (parent, *parent.children(recursive=True))]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    _, alive = psutil.wait_procs(family, timeout=seconds)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(alive, timeout=seconds)
    _hear_of_ends()
    for kit in found:
        (kit / PID_FILE).unlink(missing_ok=True)
    return found


def job_processes(kit: Path) -> list[int]:
    """The job processes of a kit."""
    pid = running(kit)
    return [] if pid is None else [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _site_name(root: Path) -> str:
    from fedspray.deploy.site import Site

    return Site.open(root).name


def _hear_of_ends() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
