"""The messages that a run needs, and no others: who may say what to whom over NVFlare's network.

NVFlare connects its processes ("cells") into one network in which any cell can address any other, and it
leaves it to the sender whether rights are checked. This module is the opposite: a list of every message that
a run needs, by sender and receiver. What is not on the list is refused by `fedspray.deploy.network.guard`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

SERVER = "server"
COORDINATOR = "coordinator@fedspray.org"
"""The name in the coordinator's certificate."""
NOTICES = ("fedspray", "notice")
"""Channel and topic of what the server tells a site about its own certificate."""

REPLACED = "its certificate is not the one that the coordinator signed last for this site"
"""What a site hears whose key was replaced by another."""

Party = Literal["server", "server job", "site", "site job", "coordinator"]
Via = Literal["site", "coordinator", "server", "job", "parent"]
"""Who is at the other end of a connection, as its certificate or the system proves."""

ORIGIN, DESTINATION, KIND = "cn__origin", "cn__destination", "cn__msg_type"
CHANNEL, TOPIC, CALL_BACK = "cn__channel", "cn__topic", "cn__conn_url"
STREAM, STREAM_DATA = "sm__STREAM", "sm__DATA"
STREAM_CHANNEL, STREAM_TOPIC, STREAM_ID, STREAM_SIZE = "sm__ch", "sm__tp", "sm__id", "sm__sz"

_JOB = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CELL = re.compile(rf"(?P<root>[A-Za-z0-9][A-Za-z0-9_-]{{0,62}})(\.(?P<job>{_JOB}))?")
_CONSOLE = re.compile(rf"_admin_({_JOB}|[0-9a-f]{{32}})")

Line = tuple[str, str, str]
"""Kind ("req", "reply", "stream", "return"), channel and topic."""


def _lines(kind: str, channel: str, *topics: str) -> set[Line]:
    return {(kind, channel, topic) for topic in topics}


_REGISTRATION = ("challenge", "register", "heart_beat", "quit", "report_job_failure")
_AUX = ("__sync_runner__", "__job_heartbeat__", "__task_check__", "__end_run__")
_TASKS = ("get_task", "submit_update")
_RUN_COMMANDS = ("abort", "get_run_info", "handle_dead_job")
_PARENT = ("get_clients", "heartbeat", "update_run_status")
_BYE = _lines("req", "cellnet.channel", "bye") | _lines("reply", "cellnet.channel", "bye")
_FLOW_CONTROL = _lines("req", STREAM, "sm__ACK", "sm__ERROR")
_RETURNED: set[Line] = {("return", "", "")}
"""What cannot be delivered comes back."""


def _answers(channel: str, *topics: str) -> set[Line]:
    """Streamed answers to streamed requests."""
    return _lines("stream", "return_only", *(f"{channel}:{topic}" for topic in topics))


FLOWS: Mapping[tuple[Party, Party], frozenset[Line]] = {
    ("site", "server"): frozenset(_lines("req", "task", *_REGISTRATION) | _lines("reply", "admin", "admin") | _BYE),
    ("server", "site"): frozenset(
        _lines("reply", "task", *_REGISTRATION)
        | _lines("req", "admin", "admin")
        | _lines("req", *NOTICES)
        | _BYE
        | _RETURNED
    ),
    ("site job", "server job"): frozenset(
        _lines("stream", "server_command", *_TASKS)
        | _lines("stream", "aux_communication", *_AUX)
        | _answers("aux_communication", *_AUX)
        | _FLOW_CONTROL
    ),
    ("server job", "site job"): frozenset(
        _answers("server_command", *_TASKS)
        | _lines("stream", "aux_communication", *_AUX)
        | _answers("aux_communication", *_AUX)
        | _FLOW_CONTROL
    ),
    ("server", "site job"): frozenset(_RETURNED | _BYE | _lines("req", STREAM, "sm__ERROR")),
    ("site job", "server"): frozenset(_BYE),
    ("site job", "site"): frozenset(
        _lines("req", "admin", "train.notify_job_status")
        | _lines("reply", "client_command", "abort", "check_status")
        | _BYE
    ),
    ("site", "site job"): frozenset(
        _lines("reply", "admin", "train.notify_job_status")
        | _lines("req", "client_command", "abort", "check_status")
        | _BYE
        | _RETURNED
    ),
    ("server job", "server"): frozenset(
        _lines("req", "server_parent_listener", *_PARENT)
        | _answers("server_command", *_RUN_COMMANDS)
        | _FLOW_CONTROL
        | _BYE
    ),
    ("server", "server job"): frozenset(
        _lines("reply", "server_parent_listener", *_PARENT)
        | _lines("stream", "server_command", *_RUN_COMMANDS)
        | _FLOW_CONTROL
        | _BYE
        | _RETURNED
    ),
    ("coordinator", "server"): frozenset(
        _lines("req", "task", "challenge", "register", "quit")
        | _lines("stream", "hci_channel", "command")
        | _lines("stream", "aux_communication", "ObjectStreamer.Request", "ObjectStreamer.Abort")
        | _FLOW_CONTROL
        | _BYE
    ),
}
"""By sender and receiver. Nothing goes from one site to another."""

