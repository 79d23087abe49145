"""Puts a `Guard` below NVFlare's own handlers: what it refuses, NVFlare never sees.

NVFlare checks rights only where the sender of a message asks for it, forwards messages from any site to any
other, opens connections to addresses that a message names, and lets a second process with a site's certificate
take the first one's place. `install` closes all of that, before NVFlare's main module is run.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from nvflare.app_common.job_launcher import client_process_launcher, server_process_launcher
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, NullConnection
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import JobFailureMsgKey
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server.fed_server import FederatedServer

from fedspray.deploy.ledger import CONNECTED, JOB_ENDED, LOST
from fedspray.deploy.network import protocol
from fedspray.deploy.network.guard import PEER_KEY, Guard, close, fault_of_request
from fedspray.deploy.network.protocol import COORDINATOR, NOTICES, SERVER
from fedspray.deploy.network.unixdriver import SCHEME, UnixDriver
from fedspray.deploy.provisioning.certificates import key_fingerprint
from fedspray.errors import printable

FRAME = 4 << 20
"""Bytes that arrive in one piece: longer messages come in pieces of 1 MiB."""


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
    _hear_refusals(guard)
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
            guard.refuse_message(_sender(guard, connection, endpoint.name), message, fault)
        elif (message.get_header(protocol.CHANNEL), message.get_header(protocol.TOPIC)) == NOTICES:
            guard.record("notice", SERVER, bytes(message.payload or b"")[:1000].decode(errors="replace"))
        else:
            process(cell, endpoint, connection, app_id, message)

    def _add_adhoc_connector(cell: CoreCell, to_cell: str, url: str) -> None:
        guard.refuse(to_cell, "a new connection", f"it names the address {url}")

    if not guard.is_server:  # a site's main process would tell of streams that come after its job's end: nobody listens
        ByteStreamer._forward_error_handler = lambda streamer, message, error: None
    CoreCell.process_message = process_message
    CoreCell._add_adhoc_connector = _add_adhoc_connector


def _guard_connections(guard: Guard) -> None:
    update, say = ConnManager.update_endpoint, _hold_ready()

    @wraps(update)
    def update_endpoint(manager: ConnManager, sfm_conn: Any, data: dict[str, Any]) -> None:
        name, connection = str(data.get("endpoint_name", "")), sfm_conn.conn
        fault = guard.fault_of_connection(manager, connection, name)
        if fault is None:
            update(manager, sfm_conn, data)
            if getattr(sfm_conn, "owes_ready", False):
                say(sfm_conn, Types.READY)
            if guard.is_server and name in guard.sites and not hasattr(connection, "site"):
                connection.site = name
                guard.record(CONNECTED, name, f"from {connection.get_conn_properties().get('peer_addr', '?')}")
            return
        sender = _sender(guard, connection, name)
        if guard.is_news(sender.rpartition(":")[0], name, fault):  # it tries again and again, each time from a new port
            guard.refuse(sender, f"a connection as {name!r}", fault)
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
        context.add_callback(lambda: _tell_loss(guard, connection))
        threading.Thread(target=connection.read_loop, args=(requests,), daemon=True).start()
        try:
            yield from connection.generate_output()
            if reason := getattr(connection, "refusal", None):
                context.set_code(grpc.StatusCode.PERMISSION_DENIED)
                context.set_details(reason)
        finally:
            connection.close()
            server.driver.close_connection(connection)

    ConnManager.update_endpoint = update_endpoint
    grpc_driver.Servicer.Stream = serve


def _hear_refusals(guard: Guard) -> None:
    """A site whose connection the server closes says why."""
    read: Callable[..., None] = grpc_driver.StreamConnection.read_loop

    @wraps(read)
    def read_loop(connection: Any, frames: Iterable[Any]) -> None:
        def heard() -> Iterator[Any]:
            try:
                yield from frames
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.PERMISSION_DENIED:
                    reason = error.details() or ""
                    if guard.is_news(SERVER, reason):
                        guard.record("refused by the server", SERVER, reason)
                    guard.on_refusal(reason)
                raise

        read(connection, heard())

    grpc_driver.StreamConnection.read_loop = read_loop


def _hold_ready() -> Callable[..., None]:
    """NVFlare says that it is ready before it knows who calls: a message that comes at once would be lost.

    Returns what says it.
    """
    say: Callable[..., None] = SfmConnection.send_handshake

    @wraps(say)
    def send_handshake(sfm_conn: Any, frame_type: int) -> None:
        if frame_type == Types.READY:
            sfm_conn.owes_ready = True
        else:
            say(sfm_conn, frame_type)

    SfmConnection.send_handshake = send_handshake
    return say


def _tell_loss(guard: Guard, connection: Any) -> None:
    if hasattr(connection, "site"):
        guard.record(LOST, connection.site, getattr(connection, "refusal", "it hung up, or its network failed"))


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

    fail: Callable[..., Any] = FederatedServer.process_job_failure

    @wraps(fail)
    def process_job_failure(server: FederatedServer, request: Message) -> Any:
        told = request.payload if isinstance(request.payload, dict) else {}
        if told.get(JobFailureMsgKey.CODE):
            site, code = str(request.get_header(protocol.ORIGIN)), told[JobFailureMsgKey.CODE]
            guard.record(JOB_ENDED, site, f"job {told.get(JobFailureMsgKey.JOB_ID)}: exit code {code}")
        return fail(server, request)

    FederatedServer.process_job_failure = process_job_failure
    FedAdminAgent._dispatch_request = _dispatch_request
    ServerCommandRegister._do_command = _do_command


def _guard_jobs(launcher: Any, kit: Path) -> None:
    get: Callable[..., str] = launcher.get_command

    @wraps(get)
    def get_command(self: Any, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        _, _, module, *arguments = shlex.split(get(self, job_meta, fl_ctx))
        return shlex.join([sys.executable, "-u", "-m", "fedspray.deploy.network.process", str(kit), module, *arguments])

    launcher.get_command = get_command


def _sender(guard: Guard, connection: Connection, cell: str) -> str:
    link = guard.link(connection, cell)
    address = connection.get_conn_properties().get("peer_addr", "?")
    return f"{link.peer if link else 'somebody'} ({address})"
