"""Members of a federation who changed their software, against real processes: they are refused and written down.

The attackers run NVFlare without our guard, with good certificates, and send raw messages through its network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("nvflare")

from federations import WITNESS, GuardedFederation, named_topics, read_witness, spoilt, until

from fedspray import files
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.driver import Driver
from fedspray.deploy.operations.local import RUN
from fedspray.deploy.provisioning.archive import unpack
from fedspray.deploy.provisioning.certificates import make_request
from fedspray.deploy.provisioning.federation import set_disabled, sign
from fedspray.deploy.provisioning.kits import place_server
from fedspray.deploy.site.kit import Site

pytestmark = pytest.mark.slow

ATTACKER = Path(__file__).with_name("attacker.py")
JOB = "11111111-2222-4333-8444-555555555555"


class Attacker:
    """A kit's owner who runs NVFlare as it comes."""

    def __init__(self, kit: Path, folder: Path, wait_for: str) -> None:
        self._plan = folder / f"{kit.name}-plan.json"
        _, _, module, *arguments = plain_command(kit)
        content = {"module": module, "arguments": arguments, "wait_for": wait_for}
        self._plan.write_text(json.dumps({**content, "me": "server" if kit.name == "server" else kit.name}))
        with (kit / "attack.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ATTACKER), str(self._plan)], stdout=log, stderr=log, start_new_session=True
            )

    def fire(self, shots: list[dict[str, Any]]) -> None:
        temporary = self._plan.with_suffix(".tmp")
        temporary.write_text(json.dumps(shots))
        temporary.replace(self._plan.with_suffix(".shots.json"))

    def answers(self) -> list[dict[str, Any]]:
        file = self._plan.with_suffix(".answers.json")
        until(file.exists, 90, "the attack did not end")
        content: list[dict[str, Any]] = json.loads(file.read_text())
        return content

    def stop(self) -> None:
        for member in [self.process, *psutil.Process(self.process.pid).children(recursive=True)]:
            member.kill()
        self.process.wait()


def plain_command(kit: Path) -> list[str]:
    """NVFlare as it comes."""
    (kit / "transfer").mkdir(exist_ok=True)
    return [sys.executable, "-m", *processes.command(kit)[5:]]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[GuardedFederation]:
    made = GuardedFederation(tmp_path / "federation")
    try:
        yield made
    finally:
        processes.stop([kit for kit in made.kits.iterdir() if kit.name != "coordinator"], seconds=1.0)


def shots(victim: Path, target: str) -> list[dict[str, Any]]:
    """All that was found to work against an unguarded site, with the attacker's own name and with the server's."""
    admin: dict[str, Any] = {"channel": "admin", "topic": "admin", "target": target}
    single: list[dict[str, Any]] = [
        {**admin, "admin_topic": "sys.shell", "body": f"cat {victim / 'startup' / 'client.key'}"},
        {**admin, "topic": "sys.shell", "admin_topic": "sys.shell", "body": "ls"},
        {**admin, "admin_topic": "train.delete_run", "admin_headers": {"job_id": "models"}},
        {**admin, "admin_topic": "train.deploy", "admin_headers": {"job_id": "local", "job_meta": {"a": 1}}},
        {**admin, "admin_topic": "train.abort", "admin_headers": {"job_id": JOB}},
        {**admin, "admin_topic": "train.shutdown"},
        {"channel": "client_command", "topic": "abort", "target": target},
        {"channel": "cellnet.channel", "topic": "cellnet.bulk", "target": target},
        {"channel": "_net_manager", "topic": "stop", "target": target},
        {**admin, "admin_topic": "train.check_status", "headers": {"cn__conn_url": "tcp://127.0.0.1:9"}},
    ]
    return [{**shot, "origin": origin} for shot in single for origin in (None, "server")]


def test_a_site_against_another_site(federation: GuardedFederation, tmp_path: Path) -> None:
    """bank_02 takes part in the run, and attacks bank_00 and the server meanwhile."""
    victim = federation.kit("bank_00")
    (victim / "models").mkdir()
    (victim / "models" / "precious").write_text("x")
    for name in ("server", "bank_00", "bank_01"):
        processes.start(federation.kit(name))
    plan = [*shots(victim, "bank_00"), *shots(victim, "server"), *shots(victim, "bank_01")]
    attacker = Attacker(federation.kit("bank_02"), tmp_path, wait_for="server")
    try:
        attacker.fire(plan)
        federation.wait_for("bank_00", "bank_01", "bank_02")
        result = federation.drive()
        answers = attacker.answers()
        assert len(answers) == len(plan)
        for shot, answer in zip(plan, answers, strict=True):
            assert answer["code"] != "ok", (shot, answer)
            assert "PRIVATE KEY" not in answer["body"], shot
        assert (victim / "models" / "precious").exists()
        assert {"bank_00", "bank_01", "bank_02"} <= federation.connected(), "nobody was stopped"
    finally:
        attacker.stop()
    assert result["models"] == federation.undisturbed()
    noted = federation.events("server")
    assert len(noted) >= len(plan) - 4  # all but what NVFlare itself did not send
    assert all(line["sender"].startswith("bank_02 ") for line in noted), noted
    assert {line["event"] for line in federation.events("bank_00")} == {"run asked", "run accepted"}, "it got so far"


