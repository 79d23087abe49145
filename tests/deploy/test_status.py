"""What `fedspray site status` believes: the site's process if it is fresh, and the server's own answer."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from fedspray.data.federation import Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import last_answers
from fedspray.deploy.locks import PID_FILE, Lock
from fedspray.deploy.network.protocol import REPLACED
from fedspray.deploy.provisioning.kits import Address, make_kits
from fedspray.deploy.site.status import FILE, Presence, ask_server, look, server_of
from fedspray.errors import InputError
from fedspray.experiment import RunSettings

LONG_AGO = (datetime.now(UTC) - timedelta(seconds=100)).isoformat()


def make(folder: Path, port: int) -> Path:
    agreement = Agreement.between("toy", ("north", "south"), Task(5, 3), RunSettings())
    make_kits(folder, agreement, Address("localhost", port), keys_for=("north",))
    return folder / "kits"


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("localhost", 0)) as made:
        yield made


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory, listener: socket.socket) -> Path:
    return make(tmp_path_factory.mktemp("project"), listener.getsockname()[1])


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("foreign"), 1)


@contextmanager
def serving(listener: socket.socket, server: Path, clients: Path) -> Iterator[None]:
    """A server with one kit's certificate, which lets in one authority's clients, once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "startup" / "server.crt", server / "startup" / "server.key")
    context.load_verify_locations(clients / "startup" / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        plain = listener.accept()[0]
        try:
            with context.wrap_socket(plain, server_side=True) as stream:
                stream.recv(100)
                stream.sendall(b"hello")
                stream.recv(100)
        except OSError:
            plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join()


def test_a_server_that_lets_the_site_in(listener: socket.socket, kits: Path) -> None:
    with serving(listener, kits / "server", kits / "server"):
        assert ask_server(kits / "north") == ("connected", None)


def test_a_server_of_another_authority(listener: socket.socket, kits: Path, foreign: Path) -> None:
    with serving(listener, foreign / "server", foreign / "server"):
        state, reason = ask_server(kits / "north")
    assert state == "refused"
    assert "not the server" in str(reason)


def test_a_server_that_does_not_know_the_sites_authority(listener: socket.socket, kits: Path, foreign: Path) -> None:
    with serving(listener, kits / "server", foreign / "server"):
        state, reason = ask_server(kits / "north")
    assert state == "refused"
    assert "does not accept" in str(reason)


def test_no_server(foreign: Path) -> None:
    state, reason = ask_server(foreign / "north")
    assert state == "unreachable"
    assert str(reason).startswith("localhost:1 does not answer")


def test_a_kit_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text("{}")
    with pytest.raises(InputError, match="does not say"):
        ask_server(tmp_path)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, "connected"),
        ({"state": "refused", "reason": "disabled", "time": LONG_AGO}, "refused"),
        ({"state": "connecting"}, "connecting"),
        ({"pid": 1}, "connecting"),
        ({"time": LONG_AGO}, "connecting"),
    ],
)
def test_a_process_that_is_connected_says_so_again_and_again(
    listener: socket.socket, kits: Path, told: dict[str, Any], found: str
) -> None:
    kit = kits / "north"
    assert look(kit)["state"] == "stopped"
    lock = Lock(kit / PID_FILE)
    lock.acquire(1)
    try:
        Presence(kit).connected()
        content = json.loads((kit / FILE).read_text())
        (kit / FILE).write_text(json.dumps({**content, **told}))
        with serving(listener, kits / "server", kits / "server"):
            seen = look(kit)
    finally:
        lock.release()
    assert (seen["state"], seen["reason"], seen["pid"]) == (found, told.get("reason"), os.getpid())
    host, port = server_of(kit)
    assert (seen["server"], seen["since"]) == (f"{host}:{port}", content["since"])
    assert seen["last_contact"] == told.get("time", content["time"])


def test_what_is_written(tmp_path: Path) -> None:
    presence = Presence(tmp_path)

    def written() -> tuple[str, str | None]:
        content = json.loads((tmp_path / FILE).read_text())
        assert content["pid"] == os.getpid()
        return content["state"], content["reason"]

    assert written() == ("connecting", None)
    presence.connected()
    assert written() == ("connected", None)
    presence.lost()
    assert written() == ("connecting", None)
    presence.refused("no\x1b[31m")
    presence.lost()
    assert written() == ("refused", "no [31m"), "a refusal stays the last word"
    presence.connected()
    assert written() == ("connected", None)


def test_last_answers(tmp_path: Path) -> None:
    assert last_answers(tmp_path) == {}
    lines: list[dict[str, Any]] = [
        {"run": "a", "seed": 0, "round": number, "time": "now", "bytes": 1, "fields": {}} for number in (1, 2)
    ]
    lines += [{**lines[0], "run": "b\x1b", "seed": 1, "round": 4}, {**lines[0], "seed": None, "round": None}]
    lines += [{"event": "refused", "time": "now"}]
    (tmp_path / "ledger.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"run": "a", "rou')
    answer = {"seed": 0, "round": 2, "time": "now"}
    assert last_answers(tmp_path) == {"a": answer, "b": {"seed": 1, "round": 4, "time": "now"}}


def test_status_imports_nothing_heavy(kits: Path) -> None:
    code = "import sys; from fedspray.cli.main import run_command; "
    code += f"code = run_command(['site', 'status', {str(kits / 'north')!r}]); "
    code += "print(code, [name for name in ('nvflare', 'torch', 'numpy') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "3 []"


def test_a_disk_that_is_full_does_not_end_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presence = Presence(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        presence.connected()
    assert json.loads((tmp_path / FILE).read_text())["state"] == "connecting"
    presence.connected()
    assert json.loads((tmp_path / FILE).read_text())["state"] == "connected"


def full(stream: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_site_whose_key_was_replaced_is_told_apart_and_knows_since_when(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence = Presence(kits / "north")
    presence.connected()
    first = json.loads((kits / "north" / FILE).read_text())
    monkeypatch.setattr("fedspray.deploy.site.status._now", lambda: "later")
    presence.connected()
    again = json.loads((kits / "north" / FILE).read_text())
    assert (again["since"], again["time"]) == (first["since"], "later")
    presence.refused("the coordinator disabled this site")
    assert json.loads((kits / "north" / FILE).read_text())["state"] == "refused"
    presence.refused(REPLACED)
    assert json.loads((kits / "north" / FILE).read_text())["state"] == "replaced"
