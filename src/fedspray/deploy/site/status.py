"""Whether a site is connected: what its process writes down, and what anybody can ask without it.

::

    KIT/status.json    written by the site's main process: `pid`; `state` ("connecting", "connected", "refused" or
                       "replaced") and `since` when; `reason`, the server's words; `time` of the server's last answer

Nothing here imports torch, so that `fedspray site status` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from fedspray import files, stored
from fedspray.deploy import kinds
from fedspray.deploy.locks import PID_FILE, holder
from fedspray.deploy.network.protocol import REPLACED
from fedspray.deploy.provisioning.certificates import AUTHORITY, CERTIFICATE, KEY
from fedspray.deploy.site import proxy
from fedspray.errors import DiskFull, InputError, MissingDataError, printable
from fedspray.files import Json

FILE = "status.json"
SILENCE = 60.0
"""Seconds without an answer of the server after which a site is not taken for connected: six heartbeats."""
PATIENCE = 2.0
"""Seconds for the server to answer a status request."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How HTTP/2, and so gRPC, begins."""


class Presence:
    """Writes `status.json` in the site's main process.

    `state` is "connecting", "connected", "refused", or "replaced" by another key; `since` when, and `time` when the
    server answered last or the state changed.
    """

    def __init__(self, kit: Path) -> None:
        self._file, self._lock, self._state, self._since = kit / FILE, threading.Lock(), "", ""
        self._note("connecting")

    def connected(self) -> None:
        """The server answered."""
        self._note("connected")

    def lost(self) -> None:
        """It does not answer any more; a refusal stays the last word."""
        if self._state == "connected":
            self._note("connecting")

    def refused(self, reason: str) -> None:
        """The server said no."""
        self._note("replaced" if reason == REPLACED else "refused", printable(reason))

    def follow(self, cell: Any) -> None:
        """Listens to what the server answers to NVFlare's log-in and heartbeats, and to the end of the connection."""
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.cellnet.fqcn import FQCN
        from nvflare.private.defs import CellChannel, CellChannelTopic

        send = cell.send_request

        def send_and_note(*arguments: Any, **named: Any) -> Any:
            reply = send(*arguments, **named)
            topics = (CellChannelTopic.Register, CellChannelTopic.HEART_BEAT)
            if named.get("channel") == CellChannel.SERVER_MAIN and named.get("topic") in topics:
                code = reply.get_header(MessageHeaderKey.RETURN_CODE)
                if code == ReturnCode.OK:
                    self.connected()
                elif code in (ReturnCode.TIMEOUT, ReturnCode.TARGET_UNREACHABLE):
                    self.lost()
                else:
                    self.refused(str(reply.get_header(MessageHeaderKey.ERROR) or code))
            return reply

        def disconnected(agent: Any) -> None:
            if agent.endpoint.name == FQCN.ROOT_SERVER:
                self.lost()

        cell.send_request = send_and_note
        cell.core_cell.set_cell_disconnected_cb(disconnected)

    def _note(self, state: str, reason: str | None = None) -> None:
        now = _now()
        with self._lock, contextlib.suppress(OSError, DiskFull):  # a full disk must not end the connection
            self._since = self._since if state == self._state else now
            self._state = state
            content = {"pid": os.getpid(), "state": state, "since": self._since, "reason": reason, "time": now}
            files.write_json(self._file, content)


def watch(kit: Path) -> Presence:
    """Has the site's main process, which is about to become NVFlare's client, write `status.json`."""
    from nvflare.private.fed.client.communicator import Communicator

    presence, set_cell = Presence(kit), Communicator.set_cell

    def set_and_follow(communicator: Any, cell: Any) -> None:
        set_cell(communicator, cell)
        presence.follow(cell)

    Communicator.set_cell = set_and_follow
    return presence


def card_of(kit: Path) -> Path:
    """The file that says whose kit it is."""
    card = kit / "local" / "site.json"
    if card.is_file():
        return card
    if any(kit.glob("*.csr")):
        raise MissingDataError(f"{kit} has no certificate yet: fedspray site unpack {kit} ZIP")
    raise MissingDataError(f"{card} is missing: {kit} is not a site's start-up kit")


def site_name(kit: Path) -> str:
    """Whose kit it is."""
    return printable(stored.read(card_of(kit), kinds.SiteCard)["name"])


def benefits(kit: Path) -> dict[str, list[str]]:
    """For each run: whether federating helped this site, in a sentence for each seed. Nobody else learns it."""
    found: dict[str, list[str]] = {}
    for file in sorted((kit / "models").glob("*/seed-*.benefit.json")):
        if (said := stored.read(file, kinds.Benefit).get("said")) is not None:
            found.setdefault(file.parent.name, []).append(printable(said))
    return found


def server_of(kit: Path) -> tuple[str, int]:
    """Where a site's kit says that the server is."""
    file = kit / "startup" / "fed_client.json"
    try:
        host, _, port = files.read_json(file)["servers"][0]["service"]["target"].rpartition(":")
        return host, int(port)
    except (LookupError, TypeError, AttributeError, ValueError):
        raise InputError(f"{file} does not say where the server is: unpack the kit's zip file again") from None


def look(kit: Path, *, ask: bool = True) -> Json:
    """Whether a site is connected, to whom, and since when; with ``ask``, the server is asked too.

    Its `state` is "connected", "connecting", "unreachable" (the server is down), "refused", "replaced" (another key
    took its place) or "stopped"; `last_contact` is when the server answered it last.
    """
    pid, told = holder(kit / PID_FILE), Json()
    with contextlib.suppress(InputError):
        told = stored.read(kit / FILE, kinds.Status)
    known = {"server": ":".join(map(str, server_of(kit))), "last_contact": told.get("time"), "since": told.get("since")}
    if pid is None:
        return {"state": "stopped", "reason": None, "pid": None, "job_pids": [], **known, "since": told.get("time")}
    state, reason = ask_server(kit, proxy.of(kit)) if ask else ("connected", None)
    if state == "connected":  # we are; is the site's process too?
        state, reason = "connecting", None
        if told.get("pid") == pid and (told["state"] != "connected" or _age(told["time"]) < SILENCE):
            state, reason = told["state"], told["reason"]
    jobs: list[int] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        jobs = [job.pid for job in psutil.Process(pid).children(recursive=True)]
    return {"state": state, "reason": reason, "pid": pid, "job_pids": jobs, **known}


def ask_server(kit: Path, through: str | None = None) -> tuple[str, str | None]:
    """Whether the server lets this site's certificate in: "connected", or "unreachable" or "refused" and why."""
    startup, (host, port) = kit / "startup", server_of(kit)
    context = ssl.create_default_context(cafile=startup / AUTHORITY)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(startup / CERTIFICATE, startup / KEY)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            proxy.connect(through, host, port, PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as stream,
        ):
            stream.sendall(GREETING)
            if not stream.recv(1):  # else the server's first word, or its refusal of our certificate
                raise ConnectionResetError("it hung up")
    except ssl.SSLCertVerificationError as error:
        return "refused", f"{host}:{port} is not the server of this federation: {error.verify_message}"
    except (ssl.SSLError, ConnectionResetError) as error:
        return "refused", f"{host}:{port} does not accept this site's certificate ({error})"
    except OSError as error:
        return "unreachable", f"{host}:{port} does not answer ({error})"
    return "connected", None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _age(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
