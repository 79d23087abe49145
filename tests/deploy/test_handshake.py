"""A process says that it is ready only when it knows who calls: what comes at once isn't lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from fedspray.deploy.network import patches

OTHERS = (
    (ConnManager, "update_endpoint"),
    (SfmConnection, "send_handshake"),
    (grpc_driver.Servicer, "Stream"),
    (grpc_driver.StreamConnection, "read_loop"),
)


class Line(Connection):  # type: ignore[misc]
    """Keeps what is sent: the kind of each frame, and whether its sender knew the other end."""

    def __init__(self) -> None:
        super().__init__(ConnectorInfo("line", None, {}, Mode.PASSIVE, 0, 0, False, threading.Event()))
        self.sent: list[tuple[int, bool]] = []
        self.end = SfmConnection(self, Endpoint("server"))

    def get_conn_properties(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.sent.append((-1, False))

    def send_frame(self, frame: bytes) -> None:
        self.sent.append((Prefix.from_bytes(frame).type, self.end.sfm_endpoint is not None))


def greeted(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What a guarded server answers to a site's HELLO."""
    for owner, name in OTHERS:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    guard = SimpleNamespace(fault_of_connection=lambda *_: fault, is_server=False, refuse=lambda *_: None)
    guard.is_news = lambda *_: True
    monkeypatch.setattr(patches, "_sender", lambda *_: "")
    monkeypatch.setattr(patches, "close", lambda connection, _: connection.close())
    patches._guard_connections(guard)  # type: ignore[arg-type]
    frames: list[bytes] = []
    caller = SimpleNamespace(send_frame=frames.append, connector=None)
    SfmConnection(caller, Endpoint("north")).send_handshake(Types.HELLO)
    line = Line()
    ConnManager(Endpoint("server")).process_frame_task(line.end, frames[0])
    return line.sent


def test_ready_is_said_to_whom_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert greeted(None, monkeypatch) == [(Types.READY, True)]


def test_ready_is_never_said_to_whom_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert greeted("a stranger", monkeypatch) == [(-1, False)]
