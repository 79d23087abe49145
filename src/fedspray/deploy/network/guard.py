"""What a process of a kit lets in: only what `protocol` lists for the sender.

- Who is at the other end of a connection is known from its certificate, or, between a process and its own job,
  from the system; what a message says about its origin must agree with that.
- What is refused is logged with that name and written to the site's ledger, or to the server's ``events.jsonl``.
- A second connection with a site's certificate is refused while the first is alive, and both ends, the
  coordinator and both ledgers hear of it; a site that the coordinator disabled is cut off at once.

`patches` puts it into NVFlare.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.identity import is_mtls_connection
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode

from fedspray.deploy.ledger import is_server, write_event
from fedspray.deploy.network import protocol
from fedspray.deploy.network.protocol import CALL_BACK, COORDINATOR, NOTICES, REPLACED, SERVER, Link, Mail
from fedspray.deploy.network.unixdriver import SCHEME
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.members import Member
from fedspray.errors import printable

PEER_KEY = "fedspray.peer_key"
"""Where a connection says which key its other end has."""
SHORT = 1 << 20
"""Bytes of a message that is not streamed; the longest is a job, of a few kilobytes."""
ALIVE = 30.0
"""Seconds after its last sign of life until a connection counts as lost. Sites say something every ten seconds."""
STREAMS = 8
"""Unfinished streams that one cell may have; a run has two or three."""
LAST_PARTS = (2, 6)
"""How NVFlare marks a stream's last part, and that it was given up."""
LEAST = 32 << 20
"""Bytes of a streamed message that are read in any case; the job's process knows better what is too long."""
FORGOTTEN = 120.0
"""Seconds after which an unfinished stream counts as given up."""
LOGGED = 200
"""Refusals of one sender that a process writes down one by one; after that it writes one in a hundred."""
REMEMBERED, AGAIN = 1000, 3600.0
"""Streams and connections that a process remembers to have refused, and after how many seconds it writes them down
again."""

_log = logging.getLogger(__name__)


