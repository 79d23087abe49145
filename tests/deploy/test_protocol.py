"""Who may say what to whom: every rule on both sides."""

from __future__ import annotations

from typing import Any

import pytest

from fedspray.deploy.network.protocol import COORDINATOR, FLOWS, Link, Mail, fault_of, may_connect, party_of

SITES = ("north", "south")
JOB = "0a1b2c3d-0000-4000-8000-00000000000f"
OTHER = "ffffffff-0000-4000-8000-00000000000f"
CONSOLE = f"_admin_{JOB}"


def mail(origin: str, destination: str, kind: str, channel: str, topic: str, **more: Any) -> Mail:
    return Mail(origin, destination, kind, channel, topic, more.get("bytes", 10))


TASK = mail(f"north.{JOB}", f"server.{JOB}", "stream", "server_command", "submit_update")
STATUS = mail("server", "north", "req", "admin", "admin")


@pytest.mark.parametrize(
    ("cell", "party"),
    [
        ("server", "server"),
        (f"server.{JOB}", "server job"),
        ("north", "site"),
        (f"north.{JOB}", "site job"),
        (CONSOLE, "coordinator"),
        ("west", None),
        ("north.models", None),
        (f"north.{JOB}.x", None),
        ("_admin_x", None),
        ("", None),
        ("north\n", None),
    ],
)
def test_names(cell: str, party: str | None) -> None:
    assert party_of(cell, SITES) == party


@pytest.mark.parametrize(
    ("message", "link", "me"),
    [
        (TASK, Link("site", "north"), "server"),
        (TASK, Link("parent", "server"), f"server.{JOB}"),
        (STATUS, Link("server", "server"), "north"),
        (mail("north", "server", "req", "task", "heart_beat"), Link("site", "north"), "server"),
        (mail(CONSOLE, "server", "stream", "hci_channel", "command"), Link("coordinator", COORDINATOR), "server"),
        (
            mail(f"north.{JOB}", "north", "req", "admin", "train.notify_job_status"),
            Link("job", f"north.{JOB}"),
            "north",
        ),
        (mail("north", f"north.{JOB}", "req", "client_command", "abort"), Link("parent", "north"), f"north.{JOB}"),
        (mail("server", f"north.{JOB}", "return", "", ""), Link("server", "server"), f"north.{JOB}"),
    ],
)
def test_what_a_run_needs(message: Mail, link: Link, me: str) -> None:
    assert fault_of(message, link, me, SITES, 100) is None


@pytest.mark.parametrize(
    ("message", "link", "me", "why"),
    [
        (mail("north", "south", "req", "admin", "admin"), Link("site", "north"), "server", "no run needs"),
        (mail("server", "south", "req", "admin", "admin"), Link("site", "north"), "server", "which this connection"),
        (mail("south", "server", "req", "task", "quit"), Link("site", "north"), "server", "which this connection"),
        (mail("south", "north", "req", "admin", "admin"), Link("server", "server"), "north", "which this connection"),
        (mail("server", "south", "req", "admin", "admin"), Link("server", "server"), "north", "it is for"),
        (mail("north", "north", "req", "admin", "admin"), Link("server", "server"), "north", "which this connection"),
        (mail(CONSOLE, "server", "req", "task", "register"), Link("site", "north"), "server", "which this connection"),
        (mail(CONSOLE, "north", "req", "admin", "admin"), Link("coordinator", COORDINATOR), "server", "no run needs"),
        (
            mail(f"north.{JOB}", f"server.{OTHER}", "stream", "server_command", "get_task"),
            Link("site", "north"),
            "server",
            "job to another",
        ),
        (
            mail(f"north.{JOB}", f"server.{JOB}", "req", "server_command", "get_task"),
            Link("site", "north"),
            "server",
            "no run needs",
        ),
        (mail("server", f"server.{JOB}", "return", "", ""), Link("parent", "north"), f"north.{JOB}", "it is for"),
        (mail("server", "north", "req", "admin", "admin"), Link("server", "server"), f"north.{JOB}", "it is for"),
        (mail(f"server.{JOB}", "server", "return", "", ""), Link("server", "server"), "north", "no run needs"),
        (mail("server", "north", "req", "admin", "admin", bytes=101), Link("server", "server"), "north", "101 bytes"),
    ],
)
def test_what_is_refused(message: Mail, link: Link, me: str, why: str) -> None:
    assert why in str(fault_of(message, link, me, SITES, 100))