def test_a_server_against_a_site(federation: GuardedFederation, tmp_path: Path) -> None:
    """The coordinator's machine runs other software: no check of the server's is left."""
    victim = federation.kit("bank_00")
    (victim / "models").mkdir()
    place_server(federation.kit("server"))
    attacker = Attacker(federation.kit("server"), tmp_path, wait_for="bank_00")
    try:
        attacker.fire(shots(victim, "bank_00"))
        processes.start(victim)
        for shot, answer in zip(shots(victim, "bank_00"), attacker.answers(), strict=True):
            harmless = shot.get("admin_topic") in ("train.abort", "train.check_status") and not shot.get("headers")
            assert harmless or answer["code"] != "ok" or answer["body"] == "refused by the site", (shot, answer)
        assert (victim / "models").is_dir()
        assert processes.running(victim) is not None
    finally:
        attacker.stop()
    assert {line["sender"].partition(" ")[0] for line in federation.events("bank_00")} == {"server"}


@pytest.mark.parametrize(
    ("victim", "guarded"),
    [("bank_00", True), ("server", True), pytest.param("bank_00", False, marks=pytest.mark.nightly)],
)
def test_everything_that_nvflare_registers(
    federation: GuardedFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, guarded: bool
) -> None:
    """A new version of NVFlare may register something new: it must not be reachable.

    The other end of the connection sends every message that the victim's NVFlare has a handler for, and more.
    """
    seen = tmp_path / "witness.jsonl"
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(WITNESS))
        patched.setenv("WITNESS", str(seen))
        if guarded:
            processes.start(federation.kit(victim))
        unguarded = [] if guarded else [subprocess.Popen(plain_command(federation.kit(victim)))]
    place_server(federation.kit("server"))
    attacker = Attacker(federation.kit("server" if victim == "bank_00" else "bank_01"), tmp_path, wait_for=victim)
    last = ("inside admin", "train.deploy") if victim == "bank_00" else ("task", "heart_beat")
    until(lambda: last[1] in witnessed(seen, "registered", last[0]), 60, f"{victim} did not start")
    until(lambda: _settled(seen), 30, "it registers on and on")
    inside = [topic for topic in named_topics() if "." in topic]
    plan: list[dict[str, Any]] = [
        {"channel": "admin", "topic": "admin", "target": victim, "admin_topic": topic} for topic in inside
    ]
    for channel, topic in {(line[1], line[2]) for line in read_witness(seen) if line[0] == "registered"}:
        for each in named_topics() if topic == "*" else [topic]:
            plan.append({"channel": channel, "topic": each, "target": victim})
            stream = {"sm__ch": channel, "sm__tp": each, "sm__id": len(plan), "sm__sz": 9, "sm__sq": 0, "sm__dt": 2}
            plan.append({"channel": "sm__STREAM", "topic": "sm__DATA", "target": victim, "headers": stream})
    try:
        attacker.fire([{**shot, "wait": False} for shot in plan])
        assert len(attacker.answers()) == len(plan) > 500
    finally:
        attacker.stop()
        for process in unguarded:
            process.kill()
            process.wait()
    reached = {(line[1], line[2]) for line in read_witness(seen) if line[0] == "reached"}
    if guarded:
        assert reached <= REACHABLE[victim], reached - REACHABLE[victim]
        assert reached, "the witness sees nothing"
    else:
        assert reached - REACHABLE[victim], "the attack reaches nothing even without the guard"


REACHABLE = {
    "bank_00": {
        ("admin", "admin"),  # the guard looks inside
        ("admin", "scheduler.cancel_resource"),
        ("admin", "scheduler.check_resource"),
        ("admin", "train.abort"),
        ("admin", "train.check_status"),
        ("admin", "train.deploy"),
        ("admin", "train.start_job"),
        ("cellnet.channel", "bye"),
    },
    "server": {
        ("task", "challenge"),
        ("task", "register"),
        ("task", "heart_beat"),
        ("task", "quit"),
        ("task", "report_job_failure"),
        ("cellnet.channel", "bye"),
    },
}
"""All that the other end of the connection reaches: written by hand, apart from the guard's own list."""


def witnessed(file: Path, kind: str, channel: str) -> set[str]:
    return {line[2] for line in read_witness(file) if line[:2] == [kind, channel]}


def _settled(file: Path) -> bool:
    before = file.stat().st_size
    time.sleep(3.0)
    return file.stat().st_size == before


