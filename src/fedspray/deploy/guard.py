"""Stands below NVFlare's own handlers in every process of a kit and lets in what `protocol` lists, and nothing else.

NVFlare checks rights only where the sender of a message asks for it, forwards messages from any site to any
other, opens connections to addresses that a message names, and lets a second process with a site's certificate
take the first one's place. `install` closes all of that, before NVFlare's main module is run:

- who is at the other end of a connection is known from its certificate, or, between a process and its own job,
  from the system; what a message says about its origin must agree with that;
- what is refused is logged with that name and written to the site's ledger, or to the server's ``events.jsonl``;
- a second connection with a site's certificate is refused while the first is alive, and both ends, the
  coordinator and both ledgers hear of it; a site that the coordinator disabled is cut off at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shlex
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from nvflare.app_common.job_launcher import client_process_launcher, server_process_launcher
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.identity import is_mtls_connection
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode, NullConnection
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.private.admin_defs import error_reply
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from fedspray import files
from fedspray.deploy import members, protocol
from fedspray.deploy.certificates import key_fingerprint
from fedspray.deploy.members import Member
from fedspray.deploy.protocol import CALL_BACK, COORDINATOR, EVENTS, LEDGER, NOTICES, SERVER, Link, Mail
from fedspray.deploy.unixdriver import SCHEME, UnixDriver
from fedspray.errors import DiskFull, printable

PEER_KEY = "fedspray.peer_key"
"""Where a connection says which key its other end has."""
FRAME = 4 << 20
"""Bytes that arrive in one piece: longer messages come in pieces of 1 MiB."""
SHORT = 1 << 20
"""Bytes of a message that is not streamed; the longest is a job, of a few kilobytes."""
ALIVE = 30.0
"""Seconds after its last sign of life until a connection counts as lost. Sites say something every ten seconds."""
STREAMS = 8
"""Unfinished streams that one cell may have; a run has two or three."""
LAST_PARTS = (2, 6)
"""How NVFlare marks a stream's last part, and that it was given up."""
ROOM = 32 << 20
"""Bytes of a streamed message that are read in any case; the job's process knows better what is too long."""
FORGOTTEN = 120.0
"""Seconds after which an unfinished stream counts as given up."""
LOGGED = 200
"""Refusals that one process writes down one by one; after that it writes one in a hundred."""

_log = logging.getLogger(__name__)


class Guard:
    """What one process of a kit knows about itself and its peers.

    Args:
        kit: its folder.
    """

    def __init__(self, kit: Path) -> None:
        self.kit, self.is_server = kit, (kit / "startup" / "fed_server.json").is_file()
        self._members: tuple[float, dict[str, Member]] = (0.0, {})
        self._agreed: tuple[float, tuple[str, ...], int] = (0.0, (), 0)
        self._streams: dict[str, dict[str, float]] = {}
        self._refused = 0
        self.on_refusal: Callable[[str], None] = lambda reason: None
        """Is told when the server closes this site's connection, and why."""
        self._lock = threading.Lock()

    # ---- what is known --------------------------------------------------------------------------------

    @property
    def sites(self) -> tuple[str, ...]:
        """Who takes part."""
        return self._read_agreement()[1]

    @property
    def largest(self) -> int:
        """Bytes beyond which nothing is read: with room for NVFlare's envelope."""
        return max(2 * self._read_agreement()[2], ROOM)

    def shut_out(self, link: Link, connection: Connection) -> str | None:
        """Why a site is not let in, whatever it says; None if it is."""
        if link.via != "site":
            return None
        changed = _changed(self.kit / "local" / members.FILE)
        if changed != self._members[0]:
            self._members = (changed, members.read(self.kit))
        member = self._members[1].get(link.peer)
        if member is None or member.key != connection.get_conn_properties().get(PEER_KEY):
            return "its certificate is not the one that the coordinator signed last for this site"
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

    def refuse(self, sender: str, what: str, why: str) -> None:
        """Logs a refusal and writes it down; somebody who sends thousands does not fill the disk."""
        with self._lock:
            self._refused += 1
            count = self._refused
        if count <= LOGGED or count % 100 == 0:
            self.record("refused", sender, f"{what}: {why}")

    def record(self, event: str, sender: str, what: str) -> None:
        """Adds a line to the ledger or the list of events."""
        sender, what = printable(sender), printable(what)
        _log.warning("%s: %s: %s", event, sender, what)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "sender": sender,
            "what": what,
        }
        with contextlib.suppress(OSError, DiskFull):  # a full disk must not keep the door from closing
            files.append_line(self.kit / (EVENTS if self.is_server else LEDGER), json.dumps(line))

    def tell(self, site: str, sentence: str) -> None:
        """Sends a notice to a site's main process."""
        cell = CoreCell.ALL_CELLS.get(SERVER)
        if cell is not None:
            channel, topic = NOTICES
            message = Message(payload=sentence.encode())
            threading.Thread(
                target=cell.fire_and_forget, args=(channel, topic, protocol.root_of(site), message), daemon=True
            ).start()

    def _read_agreement(self) -> tuple[float, tuple[str, ...], int]:
        file = self.kit / "local" / "agreement.json"
        changed = _changed(file)
        if changed != self._agreed[0]:
            content = json.loads(file.read_text())
            self._agreed = (changed, tuple(content["sites"]), int(content["largest_message"]))
        return self._agreed