def test_nothing_goes_from_one_site_to_another() -> None:
    """Not even a message that a site may send to its own job."""
    message = mail("north", f"south.{JOB}", "req", "client_command", "abort")
    for link, me in ((Link("site", "north"), "server"), (Link("server", "server"), f"south.{JOB}")):
        assert fault_of(message, link, me, SITES, 100) is not None
    assert not {(a, b) for a, b in FLOWS if a.startswith("site") and b == "coordinator"}


@pytest.mark.parametrize(
    ("link", "cell", "me", "good"),
    [
        (Link("site", "north"), "north", "server", True),
        (Link("site", "north"), f"north.{JOB}", "server", True),
        (Link("site", "north"), "south", "server", False),
        (Link("site", "north"), "server", "server", False),
        (Link("site", "north"), CONSOLE, "server", False),
        (Link("site", "west"), "west", "server", False),
        (Link("site", "member@fedspray.org"), CONSOLE, "server", False),
        (Link("coordinator", COORDINATOR), CONSOLE, "server", True),
        (Link("coordinator", COORDINATOR), "north", "server", False),
        (Link("server", "server"), "server", "north", True),
        (Link("server", "server"), "south", "north", False),
        (Link("job", f"north.{JOB}"), f"north.{JOB}", "north", True),
        (Link("job", "north"), "north", "north", False),
        (Link("parent", "north"), "north", f"north.{JOB}", True),
        (Link("parent", "south"), "south", f"north.{JOB}", False),
    ],
)
def test_who_may_connect(link: Link, cell: str, me: str, good: bool) -> None:
    assert (may_connect(link, cell, me, SITES) is None) == good


def test_headers_of_any_kind_are_read() -> None:
    """What a stream declares counts, and what cannot be read is on no list."""
    headers = {"cn__channel": "sm__STREAM", "cn__topic": "sm__DATA", "cn__msg_type": "req", "cn__origin": ["x"]}
    read = Mail.read({**headers, "sm__ch": 3, "sm__tp": None, "sm__sz": 5000, "sm__id": 7}, 10)
    assert (read.kind, read.channel, read.topic, read.bytes, read.stream) == ("stream", "3", "None", 5000, "7")
    for size in (-1, "many", None, 1e9):
        assert Mail.read({**headers, "sm__sz": size}, 10).bytes > 1 << 60
    assert Mail.read({}, 3).origin == ""


@pytest.mark.parametrize(("kind", "topic"), [("reply", "sm__DATA"), ("reply", "sm__ACK"), ("odd", "sm__DATA")])
def test_only_a_request_is_part_of_a_stream(kind: str, topic: str) -> None:
    """NVFlare takes any other kind for an answer."""
    inner = {"sm__ch": "server_command", "sm__tp": "get_task", "sm__sz": 9, "sm__id": 7}
    read = Mail.read({"cn__channel": "sm__STREAM", "cn__topic": topic, "cn__msg_type": kind, **inner}, 10)
    assert (read.kind, read.channel, read.topic) == (kind, "sm__STREAM", topic)
    assert all((read.kind, read.channel, read.topic) not in lines for lines in FLOWS.values())


def test_a_stream_is_no_flow_control() -> None:
    """Whatever it calls itself."""
    outer = {"cn__channel": "sm__STREAM", "cn__topic": "sm__DATA", "cn__msg_type": "req"}
    read = Mail.read({**outer, "sm__ch": "sm__STREAM", "sm__tp": "sm__ACK", "sm__sz": 9, "sm__id": 7}, 10)
    assert all((read.kind, read.channel, read.topic) not in lines for lines in FLOWS.values())