def test_a_local_user(federation: GuardedFederation) -> None:
    """The processes of a kit listen on no port, and their socket is closed to other users."""
    for name in ("server", "bank_00", "bank_01", "bank_02"):
        processes.start(federation.kit(name))
    federation.wait_for("bank_00")
    listening: dict[str, set[int]] = {"server": set(), "bank_00": set()}
    sockets: set[str] = set()

    def look() -> None:
        for name, found in listening.items():
            for pid in [processes.running(federation.kit(name)), *processes.job_processes(federation.kit(name))]:
                for each in psutil.Process(pid).net_connections(kind="all"):
                    if each.status == psutil.CONN_LISTEN:
                        found.add(each.laddr.port)
                    elif isinstance(each.laddr, str) and "fedspray-" in each.laddr:
                        sockets.add(each.laddr)

    Driver(federation.project, RUN, tell=lambda _: None, tend=look).drive()
    assert listening == {"server": {federation.project.address.port}, "bank_00": set()}
    assert len(sockets) == 2
    if os.getuid() != 0:
        pytest.skip("only root can try to be somebody else")
    for path in sockets:
        code = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({path!r})"
        tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "PermissionError" in tried.stderr


def test_a_stolen_kit(federation: GuardedFederation, tmp_path: Path) -> None:
    """Somebody copied bank_00's kit and runs it, with our software and without, while bank_00 takes part."""
    for name in ("server", "bank_00", "bank_01", "bank_02"):
        processes.start(federation.kit(name))
    federation.wait_for("bank_00", "bank_01", "bank_02")
    stolen = tmp_path / "stolen" / "bank_00"
    shutil.copytree(federation.kit("bank_00"), stolen, ignore=shutil.ignore_patterns("ledger.jsonl", "*.pid"))
    processes.start(stolen)
    attacker = None
    try:
        until(lambda: bool(files.read_lines(stolen / "ledger.jsonl")), 30, "the thief was told nothing")
        attacker = Attacker(stolen, tmp_path, wait_for="server")
        result = federation.drive()
    finally:
        processes.stop([stolen], seconds=1.0)
        if attacker is not None:
            attacker.stop()
    assert result["models"] == federation.undisturbed()
    own = [line["what"] for line in federation.events("bank_00")]
    thiefs = files.read_lines(stolen / "ledger.jsonl")
    assert any("tried to connect" in what for what in own)
    assert {line["event"] for line in thiefs} == {"started", "refused by the server"}, "and no answer of its own left"
    assert any("another process" in line["what"] for line in federation.events("server"))


@pytest.mark.nightly
def test_a_message_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bank_02 answers with 300 MB: nobody reads them, and the run goes on without it."""
    federation = GuardedFederation(tmp_path / "federation", grace=3.0, min_clients=2)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", spoilt(tmp_path / "spoilt", "result['arrays'] = bytes(300_000_000)"))
        attacker = Attacker(federation.kit("bank_02"), tmp_path, wait_for="server")
    peak: dict[int, int] = {}

    def look() -> None:
        for pid in [processes.running(federation.kit("server")), *processes.job_processes(federation.kit("server"))]:
            with contextlib.suppress(psutil.Error):
                peak[pid or 0] = max(peak.get(pid or 0, 0), psutil.Process(pid).memory_info().rss)

    try:
        for name in ("server", "bank_00", "bank_01"):
            processes.start(federation.kit(name))
        federation.wait_for("bank_00", "bank_01", "bank_02")
        result = Driver(federation.project, RUN, tell=lambda _: None, tend=look).drive()
    finally:
        attacker.stop()
        processes.stop([federation.kit(name) for name in ("server", "bank_00", "bank_01")], seconds=1.0)
    assert set(result["models"]) == {"bank_00", "bank_01"}
    assert max(peak.values()) < 600 << 20, "a server's job has 300 MB anyway"
    refused = [line for line in federation.events("server") if "bytes" in line["what"]]
    assert refused
    assert all(line["sender"].startswith("bank_02 ") for line in refused)


def test_a_disabled_site_and_one_with_a_new_key(federation: GuardedFederation, tmp_path: Path) -> None:
    """Cut off at once, and let in again; a new key takes the old one's place, which a thief may have."""
    for name in ("server", "bank_00", "bank_01", "bank_02"):
        processes.start(federation.kit(name))
    federation.wait_for("bank_00", "bank_01", "bank_02")
    set_disabled(federation.project, "bank_02", True)
    until(lambda: federation.connected() == {"bank_00", "bank_01"}, 30, "bank_02 is still there")
    assert any("disabled" in line["what"] for line in federation.events("bank_02"))
    set_disabled(federation.project, "bank_02", False)
    federation.wait_for("bank_02")
    assert federation.drive()["models"] == federation.undisturbed()
    (federation.kit("bank_02") / "startup" / "client.key").unlink()  # a project between organisations never had it
    archive = sign(federation.project, make_request(tmp_path / "new", "bank_02"), again=True)
    until(lambda: federation.connected() == {"bank_00", "bank_01"}, 30, "bank_02 is still there with its old key")
    processes.stop([federation.kit("bank_02")])
    new = unpack(archive, tmp_path / "new")
    replace(new, data=Site.open(federation.kit("bank_02")).data).save()
    processes.start(new.folder)
    try:
        federation.wait_for("bank_02")
    finally:
        processes.stop([new.folder], seconds=1.0)