def install(kit: Path) -> Guard:
    """Closes this process: everything that NVFlare starts from now on in it is guarded."""
    guard = Guard(kit)
    os.environ["NVFLARE_INTERNAL_CONN_SCHEME"] = SCHEME
    os.environ["NVFLARE_ALLOW_ADHOC_CONNS"] = "false"
    os.environ["NVFLARE_STREAMING_MAX_BLOB_SIZE"] = str(guard.largest)
    communicator.driver_mgr.register(UnixDriver)
    grpc_driver.GRPC_DEFAULT_OPTIONS[:] = [
        ("grpc.max_send_message_length", FRAME),
        ("grpc.max_receive_message_length", FRAME),
    ]
    _guard_messages(guard)
    _guard_connections(guard)
    _guard_requests(guard)
    for launcher in (
        client_process_launcher.ClientProcessJobLauncher,
        server_process_launcher.ServerProcessJobLauncher,
    ):
        _guard_jobs(launcher, kit)
    return guard


def _guard_messages(guard: Guard) -> None:
    process: Callable[..., None] = CoreCell.process_message

    @wraps(process)
    def process_message(cell: CoreCell, endpoint: Any, connection: Connection, app_id: int, message: Message) -> None:
        if isinstance(connection, NullConnection):  # this process talks to itself
            process(cell, endpoint, connection, app_id, message)
            return
        fault = guard.fault_of(cell.my_info.fqcn, endpoint.name, connection, message)
        if fault is not None:
            guard.refuse(_sender(guard, connection, endpoint.name), _topic(message), fault)
        elif (message.get_header(protocol.CHANNEL), message.get_header(protocol.TOPIC)) == NOTICES:
            guard.record("notice", SERVER, bytes(message.payload or b"")[:1000].decode(errors="replace"))
        else:
            process(cell, endpoint, connection, app_id, message)

    def _add_adhoc_connector(cell: CoreCell, to_cell: str, url: str) -> None:
        guard.refuse(to_cell, "a new connection", f"it names the address {url}")

    CoreCell.process_message = process_message
    CoreCell._add_adhoc_connector = _add_adhoc_connector


