"""A site's way to the server through an HTTP proxy of its organisation, by CONNECT.

gRPC, which carries the run, does it itself, by what `environment` gives its process; `connect` does it for
`fedspray site status` and `check`. The proxy sees TLS between site and server, and can read nothing.
"""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedspray import stored
from fedspray.deploy import kinds
from fedspray.errors import InputError, printable

MOST = 1 << 16
"""Bytes of a proxy's answer that are read."""


def checked(url: str) -> str:
    """The address of a proxy, if it is one."""
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and parts.hostname and parts.port and parts.path in ("", "/") and not parts.query
    except ValueError:
        good = False
    if not good:
        raise InputError(f"{_hidden(url)} is not a proxy: give http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")
    return url.rstrip("/")


def of(kit: Path) -> str | None:
    """The proxy that a site's kit names."""
    found = stored.read(kit / "local" / "site.json", kinds.SiteCard).get("proxy")
    return None if found is None else checked(found)


def environment(proxy: str | None) -> dict[str, str]:
    """What makes gRPC go through a proxy, whatever else the environment says."""
    return {} if proxy is None else {"grpc_proxy": proxy, "no_grpc_proxy": ""}


def connect(proxy: str | None, host: str, port: int, timeout: float) -> socket.socket:
    """A connection to the server, through the proxy if there is one."""
    if proxy is None:
        return socket.create_connection((host, port), timeout=timeout)
    parts = urlsplit(proxy)
    assert parts.hostname
    stream = socket.create_connection((parts.hostname, parts.port), timeout=timeout)
    try:
        said = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            said += f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"
        stream.sendall(f"{said}\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < MOST:
            part = stream.recv(1)  # not a byte more: what follows belongs to the server
            if not part:
                break
            answer += part
        first = answer.split(b"\r\n")[0].decode(errors="replace")
        if first.split(" ")[1:2] != ["200"]:
            raise ConnectionError(f"the proxy {parts.hostname}:{parts.port} says {printable(first) or 'nothing'}")
    except BaseException:
        stream.close()
        raise
    return stream


def _hidden(url: str) -> str:
    """An address without its password."""
    start, at, rest = url.rpartition("@")
    return f"{start.partition('//')[0]}//…@{rest}" if at else url