class Guard:
    """What one process of a kit knows about itself and its peers.

    Args:
        kit: its folder.
    """

    def __init__(self, kit: Path) -> None:
        self.kit, self.is_server = kit, is_server(kit)
        self._members: tuple[float, dict[str, Member]] = (0.0, {})
        self._agreed: tuple[float, tuple[str, ...], int] = (0.0, (), 0)
        self._streams: dict[str, dict[str, float]] = {}
        self._refused: Counter[str] = Counter()
        self._told: dict[tuple[str, ...], float] = {}
        self.on_refusal: Callable[[str], None] = lambda reason: None
        """Is told when the server closes this site's connection, and why."""
        self._lock = threading.Lock()

    # ---- what is known --------------------------------------------------------------------------------

    @property
    def sites(self) -> tuple[str, ...]:
        """Who takes part; the server also knows who was signed for an agreement that is not taken on yet."""
        return (*self._read_agreement()[1], *(self._read_members() if self.is_server else ()))

    @property
    def largest(self) -> int:
        """Bytes beyond which nothing is read: with room for NVFlare's envelope."""
        return max(2 * self._read_agreement()[2], LEAST)

    def shut_out(self, link: Link, connection: Connection) -> str | None:
        """Why a site is not let in, whatever it says; None if it is."""
        if link.via != "site":
            return None
        member = self._read_members().get(link.peer)
        if member is not None and member.left:
            return "the coordinator removed this site"
        if member is None or member.key != connection.get_conn_properties().get(PEER_KEY):
            return REPLACED
        return "the coordinator disabled this site" if member.disabled else None

    def link(self, connection: Connection, cell: str) -> Link | None:
        """Who is at the other end of a connection; None where nothing proves it."""
        connector = connection.connector
        passive = connector.mode == Mode.PASSIVE
        if connector.params.get("scheme") == SCHEME:
            return Link("job" if passive else "parent", cell)
        if not is_mtls_connection(connector.params):
            return None
        if not passive:
            return Link("server", SERVER)
        name = str(connection.get_conn_properties().get("peer_cn") or "")
        return Link("coordinator" if name == COORDINATOR else "site", name)

    # ---- what is let in -------------------------------------------------------------------------------

    def fault_of(self, me: str, cell: str, connection: Connection, message: Message) -> str | None:
        """Why a message is refused; None if it is let in."""
        link = self.link(connection, cell)
        if link is None:
            return "the connection proves nothing about its other end"
        if (fault := self.shut_out(link, connection)) is not None:
            close(connection, fault)
            return fault
        headers = message.headers or {}
        if headers.get(CALL_BACK):
            return "it asks this process to connect to an address of its own"
        mail = Mail.read(headers, len(message.payload or b""))
        fault = protocol.fault_of(mail, link, me, self.sites, self.largest if mail.kind == "stream" else SHORT)
        if fault is None and mail.stream and not self._may_stream(mail, headers.get("sm__dt") in LAST_PARTS):
            fault = f"it has more than {STREAMS} unfinished streams"
        return fault

    def fault_of_connection(self, manager: ConnManager, connection: Connection, cell: str) -> str | None:
        """Why a connection is refused; None if it is let in."""
        link, me = self.link(connection, cell), manager.local_endpoint.name
        if link is None:
            return "the connection proves nothing about its other end"
        fault = self.shut_out(link, connection) or protocol.may_connect(link, cell, me, self.sites)
        if fault is None and link.via in ("site", "job"):
            fault = self._second_session(manager, connection, cell)
        return fault

    def _second_session(self, manager: ConnManager, connection: Connection, cell: str) -> str | None:
        """A live connection keeps its name; the loser is told why, and the winner that somebody tried."""
        known = manager.sfm_endpoints.get(cell)
        others = [each for each in (known.connections if known else []) if each.conn is not connection]
        alive = [each for each in others if time.time() - each.last_activity < ALIVE]
        if not alive:
            return None
        address = connection.get_conn_properties().get("peer_addr", "?")
        first = alive[0].conn.get_conn_properties().get("peer_addr", "?")
        self.tell(cell, f"another process, at {address}, tried to connect with this site's certificate and was refused")
        return f"another process, at {first}, is connected with this site's certificate"

    def _may_stream(self, mail: Mail, final: bool) -> bool:
        with self._lock:
            now, open_ = time.monotonic(), self._streams.setdefault(mail.origin, {})
            for name in [name for name, seen in open_.items() if now - seen > FORGOTTEN]:
                del open_[name]
            if final:
                open_.pop(mail.stream, None)
                return True
            if mail.stream not in open_ and len(open_) >= STREAMS:
                return False
            open_[mail.stream] = now
            return True

    # ---- what is written down -------------------------------------------------------------------------

    def is_news(self, *cause: str) -> bool:
        """Whether the same was not written down within the last hour; the next time, it was."""
        with self._lock:
            now, before = time.monotonic(), self._told.pop(cause, None)
            known = before is not None and now - before < AGAIN
            self._told[cause] = before if known and before is not None else now
            while len(self._told) > REMEMBERED:
                del self._told[next(iter(self._told))]  # what was not heard of for the longest time
        return not known

    def refuse_message(self, sender: str, message: Message, why: str) -> None:
        """Refuses a message. A stream is written down once, not with each of its parts and reports about it."""
        headers = message.headers or {}
        mail, name = Mail.read(headers, 0), str(headers.get(protocol.STREAM_ID, ""))[:200]
        stream = (sender, mail.origin, mail.destination, name)
        news = not name or self.is_news(*stream)
        if news if mail.is_report or not name else self.is_news(*stream, str(mail), why):
            self.refuse(sender, str(mail), why)

    def refuse(self, sender: str, what: str, why: str) -> None:
        """Logs a refusal and writes it down; somebody who sends thousands does not fill the disk."""
        with self._lock:
            self._refused[name := sender.partition(" ")[0]] += 1
            count = self._refused[name]
        if count <= LOGGED or count % 100 == 0:
            self.record("refused", sender, f"{what}: {why}")

    def record(self, event: str, sender: str, what: str) -> None:
        """Adds a line to the ledger or the list of events."""
        _log.warning("%s: %s: %s", event, printable(sender), printable(what))
        write_event(self.kit, event, sender, what)

    def tell(self, site: str, sentence: str) -> None:
        """Sends a notice to a site's main process."""
        cell = CoreCell.ALL_CELLS.get(SERVER)
        if cell is not None:
            channel, topic = NOTICES
            message = Message(payload=sentence.encode())
            threading.Thread(
                target=cell.fire_and_forget, args=(channel, topic, protocol.root_of(site), message), daemon=True
            ).start()

    def _read_members(self) -> dict[str, Member]:
        changed = _changed(self.kit / "local" / members.FILE)
        if changed != self._members[0]:
            self._members = (changed, members.read(self.kit))
        return self._members[1]

    def _read_agreement(self) -> tuple[float, tuple[str, ...], int]:
        file = self.kit / "local" / "agreement.json"
        changed = _changed(file)
        if changed != self._agreed[0]:
            content = json.loads(file.read_text())
            self._agreed = (changed, tuple(content["sites"]), int(content["largest_message"]))
        return self._agreed


def fault_of_request(request: Any, origin: str) -> str | None:
    """Why a site refuses what is inside an ``admin`` message; None if a run needs it."""
    job = getattr(request, "headers", {}).get("job_id")
    if getattr(request, "topic", None) not in (protocol.SITE_REQUESTS if origin == SERVER else protocol.JOB_REQUESTS):
        return "no run needs it"
    if job is not None and not protocol.is_job(job):
        return f"its job is {str(job)!r}, which is not one"
    if request.topic == "train.deploy":
        try:
            with zipfile.ZipFile(io.BytesIO(request.body)) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
        except (zipfile.BadZipFile, TypeError, ValueError):
            return "its job is not a zip file"
        if size > SHORT:
            return f"its job unpacks to {size:,} bytes, but a job has less than {SHORT:,}"
    return None


def close(connection: Connection, reason: str) -> None:
    """Ends a connection from this side; where it is gRPC, the other end hears why."""
    connection.refusal = printable(reason)
    connection.close()


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0.0
