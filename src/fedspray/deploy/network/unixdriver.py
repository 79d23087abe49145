"""NVFlare's transport between a process and its own job: a socket in the file system that only its owner can open.

NVFlare's default is a port on 127.0.0.1, which every user of the machine can connect to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import socketserver
import struct
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection

from fedspray.deploy.network.sockets import new_folder

SCHEME = "unix"
_log = logging.getLogger(__name__)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, driver: UnixDriver, connector: ConnectorInfo) -> None:
        self.driver, self.connector, self.ssl_context = driver, connector, None
        super().__init__(connector.params[DriverParams.PATH.value], ConnectionHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """The folder is closed to other users; the system is asked once more who is calling."""
        caller = owner_of(request)
        if caller != os.getuid():
            _log.error("user %s tried to connect to this process and was refused", caller)
        return caller == os.getuid()


class UnixDriver(BaseDriver):  # type: ignore[misc]
    """The scheme ``unix``."""

    def __init__(self) -> None:
        super().__init__()
        self._server: _Server | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        """Its name in addresses."""
        return [SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """Nothing needs to be encrypted that does not leave the system's memory."""
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: False}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """A new address, in a new folder that is closed to everybody else."""
        url = f"{SCHEME}://0{new_folder()}/job"
        return url, url

    def listen(self, connector: ConnectorInfo) -> None:
        """Serves until `shutdown`."""
        self._server = _Server(self, connector)
        self._server.serve_forever()

    def connect(self, connector: ConnectorInfo) -> None:
        """Talks to a process that listens, until one of the two ends."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(connector.params[DriverParams.PATH.value])
        connection = SocketConnection(stream, connector)
        self.add_connection(connection)
        connection.read_loop()
        self.close_connection(connection)

    def shutdown(self) -> None:
        """Ends all connections and removes the socket."""
        self.close_all()
        if self._server is not None:
            self._server.shutdown()
            with contextlib.suppress(OSError):
                shutil.rmtree(Path(str(self._server.server_address)).parent)


def owner_of(stream: socket.socket) -> int:
    """The user at the other end, as the system knows it."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])
