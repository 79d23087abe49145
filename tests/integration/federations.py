"""Whole federations on loopback, as a user starts them, and ways to hurt them."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fedspray import build_federation, files, run
from fedspray.deploy.ledger import CONNECTED, JOB_ENDED, LOST, STARTED
from fedspray.deploy.operations.driver import Driver
from fedspray.deploy.operations.local import RUN, LocalFederation
from fedspray.deploy.operations.session import AdminSession, Unreachable
from fedspray.deploy.server.progress import read_progress
from fedspray.experiment import RunSettings

FEDSPRAY = Path(sys.executable).with_name("fedspray")
WITNESS = Path(__file__).with_name("witness")
ROUNDS = 3


def fedspray(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [str(FEDSPRAY), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str], seconds: float = 300) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it stops what it started
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"not done after {seconds} s: {err}") from None
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


def stable(summary: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from run to run (times, processes), and what only a run in one process can know."""
    kept = copy.deepcopy(summary)
    for name in ("engine", "benefit"):
        kept.pop(name, None)
    for row in kept["seeds"]:
        for name in ("seconds", "cpu_seconds", "against_local"):
            row.pop(name, None)
    return kept


def wait_for_round(project: Path, round_index: int, process: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if read_progress(project / "runs" / "run").get("round", 0) >= round_index:
            return
        time.sleep(0.02)
    raise AssertionError(f"round {round_index} was not reached: {read_progress(project / 'runs' / 'run')}")


def kit_process(project: Path, kit: str) -> psutil.Process:
    return psutil.Process(int((project / "kits" / kit / "fedspray.pid").read_text()))


def kill_job(project: Path, kit: str) -> None:
    """kill -9 of a kit's job process."""
    children = kit_process(project, kit).children(recursive=True)
    assert children, f"{kit} has no job process"
    for child in children:
        os.kill(child.pid, signal.SIGKILL)


def kill_all(project: Path, kit: str) -> None:
    """kill -9 of a kit's process and its job process, as when a machine fails."""
    parent = kit_process(project, kit)
    for process in (parent, *parent.children(recursive=True)):
        os.kill(process.pid, signal.SIGKILL)


def spoilt(folder: Path, code: str) -> str:
    """A PYTHONPATH with which a site's process runs some code before each answer, its consent included.

    ``code`` sees ``result``, NVFlare's answer, and ``round_index``; it may replace ``result``.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('client.worker_process' in each for each in sys.orig_argv):\n"
        "    from fedspray.deploy.site import executor\n"
        "    honest = executor.SiteExecutor.execute\n"
        "    class Unlisted:\n"
        "        def __init__(self): self.value = 1\n"
        "    def execute(self, name, shareable, *more):\n"
        "        round_index = shareable['head']['request']['round_index']\n"
        "        result = honest(self, name, shareable, *more)\n"
        + "".join(f"        {line}\n" for line in code.splitlines())
        + "        return result\n"
        "    executor.SiteExecutor.execute = execute\n"
    )
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


class GuardedFederation(LocalFederation):
    """Three banks, none of them started."""

    def __init__(self, folder: Path, grace: float = 20.0, **options: Any) -> None:
        self.data = build_federation("banks", clients=3, nodes=200)
        settings = RunSettings(algorithm="fedspray", values={"rounds": ROUNDS, **options})
        super().__init__(folder, self.data, settings, grace=grace)
        self.kits = self.project.folder / "kits"

    def kit(self, name: str) -> Path:
        return self.kits / name

    def connected(self) -> set[str]:
        try:
            with AdminSession(self.kits / "coordinator") as session:
                return set(session.sites())
        except Unreachable:
            return set()

    def wait_for(self, *names: str) -> None:
        until(lambda: set(names) <= self.connected(), 60, f"{names} did not connect")

    def drive(self) -> dict[str, Any]:
        return Driver(self.project, RUN, tell=lambda _: None).drive()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What a kit refused or was told, without who came and went."""
        file = "events.jsonl" if name == "server" else "ledger.jsonl"
        lines = [line for line in files.read_lines(self.kit(name) / file) if "event" in line]
        return [line for line in lines if line.get("event") not in (STARTED, CONNECTED, LOST, JOB_ENDED)]

    def undisturbed(self) -> dict[str, str]:
        """The models of the same run in one process, trained one by one."""
        result = run(self.data, algorithm="fedspray", backbone="gcn", rounds=ROUNDS)
        models: dict[str, str] = result.summary()["models"]
        return models


def until(condition: Callable[[], bool], seconds: float, complaint: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.2)


def named_topics() -> list[str]:
    """Every topic that NVFlare has a name for."""
    from nvflare.apis.fl_constant import AdminCommandNames, ReservedTopic, ServerCommandNames
    from nvflare.private import defs

    places = [AdminCommandNames, ReservedTopic, ServerCommandNames]
    places += [each for name, each in vars(defs).items() if isinstance(each, type) and name.endswith("Topic")]
    found = {value for place in places for value in vars(place).values() if isinstance(value, str)}
    return sorted(topic for topic in found if not topic.startswith("nvflare"))


def read_witness(file: Path) -> list[list[str]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
