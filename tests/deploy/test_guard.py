"""What the guard decides by itself; tests/integration/test_deploy_guard.py tries it against real processes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.message import Message as Mailed
from nvflare.private.admin_defs import Message

from fedspray.deploy.ledger import read_events
from fedspray.deploy.network.guard import LOGGED, REMEMBERED, SHORT, STREAMS, Guard, fault_of_request
from fedspray.deploy.network.protocol import Mail
from fedspray.deploy.provisioning import members

JOB = "0a1b2c3d-0000-4000-8000-00000000000f"


def zipped(size: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("app/config/config_fed_client.json", bytes(size))
    return stream.getvalue()


def request(topic: str, body: Any = "", **headers: str) -> Message:
    made = Message(topic, body)
    made.set_headers(headers)
    return made


@pytest.mark.parametrize(
    ("asked", "origin", "why"),
    [
        (request("train.check_status"), "server", None),
        (request("train.deploy", zipped(10_000), job_id=JOB), "server", None),
        (request("train.notify_job_status", job_id=JOB), f"north.{JOB}", None),
        (request("train.notify_job_status", job_id=JOB), "server", "no run needs"),
        (request("train.start_job", job_id=JOB), f"north.{JOB}", "no run needs"),
        (request("sys.shell", "cat /etc/passwd"), "server", "no run needs"),
        (request("train.abort", job_id="../models"), "server", "not one"),
        (request("train.deploy", zipped(SHORT + 1), job_id=JOB), "server", "unpacks to"),
        (request("train.deploy", b"PK", job_id=JOB), "server", "not a zip"),
        (request("train.deploy", None, job_id=JOB), "server", "not a zip"),
        ("a text", "server", "no run needs"),
    ],
)
def test_what_may_be_inside_an_admin_message(asked: Any, origin: str, why: str | None) -> None:
    fault = fault_of_request(asked, origin)
    assert fault is None if why is None else why in str(fault)


def test_a_bomb_is_small_on_the_wire() -> None:
    assert len(zipped(100 * SHORT)) < SHORT


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "startup" / "fed_server.json").touch()
    return tmp_path


def test_a_flood_of_refusals_does_not_fill_the_disk(kit: Path) -> None:
    guard = Guard(kit)
    for index in range(LOGGED + 1000):
        guard.refuse("north (somewhere)", f"message {index}\x1b[2J", "no run needs it")
    events = read_events(kit)
    assert len(events) == LOGGED + 10
    assert all(event["what"].isprintable() for event in events)


def test_a_flood_of_one_sender_does_not_hide_another(kit: Path) -> None:
    guard = Guard(kit)
    for index in range(LOGGED + 50):
        guard.refuse(f"north (somewhere:{index})", "a message", "no run needs it")
    guard.refuse("south (elsewhere)", "a message", "no run needs it")
    assert read_events(kit)[-1]["sender"] == "south (elsewhere)"


def sent(topic: str, stream: object, inside: str = "sys/shell", origin: str = "north") -> Mailed:
    headers = {"cn__origin": origin, "cn__destination": "server", "cn__msg_type": "req"}
    channel, _, name = inside.partition("/")
    about = {} if stream is None else {"sm__id": stream, "sm__ch": channel, "sm__tp": name, "sm__sz": 9}
    return Mailed({**headers, "cn__channel": "sm__STREAM", "cn__topic": topic, **about})


def test_a_stream_is_refused_once(kit: Path) -> None:
    guard = Guard(kit)

    def refused(*messages: Mailed, sender: str = "north (a:1)", why: str = "no run needs it") -> int:
        before = len(read_events(kit))
        for message in messages:
            guard.refuse_message(sender, message, why)
        return len(read_events(kit)) - before

    parts = [sent("sm__DATA", 7)] * 300
    assert refused(*parts, sent("sm__ERROR", 7), sent("sm__ACK", 7), *parts) == 1
    assert refused(sent("sm__DATA", 8)) == 1, "another stream"
    assert refused(sent("sm__DATA", 7, "sys/other")) == 1, "the same number for something else"
    assert refused(sent("sm__DATA", 7), why="it is too long") == 1, "for another reason"
    assert refused(sent("sm__DATA", 7), sender="south (b:1)") == 1, "of somebody else"
    assert refused(sent("sm__ERROR", 7, origin="server")) == 1, "in another's name"
    assert refused(sent("sm__ERROR", 9), sent("sm__ERROR", 9), sent("sm__ACK", 9)) == 1, "about a stream that was not"
    assert refused(sent("sm__DATA", 9)) == 1, "and then is"
    assert refused(sent("sm__ERROR", None), sent("sm__ERROR", None)) == 2, "about none"
    assert refused(*(sent("sm__DATA", 100 + number) for number in range(REMEMBERED))) < 2 * LOGGED
    assert len(guard._told) == REMEMBERED


def test_what_goes_on_is_written_down_every_hour(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, clock = Guard(kit), iter([0.0, 10.0, 3599.0, 3601.0, 3700.0])
    monkeypatch.setattr("fedspray.deploy.network.guard.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert [guard.is_news("north", "disabled") for _ in range(5)] == [True, False, False, True, False]


def test_streams_that_are_never_finished_are_few(kit: Path) -> None:
    guard = Guard(kit)

    def part(stream: int, final: bool = False) -> bool:
        mail = Mail(f"north.{JOB}", f"server.{JOB}", "stream", "server_command", "submit_update", 10, str(stream))
        return guard._may_stream(mail, final)

    assert all(part(stream) for stream in range(STREAMS))
    assert not part(STREAMS)
    assert part(1), "a stream that is under way goes on"
    assert part(0, final=True)
    assert part(STREAMS)


def test_members(kit: Path) -> None:
    members.put_key(kit, "north", "a")
    assert members.set_disabled(kit, "north", True)
    assert not members.set_disabled(kit, "north", True)
    members.put_key(kit, "north", "b")
    assert members.read(kit) == {"north": members.Member("b", disabled=True)}
