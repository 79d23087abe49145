"""The processes of a running job, attacked by every process that has a connection to one of them.

All of them are real ones with our guard; somebody inside sends raw messages that name true and forged senders.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("nvflare")

from federations import WITNESS, GuardedFederation, named_topics, read_witness, spoilt, until

from fedspray.deploy.operations import processes

pytestmark = pytest.mark.slow

Line = tuple[str, str, str]
"""Kind, channel and topic of a message."""


def lines(kind: str, channel: str, *topics: str) -> set[Line]:
    return {(kind, channel, topic) for topic in topics}


BYE = lines("req", "cellnet.channel", "bye") | lines("reply", "cellnet.channel", "bye")
RETURNED = lines("return", "", "")
FLOW = lines("req", "sm__STREAM", "sm__ACK", "sm__ERROR")
AUX = ("__sync_runner__", "__job_heartbeat__", "__task_check__", "__end_run__")
BOTH_WAYS = (
    lines("stream", "aux_communication", *AUX)
    | lines("stream", "return_only", *(f"aux_communication:{topic}" for topic in AUX))
    | FLOW
)
WORK = BOTH_WAYS | lines("stream", "server_command", "get_task", "submit_update")
TASKS = BOTH_WAYS | lines("stream", "return_only", "server_command:get_task", "server_command:submit_update")
FROM_SERVER = {"server": BYE | RETURNED | lines("req", "sm__STREAM", "sm__ERROR"), "server job": TASKS}
PARENT = ("get_clients", "heartbeat", "update_run_status")
COMMANDS = ("abort", "get_run_info", "handle_dead_job")
SITE_COMMANDS = ("abort", "check_status")


class Attack(NamedTuple):
    """Messages from one process to another, over the attacker's connection to a third or to the victim itself."""

    attacker: str
    through: str
    victim: str
    names: tuple[str, ...]
    """In these senders' names everything is tried; in others' what is on some list."""
    reached: dict[str, set[Line]]
    """All that may get past the victim's guard, by the sender's name: written by hand, apart from the guard's list."""


ATTACKS = [
    # A member: the server's job hears its own job, and another site's job hears nothing.
    Attack("bank_02", "server", "server job", ("bank_02", "bank_02 job", "server"), {"bank_02 job": WORK}),
    Attack("bank_02", "server", "bank_00 job", ("bank_02", "server", "bank_00"), {}),
    Attack("bank_02 job", "server", "server job", ("bank_02 job",), {"bank_02 job": WORK}),
    Attack("bank_02 job", "server", "bank_00 job", ("bank_02 job", "server job"), {}),
    Attack("bank_02 job", "bank_02", "bank_00 job", ("bank_02 job",), {}),
    # The server, which is connected to the sites' jobs.
    Attack("server", "bank_00 job", "bank_00 job", ("server", "server job", "bank_00"), FROM_SERVER),
    Attack("server", "bank_00 job", "bank_00", ("server",), {}),
    # A process and its own job.
    Attack(
        "bank_00",
        "bank_00 job",
        "bank_00 job",
        ("bank_00",),
        {
            "bank_00": BYE
            | RETURNED
            | lines("reply", "admin", "train.notify_job_status")
            | lines("req", "client_command", *SITE_COMMANDS),
            **FROM_SERVER,  # a site hands on what the server says
        },
    ),
    Attack("bank_00", "bank_00 job", "server job", ("bank_00",), {}),
    Attack(
        "bank_00 job",
        "bank_00",
        "bank_00",
        ("bank_00 job", "server"),
        {
            "bank_00 job": BYE
            | lines("req", "admin", "train.notify_job_status")
            | lines("reply", "client_command", *SITE_COMMANDS)
        },
    ),
    Attack(
        "server",
        "server job",
        "server job",
        ("server", "bank_02"),
        {
            "server": BYE
            | RETURNED
            | FLOW
            | lines("reply", "server_parent_listener", *PARENT)
            | lines("stream", "server_command", *COMMANDS),
            **{f"bank_0{i} job": WORK for i in range(3)},  # the server knows their certificates
        },
    ),
    Attack(
        "server job",
        "server",
        "server",
        ("server job",),
        {
            "server job": BYE
            | FLOW
            | lines("req", "server_parent_listener", *PARENT)
            | lines("stream", "return_only", *(f"server_command:{topic}" for topic in COMMANDS))
        },
    ),
]
PARTIES = ("server", "server job", *(f"bank_0{i}{job}" for i in range(3) for job in ("", " job")))
LISTED = {
    (kind, channel, topic)
    for attack in ATTACKS
    for listed in attack.reached.values()
    for _, channel, topic in listed
    for kind in ("req", "reply", "stream")
} | RETURNED
REFUSED = {
    "server": {"bank_02", "server", "server job"},
    "bank_00": {"server", "bank_00", "bank_00 job"},
    "bank_02": {"bank_02 job"},
}
"""Whom the ledgers of the attacked name: the certificate's name, or on the same machine the process's."""