def _guard_connections(guard: Guard) -> None:
    update: Callable[..., None] = ConnManager.update_endpoint

    @wraps(update)
    def update_endpoint(manager: ConnManager, sfm_conn: Any, data: dict[str, Any]) -> None:
        name, connection = str(data.get("endpoint_name", "")), sfm_conn.conn
        fault = guard.fault_of_connection(manager, connection, name)
        if fault is None:
            update(manager, sfm_conn, data)
            return
        guard.refuse(_sender(guard, connection, name), f"a connection as {name!r}", fault)
        close(connection, fault)

    def serve(servicer: Any, requests: Iterable[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """NVFlare's gRPC service; a connection that is closed from this side says why."""
        server = servicer.server
        properties = {"peer_addr": context.peer(), "local_addr": grpc_driver.get_address(server.connector.params)}
        names = context.auth_context().get("x509_common_name")
        if names:
            properties["peer_cn"] = names[0].decode()
            (pem,) = context.auth_context()["x509_pem_cert"]
            properties[PEER_KEY] = key_fingerprint(x509.load_pem_x509_certificate(pem).public_key())
        connection = grpc_driver.StreamConnection(grpc_driver.QQ(), server.connector, properties, "SERVER")
        server.driver.add_connection(connection)
        threading.Thread(target=connection.read_loop, args=(requests,), daemon=True).start()
        try:
            yield from connection.generate_output()
            if reason := getattr(connection, "refusal", None):
                context.set_code(grpc.StatusCode.PERMISSION_DENIED)
                context.set_details(reason)
        finally:
            connection.close()
            server.driver.close_connection(connection)

    read: Callable[..., None] = grpc_driver.StreamConnection.read_loop

    @wraps(read)
    def read_loop(connection: Any, frames: Iterable[Any]) -> None:
        def heard() -> Iterator[Any]:
            try:
                yield from frames
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.PERMISSION_DENIED:
                    guard.record("refused by the server", SERVER, error.details() or "")
                    guard.on_refusal(error.details() or "")
                raise

        read(connection, heard())

    ConnManager.update_endpoint = update_endpoint
    grpc_driver.Servicer.Stream = serve
    grpc_driver.StreamConnection.read_loop = read_loop


def _guard_requests(guard: Guard) -> None:
    ClientRequestProcessors.request_processors[:] = [
        each
        for each in ClientRequestProcessors.request_processors
        if set(each.get_topics()) <= protocol.SITE_REQUESTS | protocol.JOB_REQUESTS
    ]
    dispatch: Callable[..., Any] = FedAdminAgent._dispatch_request

    @wraps(dispatch)
    def _dispatch_request(agent: FedAdminAgent, message: Message) -> Any:
        request, origin = message.payload, str(message.get_header(protocol.ORIGIN))
        fault = fault_of_request(request, origin)
        if fault is None:
            return dispatch(agent, message)
        guard.refuse(origin, f"admin/{getattr(request, 'topic', '')}", fault)
        return new_cell_message({}, error_reply("refused by the site"))

    do: Callable[..., None] = ServerCommandRegister._do_command

    @wraps(do)
    def _do_command(register: ServerCommandRegister, connection: Any, command: str) -> None:
        name = str(command).partition(" ")[0].rpartition(".")[2]  # "job_mgmt.submit_job" too
        if name in protocol.COMMANDS:
            do(register, connection, command)
        else:
            guard.refuse(COORDINATOR, f"command {name}", "no run needs it")
            connection.append_error(f"{printable(name)} is not a command of this server")

    FedAdminAgent._dispatch_request = _dispatch_request
    ServerCommandRegister._do_command = _do_command


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


def _guard_jobs(launcher: Any, kit: Path) -> None:
    get: Callable[..., str] = launcher.get_command

    @wraps(get)
    def get_command(self: Any, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        _, _, module, *arguments = shlex.split(get(self, job_meta, fl_ctx))
        return shlex.join([sys.executable, "-u", "-m", "fedspray.deploy.occupant", str(kit), module, *arguments])

    launcher.get_command = get_command


def close(connection: Connection, reason: str) -> None:
    """Ends a connection from this side; where it is gRPC, the other end hears why."""
    connection.refusal = printable(reason)
    connection.close()


def _sender(guard: Guard, connection: Connection, cell: str) -> str:
    link = guard.link(connection, cell)
    address = connection.get_conn_properties().get("peer_addr", "?")
    return f"{link.peer if link else 'somebody'} ({address})"


def _topic(message: Message) -> str:
    return str(Mail.read(message.headers or {}, 0))


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0.0
