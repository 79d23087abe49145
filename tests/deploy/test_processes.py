"""Processes of kits: one at a time, found whoever started them, and heard of when they end at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

from fedspray.deploy.locks import PID_FILE
from fedspray.deploy.operations import processes
from fedspray.errors import InputError

SOCKET = "from fedspray.deploy.network.sockets import new_folder; at = str(new_folder() / 'job')"
LISTENS = f"{SOCKET}; import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(at); s.listen(); time.sleep(60)"
SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(60)']"
PARENT = f"import os, sys; os.posix_spawn(sys.executable, {SLEEPER}, os.environ); {LISTENS}"
FAILS = "print('INFO - all is well'); raise ValueError('no such thing')"


class Kit:
    """A kit whose process runs other code than NVFlare's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._code = folder / "kit", folder / "code"
        self.forgotten: list[subprocess.Popen[bytes]] = []
        self.folder.mkdir()
        self._code.mkdir()
        self.runs(LISTENS)
        monkeypatch.setenv("PYTHONPATH", f"{self._code}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.setattr(processes, "command", self.command)

    def start(self) -> int:
        """Its process, which listens."""
        began = time.monotonic()
        said = processes.start_and_watch(self.folder)
        assert time.monotonic() - began < processes.PATIENCE, "it waited although the process listens"
        pid = processes.running(self.folder)
        assert said == f"runs as process {pid}; its log is {self.folder / processes.LOG_FILE}"
        assert pid is not None
        return pid

    def forget(self) -> subprocess.Popen[bytes]:
        """What another command would see, one that did not start the process; returns the process."""
        ((_, child),) = processes._children.items()
        processes._children.clear()
        self.forgotten.append(child)
        return child

    def runs(self, code: str) -> None:
        (self._code / "stand_in.py").write_text(code)

    def command(self, kit: Path) -> list[str]:
        return [
            sys.executable,
            "-u",
            "-m",
            "fedspray.deploy.network.process",
            str(kit.resolve()),
            "stand_in",
            str(kit.resolve()),
        ]


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    made = Kit(tmp_path, monkeypatch)
    yield made
    processes.stop([made.folder, tmp_path / "moved"])
    for child in made.forgotten:
        child.wait()


def test_one_process_at_a_time(kit: Kit) -> None:
    assert processes.running(kit.folder) is None
    pid = kit.start()
    assert processes.running(kit.folder) == pid
    child = kit.forget()
    assert processes.running(kit.folder) == pid
    for again in (processes.start, processes.start_and_watch, processes.replace_this_process):
        with pytest.raises(InputError, match=f"is running already, as process {pid}"):
            again(kit.folder)
    assert processes.running(kit.folder) == pid
    assert processes.stop([kit.folder]) == [kit.folder]
    child.wait()
    assert processes.running(kit.folder) is None
    assert processes.stop([kit.folder]) == []


@pytest.mark.slow
def test_the_second_of_two_that_start_at_once_gives_up(kit: Kit) -> None:
    pid = kit.start()
    late = subprocess.run(kit.command(kit.folder), capture_output=True, text=True, check=False)
    assert late.returncode == 2
    assert late.stderr.strip() == f"error: {kit.folder.resolve()} is running already, as process {pid}"
    kit.forget()
    assert processes.running(kit.folder) == pid


def test_a_number_that_is_left_over_is_no_process(kit: Kit) -> None:
    (kit.folder / PID_FILE).write_text(f"{os.getpid()}\n")
    assert processes.running(kit.folder) is None
    assert processes.stop([kit.folder]) == []


def test_a_job_process_that_is_left_over_does_not_keep_the_kit(kit: Kit) -> None:
    kit.runs(PARENT)
    pid = kit.start()
    (job,) = processes.job_processes(kit.folder)
    try:
        os.kill(pid, signal.SIGKILL)
        kit.forget().wait()
        assert psutil.pid_exists(job)
        assert processes.running(kit.folder) is None
        assert kit.start() != pid
    finally:
        os.kill(job, signal.SIGKILL)


def test_a_process_that_does_not_listen_is_told(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)
    kit.runs("import time; time.sleep(60)")
    assert ", but is not ready after 1 s; its log is " in processes.start_and_watch(kit.folder)


def test_an_early_end_is_told_with_its_reason(kit: Kit) -> None:
    (kit.folder / processes.LOG_FILE).write_text("ValueError: of yesterday\n")
    kit.runs(FAILS)
    with pytest.raises(InputError, match=r"no such thing.*console\.log\)"):
        processes.start_and_watch(kit.folder)
    assert processes.running(kit.folder) is None


def test_a_kit_that_is_moved_is_found_again(kit: Kit) -> None:
    pid = kit.start()
    assert not processes.was_moved(kit.folder)
    moved = kit.folder.rename(kit.folder.with_name("moved"))
    child = kit.forget()
    assert processes.running(moved) == pid
    assert processes.was_moved(moved)
    processes.stop([moved])
    child.wait()
    processes.start_and_watch(moved)
    assert not processes.was_moved(moved)


def test_started_processes_are_running_before_they_have_the_lock(kit: Kit) -> None:
    pid = processes.start(kit.folder)
    assert processes.running(kit.folder) == pid
    deadline = time.monotonic() + 20
    while not (kit.folder / PID_FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes.running(kit.folder) == pid


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "it said nothing"),
        ("one\n\x1b[31mtwo\x1b[0m\n\n", "two"),
        ("Traceback\nOSError: no port\n2026 - root - INFO - over\n", "OSError: no port"),
    ],
)
def test_last_words(log: str, said: str) -> None:
    assert processes.last_words(log) == said