class HeldJob:
    """A run that waits in its second round, because bank_01 does; the witness sits in all other processes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.federation = GuardedFederation(folder / "federation", grace=300.0)
        self.seen, self.shots, self.held, self.free = (folder / name for name in ("seen", "shots", "held", "free"))
        self.shots.mkdir()
        late = (
            "from pathlib import Path; import time\n"
            f"while round_index == 1 and not Path({str(self.free)!r}).exists():\n"
            f"    Path({str(self.held)!r}).touch(); time.sleep(0.1)"
        )
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", spoilt(folder / "late", late))
            processes.start(self.federation.kit("bank_01"))
            patched.setenv("PYTHONPATH", str(WITNESS))
            patched.setenv("WITNESS", str(self.seen))
            patched.setenv("SHOTS", str(self.shots))
            for name in ("server", "bank_00", "bank_02"):
                processes.start(self.federation.kit(name))

    def registered(self) -> dict[str, set[tuple[str, str]]]:
        """Channels and topics that have handlers, by cell."""
        found: dict[str, set[tuple[str, str]]] = {}
        for _, channel, topic, *cells in (line for line in read_witness(self.seen) if line[0] == "registered"):
            found.setdefault("".join(cells), set()).add((channel, topic))
        return found

    def noted(self, kind: str) -> set[tuple[str, int]]:
        """Cells, and the shots that they decided on ("judged") or let in ("passed")."""
        return {(line[1], int(line[2])) for line in read_witness(self.seen) if line[0] == kind}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldJob]:
    held = HeldJob(tmp_path, monkeypatch)
    try:
        yield held
    finally:
        held.free.touch()
        processes.stop([kit for kit in held.federation.kits.iterdir() if kit.name != "coordinator"], seconds=1.0)


def test_everything_that_nvflare_registers_in_a_job(job: HeldJob) -> None:
    """A new version of NVFlare may register something new in a job's processes: it must not be reachable."""
    job.federation.wait_for("bank_00", "bank_01", "bank_02")
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as at_the_end:
        run = pool.submit(job.federation.drive)
        at_the_end.callback(job.free.touch)
        until(lambda: job.held.exists() or run.done(), 120, "the run did not begin")
        registered = job.registered()
        (name,) = {cell.partition(".")[2] for cell in registered} - {""}
        cells = {party: party.replace(" job", f".{name}") for party in PARTIES}
        shots = [
            (attack, sender, line)
            for attack in ATTACKS
            for sender in PARTIES
            for line in LISTED | (everything(registered[cells[attack.victim]]) if sender in attack.names else set())
        ]
        fire(job.shots, cells, shots)
        arrived = {(cells[attack.through], number) for number, (attack, _, _) in enumerate(shots)}
        until(lambda: arrived <= job.noted("judged"), 120, "not every shot arrived")
        ahead = {(cells[shots[number][0].victim], number) for _, number in job.noted("passed")}
        until(lambda: ahead <= job.noted("judged"), 60, "not every shot that was let in was handed on")
    passed = job.noted("passed")
    for attack in ATTACKS:
        mine = {number: (sender, line) for number, (each, sender, line) in enumerate(shots) if each is attack}
        reached = {mine[number] for cell, number in passed if number in mine}
        listed = {(sender, line) for sender, few in attack.reached.items() for line in few}
        assert reached == listed, (attack[:3], reached ^ listed)
    assert len(shots) > 10_000
    senders = {
        name: {line["sender"].partition(" ")[0] for line in job.federation.events(name) if line["event"] == "refused"}
        for name in REFUSED
    }
    assert senders == {name: {cells[sender] for sender in found} for name, found in REFUSED.items()}
    assert run.result()["models"] == job.federation.undisturbed()


def everything(registered: set[tuple[str, str]]) -> set[Line]:
    """All that a process has a handler for, direct and streamed; every name where a handler takes all."""
    named = {(channel, name) for channel, topic in registered if topic == "*" for name in named_topics()}
    single = {(channel, topic) for channel, topic in registered if topic != "*"}
    answers = {("return_only", f"{channel}:{topic}") for channel, topic in named | single}
    return {(kind, *each) for each in named | single for kind in ("req", "stream")} | {("stream", *a) for a in answers}


def fire(folder: Path, cells: dict[str, str], shots: list[tuple[Attack, str, Line]]) -> None:
    plans: dict[str, list[Any]] = {attack.attacker: [] for attack in ATTACKS}
    for number, (attack, sender, (kind, channel, topic)) in enumerate(shots):
        address = {"cn__origin": cells[sender], "cn__destination": cells[attack.victim], "shot": str(number)}
        direct = {"cn__msg_type": kind, "cn__channel": channel, "cn__topic": topic}
        streamed = {"cn__msg_type": "req", "cn__channel": "sm__STREAM", "cn__topic": "sm__DATA"}
        part = {"sm__ch": channel, "sm__tp": topic, "sm__id": number, "sm__sz": 9, "sm__sq": 0, "sm__dt": 2}
        plans[attack.attacker].append(
            (cells[attack.through], {**address, **(streamed | part if kind == "stream" else direct)})
        )
    for attacker, plan in plans.items():
        file = folder / f"{cells[attacker]}.json"
        file.with_suffix(".tmp").write_text(json.dumps(plan))
        file.with_suffix(".tmp").rename(file)
