"""A small HTTP proxy that can CONNECT and nothing else; it prints its port, and then each request."""

from __future__ import annotations

import socket
import sys
import threading


def carry(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for each in (source, sink):
            each.close()


def serve(client: socket.socket, wanted: str | None) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        part = client.recv(1)
        if not part:
            return
        head += part
    lines = head.decode().split("\r\n")
    method, target, _ = lines[0].split(" ")
    print(method, target, flush=True)
    if wanted is not None and f"proxy-authorization: basic {wanted}".lower() not in (line.lower() for line in lines):
        client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        client.close()
        return
    host, _, port = target.rpartition(":")
    server = socket.create_connection((host, int(port)))
    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    threading.Thread(target=carry, args=(server, client), daemon=True).start()
    carry(client, server)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            threading.Thread(
                target=serve, args=(listener.accept()[0], sys.argv[1] if sys.argv[1:] else None), daemon=True
            ).start()