SITE_REQUESTS = frozenset(
    {
        "scheduler.check_resource",
        "scheduler.cancel_resource",
        "train.abort",
        "train.check_status",
        "train.deploy",
        "train.start_job",
    }
)
"""What the server may ask of a site inside an ``admin`` message."""
JOB_REQUESTS = frozenset({"train.notify_job_status"})
"""What a site's own job may ask of it inside an ``admin`` message."""
COMMANDS = frozenset(
    {"_cert_login", "_commands", "_logout", "_check_session", "abort_job", "check_status", "get_job_meta", "submit_job"}
)
"""What the coordinator may ask of the server."""


@dataclass(frozen=True)
class Link:
    """A connection: who is at its other end."""

    via: Via
    peer: str
    """The name in the certificate where there is one, otherwise the cell's name."""


@dataclass(frozen=True)
class Mail:
    """A message's headers, as far as they decide whether it is let in. Its sender wrote them."""

    origin: str
    destination: str
    kind: str
    channel: str
    topic: str
    bytes: int
    """Of the whole message: a stream says so in each of its parts."""
    stream: str = ""

    @classmethod
    def read(cls, headers: Mapping[str, Any], payload_bytes: int) -> Mail:
        """Reads the headers; what has the wrong type becomes a text that is on no list."""
        origin, destination, kind, channel, topic = (
            str(headers.get(key, ""))[:200] for key in (ORIGIN, DESTINATION, KIND, CHANNEL, TOPIC)
        )
        if kind == "return":
            return cls(origin, destination, kind, "", "", payload_bytes)
        if (kind, channel, topic) != ("req", STREAM, STREAM_DATA):
            return cls(origin, destination, kind, channel, topic, payload_bytes)
        declared = headers.get(STREAM_SIZE, 0)
        size = declared if isinstance(declared, int) and declared >= 0 else 1 << 62
        channel, topic, stream = (str(headers.get(k, ""))[:200] for k in (STREAM_CHANNEL, STREAM_TOPIC, STREAM_ID))
        return cls(origin, destination, "stream", channel, topic, max(size, payload_bytes), stream)

    @property
    def is_report(self) -> bool:
        """Whether it tells how a stream fares."""
        return self.kind != "stream" and self.channel == STREAM

    def __str__(self) -> str:
        return f"{self.channel}/{self.topic} ({self.kind})"


def party_of(cell: str, sites: Collection[str]) -> Party | None:
    """Whose cell this is; None for a name that nobody has."""
    if _CONSOLE.fullmatch(cell):
        return "coordinator"
    found = _CELL.fullmatch(cell)
    if found is None or not (found["root"] == SERVER or found["root"] in sites):
        return None
    if found["root"] == SERVER:
        return "server job" if found["job"] else "server"
    return "site job" if found["job"] else "site"


def is_job(name: Any) -> bool:
    """Whether this can be the name of a job: NVFlare makes a folder of this name."""
    return isinstance(name, str) and re.fullmatch(_JOB, name) is not None


def root_of(cell: str) -> str:
    """The site, or the server, that a cell belongs to."""
    return cell.partition(".")[0]


def job_of(cell: str) -> str:
    """The job that a cell runs; nothing for a main process."""
    return cell.partition(".")[2]


def may_connect(link: Link, cell: str, me: str, sites: Collection[str]) -> str | None:
    """Why the other end of a connection may not call itself ``cell``; None if it may."""
    party = party_of(cell, sites)
    allowed = {
        "site": party in ("site", "site job") and root_of(cell) == link.peer,
        "coordinator": party == "coordinator" and link.peer == COORDINATOR,
        "server": cell == SERVER,
        "job": bool(job_of(cell)) and root_of(cell) == me,
        "parent": cell == root_of(me),
    }
    return None if allowed[link.via] else f"it calls itself {cell[:100]!r}, which is not its name"


def fault_of(mail: Mail, link: Link, me: str, sites: Collection[str], largest: int) -> str | None:
    """Why a message is refused; None if a run needs it.

    Args:
        mail: its headers.
        link: the connection that it came over.
        me: the cell that received it.
        sites: who takes part.
        largest: bytes of the largest message of a run.
    """
    sender, receiver = party_of(mail.origin, sites), party_of(mail.destination, sites)
    if sender is None or not _may_carry(link, mail.origin, me):
        return f"it says that it comes from {mail.origin!r}, which this connection is not"
    if receiver is None or (mail.kind, mail.channel, mail.topic) not in FLOWS.get((sender, receiver), frozenset()):
        return f"no run needs it: {mail} to {mail.destination!r}"
    if not _may_deliver(link, mail.destination, me):
        return f"it is for {mail.destination!r}"
    if job_of(mail.origin) and job_of(mail.destination) and job_of(mail.origin) != job_of(mail.destination):
        return "it goes from one job to another"
    if mail.bytes > largest:
        return f"it has {mail.bytes:,} bytes, but no message of this run has more than {largest:,}"
    return None


def _may_carry(link: Link, origin: str, me: str) -> bool:
    """Whether messages of this sender can come over a connection."""
    if link.via == "site":
        return root_of(origin) == link.peer
    if link.via == "coordinator":
        return bool(_CONSOLE.fullmatch(origin))
    if link.via == "job":
        return origin == link.peer
    if link.via == "server":
        return root_of(origin) == SERVER
    return root_of(origin) == SERVER if root_of(me) != SERVER and origin != root_of(me) else origin != me


def _may_deliver(link: Link, destination: str, me: str) -> bool:
    """Whether a message over this connection can be for a receiver: a main process hands on to and from its own job."""
    if job_of(me):
        return destination == me
    if link.via == "job":
        return me == SERVER or root_of(destination) in (SERVER, me)
    return root_of(destination) == me
