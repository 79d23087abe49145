"""Starting and stopping the server and the sites: one process each, and its job processes below it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from fedspray.deploy.ledger import is_server
from fedspray.deploy.locks import PID_FILE, holder
from fedspray.deploy.network import sockets
from fedspray.deploy.provisioning.kits import place_server
from fedspray.deploy.site import proxy
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError

LOG_FILE = "console.log"
PATIENCE = 20.0
"""Seconds in which a process that was started should listen."""
_children: dict[Path, subprocess.Popen[bytes]] = {}
"""Processes started here, by kit: the parent must wait for them."""


def command(kit: Path) -> list[str]:
    """What runs a kit: NVFlare's server or client, without its shell scripts."""
    root = kit.resolve()
    if is_server(root):
        module, config, who = "server.server_train", "fed_server.json", ["org=coordinator"]
    elif (root / "startup" / "fed_client.json").is_file():
        module, config, who = "client.client_train", "fed_client.json", [f"uid={Site.open(root).name}", "org=site"]
    else:
        raise InputError(f"{kit} is not a start-up kit of a server or a site")
    flags = ["-m", str(root), "-s", config, "--set", "secure_train=true", *who, "config_folder=config"]
    runner = [sys.executable, "-u", "-m", "fedspray.deploy.network.process", str(root)]
    return [*runner, f"nvflare.private.fed.app.{module}", *flags]


def environment(kit: Path, threads: int = 1) -> dict[str, str]:
    """More threads than cores make OpenMP spin; the number of threads may also change the last bits of a result."""
    way = {} if is_server(kit) or not (kit / "local" / "site.json").exists() else proxy.environment(proxy.of(kit))
    return {**os.environ, "OMP_NUM_THREADS": str(threads), **way}


def start(kit: Path, threads: int = 1) -> int:
    """Starts a kit in the background and returns its process id."""
    argv = _prepare(kit)
    with (kit / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(kit, threads),
            start_new_session=True,
        )
    _children[kit.resolve()] = process
    return process.pid


def start_and_watch(kit: Path, threads: int = 1, port: int | None = None) -> str:
    """Starts a kit and looks after it until it listens, at a port or for its jobs; returns what to tell of it.

    An early end is told with its reason.
    """
    log = kit / LOG_FILE
    before = log.stat().st_size if log.exists() else 0
    pid = start(kit, threads)
    process, deadline = _children[kit.resolve()], time.monotonic() + PATIENCE
    while process.poll() is None and not (listens := _listens(pid, port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if process.poll() is None:
        where = "" if port is None else f" on port {port}"
        late = "" if listens else f", but is not ready after {PATIENCE:.0f} s"
        return f"runs as process {pid}{where}{late}; its log is {log}"
    with log.open("rb") as stream:
        stream.seek(before)
        reason = last_words(stream.read().decode(errors="replace"))
    raise InputError(f"{kit} was started, but ended at once: {reason} (its log is {log})")


def replace_this_process(kit: Path, threads: int = 1) -> None:
    """Becomes the kit's process: for systemd and other supervisors."""
    argv = _prepare(kit)
    os.execve(argv[0], argv, environment(kit, threads))


def check_port(host: str, port: int) -> None:
    """Refuses a port that the server could not listen on: NVFlare's goes on without one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("localhost" if host == "localhost" else "", port))
        except OSError as error:
            raise InputError(f"the server cannot listen on port {port}: {error.strerror}") from None


def running(kit: Path) -> int | None:
    """The process of a kit, if it lives."""
    _hear_of_ends()
    child = _children.get(kit.resolve())
    if child is not None:
        return child.pid
    for _ in range(20):
        pid = holder(kit / PID_FILE)
        if pid is None or (pid and psutil.pid_exists(pid)):
            return pid
        time.sleep(0.05)  # it has the lock, but has not written its number yet
    return None


def check_stopped(kit: Path) -> None:
    """Refuses a kit whose process lives."""
    pid = running(kit)
    if pid is not None:
        raise InputError(f"{kit} is running already, as process {pid}")


def was_moved(kit: Path) -> bool:
    """Whether a kit's folder got another name since its process was started, which then finds nothing any more."""
    pid = running(kit)
    try:
        return pid is not None and str(kit.resolve()) not in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def last_words(log: str) -> str:
    """The last line of a log that says something: rather one of an error than any other."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    said = [line for line in lines if line]
    bad = [line for line in said if re.search(r"\b(error|exception|running already)\b|Error\b|Exception\b", line)]
    return (bad or said or ["it said nothing"])[-1]


def stop(kits: Sequence[Path], seconds: float = 5.0) -> list[Path]:
    """Ends the processes of some kits and their job processes; returns the kits that had any."""
    found = {kit: pid for kit in kits if (pid := running(kit)) is not None}
    members = [member for pid in found.values() for member in family(pid)]
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    _, alive = psutil.wait_procs(members, timeout=seconds)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(alive, timeout=seconds)
    _hear_of_ends()
    sockets.sweep()
    return list(found)


def job_processes(kit: Path) -> list[int]:
    """The job processes of a kit."""
    pid = running(kit)
    return [] if pid is None else [member.pid for member in family(pid)[1:]]


def _prepare(kit: Path) -> list[str]:
    """Makes a kit ready for its process; returns what runs it."""
    check_stopped(kit)
    argv = command(kit)
    if is_server(kit):
        place_server(kit)
    (kit / "transfer").mkdir(exist_ok=True)
    return argv


def _listens(pid: int, port: int | None) -> bool:
    """Whether a process listens at a port; or without one, as sites do, at a socket for its jobs."""
    try:
        connections = psutil.Process(pid).net_connections(kind="unix" if port is None else "tcp")
    except psutil.Error:
        return False
    if port is None:
        return any(sockets.PREFIX in each.laddr for each in connections)
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it; empty if it ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _hear_of_ends() -> None:
    for kit in [kit for kit, child in _children.items() if child.poll() is not None]:
        del _children[kit]
