"""Through a real proxy process: the status request, and gRPC with what a site's process gets."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fedspray.deploy.operations import processes
from fedspray.deploy.site import proxy
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError

PROXY = Path(__file__).with_name("connect_proxy.py")
CALL = (
    "import sys, grpc\nchannel = grpc.insecure_channel(sys.argv[1])\n"
    "grpc.channel_ready_future(channel).result(timeout=20)\n"
)


class Proxy:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen([sys.executable, str(PROXY), *arguments], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def asked(self) -> list[str]:
        self.process.kill()
        return self.process.communicate()[0].splitlines()


@pytest.fixture
def start() -> Iterator[Callable[..., Proxy]]:
    started: list[Proxy] = []

    def make(*arguments: str) -> Proxy:
        started.append(Proxy(*arguments))
        return started[-1]

    yield make
    for each in started:
        if each.process.stdout is not None and not each.process.stdout.closed:
            each.asked()


@pytest.fixture
def echo() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as stream:
                stream.sendall(stream.recv(5)[::-1])

        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]


def test_connect_goes_through_it(start: Callable[..., Proxy], echo: int) -> None:
    user = base64.b64encode(b"north:s3 cret").decode()
    through = start(user)
    with proxy.connect(f"http://north:s3%20cret@127.0.0.1:{through.port}", "127.0.0.1", echo, 5.0) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"olleh"
    assert through.asked() == [f"CONNECT 127.0.0.1:{echo}"]


def test_a_proxy_that_says_no(start: Callable[..., Proxy], echo: int) -> None:
    through = start("secret")
    with pytest.raises(ConnectionError, match=r"says HTTP/1\.1 407 Proxy Authentication Required"):
        proxy.connect(f"http://127.0.0.1:{through.port}", "127.0.0.1", echo, 5.0)


def test_grpc_goes_through_it(start: Callable[..., Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through = start()
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")  # the kit's own word counts more
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    Site(kit, "north", None, proxy=f"http://127.0.0.1:{through.port}").save()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        command = [sys.executable, "-c", CALL, f"127.0.0.1:{port}"]
        subprocess.run(command, check=True, timeout=60, env=processes.environment(kit))
    finally:
        server.stop(None)
    assert through.asked() == [f"CONNECT 127.0.0.1:{port}"]
    Site(kit, "north", None).save()
    assert processes.environment(kit) == {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    "url",
    ["", "proxy:3128", "https://proxy:3128", "http://proxy", "http://proxy:x", "http://a:pass@b:1/path", "http://[b"],
)
def test_what_is_no_proxy(url: str) -> None:
    with pytest.raises(InputError, match="is not a proxy: give http://HOST:PORT") as found:
        proxy.checked(url)
    assert "pass@" not in str(found.value)
