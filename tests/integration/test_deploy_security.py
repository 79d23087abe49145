"""Who and what is turned away, tried against a running federation."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.lighter.utils import Identity

from fedspray import build_federation, files
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import CONNECTED, LOST, STARTED
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.driver import Driver
from fedspray.deploy.operations.local import LocalFederation
from fedspray.deploy.operations.session import ENDED, AdminSession, Unreachable
from fedspray.deploy.provisioning import certificates
from fedspray.deploy.provisioning.authority import Authority
from fedspray.deploy.provisioning.kits import ADMIN, Address, make_kits, write_job
from fedspray.deploy.site.kit import Site
from fedspray.experiment import RunSettings
from fedspray.runs import store

pytestmark = pytest.mark.slow

SETTINGS = RunSettings(algorithm="fedspray", values={"rounds": 2, "min_clients": 1})


class Federation(LocalFederation):
    """A server and bank_00; bank_01 is not running."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, build_federation("banks", clients=2, nodes=200), SETTINGS, grace=5.0)
        self.kits = self.project.folder / "kits"

    def start(self) -> None:
        processes.start(self.kits / "server")
        processes.start(self.kits / "bank_00")
        deadline = time.monotonic() + 60
        while "bank_00" not in self.sites():
            assert time.monotonic() < deadline, "the federation did not start"
            time.sleep(0.5)

    def sites(self) -> set[str]:
        try:
            with AdminSession(self.kits / "coordinator") as session:
                return set(session.sites())
        except Unreachable:
            return set()

    def stop(self) -> None:
        processes.stop([kit for kit in self.kits.iterdir() if kit.name != "coordinator"], seconds=1.0)

    def job(self, folder: Path) -> Path:
        """A good job."""
        folder.mkdir(parents=True, exist_ok=True)
        return write_job(folder, "run", self.project.agreement(), 5.0, 1)

    def fate(self, job: Path, signer: Path | None = None) -> str:
        """What becomes of a job: the reason of its refusal, or its last status."""
        with AdminSession(self.kits / "coordinator") as session:
            if signer is not None:
                assert session._session is not None
                api = session._session.api
                api.client_key, api.client_cert = (str(signer / "startup" / f"client.{end}") for end in ("key", "crt"))
            try:
                name = session.submit(job)
            except Exception as error:
                return f"refused: {error}"
            deadline = time.monotonic() + 60
            while not session.status(name).startswith(ENDED):
                assert time.monotonic() < deadline, session.status(name)
                time.sleep(0.5)
            return session.status(name)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("secure") / "federation")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, federation: Federation) -> Path:
    """Kits with the same names and address, but of another authority."""
    folder = tmp_path_factory.mktemp("foreign")
    agreement = federation.project.agreement()
    make_kits(folder, agreement, federation.project.address, keys_for=agreement.roster.clients)
    return folder / "kits"


# ---- who may connect ----------------------------------------------------------------------------


def shake_hands(
    address: Address, startup: Path | None, authority: Path, highest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
) -> str:
    """The TLS version that the server agrees to, after it had the chance to refuse the client's certificate."""
    context = ssl.create_default_context(cafile=str(authority))
    context.maximum_version = highest
    context.set_alpn_protocols(["h2"])
    if startup is not None:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with (
        socket.create_connection((address.host, address.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as stream,
    ):
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        if not stream.recv(1):
            raise ConnectionResetError("the server closed the connection")
        return str(stream.version())


def test_a_site_is_let_in_over_tls_1_3(federation: Federation) -> None:
    startup = federation.kits / "bank_00" / "startup"
    assert shake_hands(federation.project.address, startup, startup / "rootCA.pem") == "TLSv1.3"


def test_tls_1_2_is_refused(federation: Federation) -> None:
    startup = federation.kits / "bank_00" / "startup"
    with pytest.raises(ssl.SSLError):
        shake_hands(federation.project.address, startup, startup / "rootCA.pem", ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("who", "config"), [("bank_01", "fed_client.json"), ("coordinator", "fed_admin.json")])
def test_sites_and_coordinator_speak_tls_1_3_alone(
    federation: Federation, tmp_path: Path, version: ssl.TLSVersion, who: str, config: str
) -> None:
    """They meet a server with the right certificate that speaks one version of TLS."""
    startup = federation.kits / "server" / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.set_alpn_protocols(["h2"])
    kit = tmp_path / who
    shutil.copytree(federation.kits / who, kit)
    with socket.create_server(("localhost", 0)) as listener:
        listener.settimeout(30)
        file, port = kit / "startup" / config, listener.getsockname()[1]
        file.write_text(file.read_text().replace(str(federation.project.address.port), str(port)))
        log_in = f"from fedspray.deploy.operations.session import *; AdminSession(Path({str(kit)!r})).__enter__()"
        command = processes.command(kit) if who == "bank_01" else [sys.executable, "-c", log_in]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with listener.accept()[0] as plain:
                if version == ssl.TLSVersion.TLSv1_2:
                    with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
                        context.wrap_socket(plain, server_side=True)
                else:
                    with context.wrap_socket(plain, server_side=True) as stream:
                        assert stream.version() == "TLSv1.3"
        finally:
            process.kill()
            process.wait()


def test_no_certificate(federation: Federation) -> None:
    authority = federation.kits / "bank_00" / "startup" / "rootCA.pem"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake_hands(federation.project.address, None, authority)


def test_a_certificate_of_a_foreign_authority(federation: Federation, foreign: Path) -> None:
    authority = federation.kits / "bank_00" / "startup" / "rootCA.pem"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake_hands(federation.project.address, foreign / "bank_00" / "startup", authority)
    with pytest.raises(Unreachable), AdminSession(foreign / "coordinator"):
        pass


def test_a_site_does_not_trust_a_foreign_server(federation: Federation, foreign: Path) -> None:
    startup = federation.kits / "bank_00" / "startup"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(federation.project.address, startup, foreign / "bank_00" / "startup" / "rootCA.pem")


def test_plain_text(federation: Federation) -> None:
    address = federation.project.address
    with socket.create_connection((address.host, address.port), timeout=5) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = stream.recv(1000)
        except (ConnectionError, TimeoutError):
            answer = b""
    assert b"HTTP" not in answer


def test_another_sites_name(federation: Federation, tmp_path: Path) -> None:
    """bank_00, with its own good certificate, says that it is bank_01."""
    impostor = tmp_path / "impostor"
    shutil.copytree(federation.kits / "bank_00" / "startup", impostor / "startup")
    shutil.copytree(federation.kits / "bank_00" / "local", impostor / "local")
    config = impostor / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace('"bank_00"', '"bank_01"'))
    replace(Site.open(impostor), name="bank_01").save()
    processes.start(impostor)
    try:
        for _ in range(8):
            time.sleep(1)
            assert "bank_01" not in federation.sites()
        log = (impostor / processes.LOG_FILE).read_text()
    finally:
        processes.stop([impostor], seconds=1.0)
    assert "Connection" in log, "the impostor did try"


# ---- what may be run ----------------------------------------------------------------------------


def add_code(job: Path, marker: Path) -> None:
    """Code of the job's own, started at the site."""
    (job / "app" / "custom").mkdir()
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    (job / "app" / "custom" / "evil.py").write_text(
        code + "from nvflare.apis.executor import Executor\nclass Evil(Executor):\n    def execute(self, *a): pass\n"
    )
    change_class(job, {"path": "evil.Evil", "args": {}})


def use_other_class(job: Path, marker: Path) -> None:
    """A class that is installed everywhere, but not ours."""
    change_class(job, {"path": "subprocess.Popen", "args": {"args": ["touch", str(marker)]}})


def change_class(job: Path, executor: dict[str, Any]) -> None:
    file = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    content["executors"][0]["executor"] = executor
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("change", [add_code, use_other_class])
def test_nothing_but_our_class_runs(federation: Federation, tmp_path: Path, change: Any) -> None:
    job = federation.job(tmp_path / "job")
    change(job, tmp_path / "marker")
    fate = federation.fate(job)
    assert fate.startswith("refused") or "COMPLETED" not in fate
    assert not (tmp_path / "marker").exists()


def loosen(kit: Path, classes: list[str]) -> None:
    """Allows the coordinator everything at a kit, and jobs some classes; code of their own is then allowed too."""
    resources = json.loads((kit / "local" / "resources.json").read_text())
    del resources["app_validator"]
    (kit / "local" / "resources.json").write_text(json.dumps({**resources, "class_allow_list": classes}))
    policy = {"format_version": "1.0", "permissions": {"project_admin": "any"}}
    (kit / "local" / "authorization.json").write_text(json.dumps(policy))


def test_a_job_that_a_site_signed(federation: Federation, tmp_path: Path) -> None:
    """bank_01's own good certificate, our own class, the right agreement."""
    fate = federation.fate(federation.job(tmp_path / "job"), signer=federation.kits / "bank_01")
    assert fate.startswith("refused") or "COMPLETED" not in fate
    events = files.read_lines(federation.kits / "server" / "events.jsonl")
    assert any("signed by 'bank_01'" in line["what"] for line in events)


def test_sites_refuse_even_if_the_server_does_not(tmp_path: Path) -> None:
    """The coordinator's machine is in bad hands: its policies allow everything."""
    federation = Federation(tmp_path / "federation")
    loosen(federation.kits / "server", ["*"])
    try:
        federation.start()
        for change in (add_code, use_other_class):
            job = federation.job(tmp_path / change.__name__)
            change(job, tmp_path / "marker")
            fate = federation.fate(job)
            assert fate.startswith("refused") or "COMPLETED" not in fate
            assert not (tmp_path / "marker").exists()
        fate = federation.fate(federation.job(tmp_path / "signed"), signer=federation.kits / "bank_01")
        assert fate.startswith("refused") or "COMPLETED" not in fate
        lines = files.read_lines(federation.kits / "bank_00" / "ledger.jsonl")
        assert {line.get("event") for line in lines} - {STARTED, CONNECTED, LOST} == {"refused"}, "no job was started"
        assert "signed by 'bank_01'" in lines[-1]["what"]
        with AdminSession(federation.kits / "coordinator") as session:
            assert session._session is not None
            for command in ("ls bank_00", "cat bank_00 local/site.json", "shutdown client bank_00"):
                said = str(session._session.api.do_command(command))
                assert "not a command" in said, said
        assert "bank_00" in federation.sites()
    finally:
        federation.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("change", [add_code, use_other_class])
def test_the_tests_above_can_fail(tmp_path: Path, change: Any) -> None:
    """Where a site does allow it, the very same jobs do leave their mark."""
    federation = Federation(tmp_path / "federation")
    loosen(federation.kits / "server", ["*"])
    loosen(federation.kits / "bank_00", ["*"])
    try:
        federation.start()
        job = federation.job(tmp_path / "job")
        change(job, tmp_path / "marker")
        with AdminSession(federation.kits / "coordinator") as session:
            session.submit(job)
        deadline = time.monotonic() + 60  # the job itself waits for the other site, which does not take part
        while not (tmp_path / "marker").exists():
            assert time.monotonic() < deadline, "the job left no mark"
            time.sleep(0.5)
    finally:
        federation.stop()


def test_a_job_for_another_agreement(federation: Federation, tmp_path: Path) -> None:
    agreement = federation.project.agreement()
    other = Agreement(agreement.roster, replace(agreement.settings, algorithm="fedavg"))
    (tmp_path / "job").mkdir()
    assert "COMPLETED" not in federation.fate(write_job(tmp_path / "job", "run", other, 5.0, 1))


@pytest.mark.parametrize(
    "role",
    ["lead", "project_admin", *(pytest.param(role, marks=pytest.mark.nightly) for role in ("member", "org_admin"))],
)
def test_other_users_are_not_let_in(federation: Federation, role: str) -> None:
    user = f"{role}@fedspray.org"
    with pytest.raises(Unreachable), AdminSession(add_user(federation, user, role), user):
        pass


def add_user(federation: Federation, user: str, role: str) -> Path:
    """A kit for another user, signed by the federation's own authority."""
    kit, key = federation.kits / user, certificates.new_key()
    shutil.copytree(federation.kits / "coordinator", kit)
    (kit / "startup" / "client.key").unlink()
    certificates.write_key(kit / "startup" / "client.key", key)
    issued = Authority.load(federation.project.folder / "ca").issue(Identity(user, "another", role), key.public_key())
    (kit / "startup" / "client.crt").write_bytes(issued)
    config = kit / "startup" / "fed_admin.json"
    config.write_text(config.read_text().replace(ADMIN, user))
    return kit


# ---- what an eavesdropper sees ------------------------------------------------------------------


class Tap:
    """Passes bytes on to a port, and keeps them."""

    def __init__(self, target: Address) -> None:
        self.heard = bytearray()
        self._target, self._listener = target, socket.create_server(("localhost", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection((self._target.host, self._target.port))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(a, b), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with source, sink:
            try:
                while data := source.recv(65536):
                    self.heard += data
                    sink.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


def test_an_eavesdropper_reads_nothing(federation: Federation) -> None:
    """bank_01 takes part in a run through a wire that is tapped."""
    tap = Tap(federation.project.address)
    kit = federation.kits / "bank_01"
    config = kit / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace(f":{federation.project.address.port}", f":{tap.port}"))
    processes.start(kit)
    try:
        result = Driver(federation.project, "run", tell=lambda _: None).drive()
    finally:
        processes.stop([kit], seconds=1.0)
        tap.close()
    assert "bank_01" in result["models"]
    sent = sum(line.get("bytes", 0) for line in map(json.loads, (kit / "ledger.jsonl").read_text().splitlines()))
    assert len(tap.heard) > sent > 10_000, "the run went through the tap"
    model, _ = store.read_tensors(kit / "models" / "run" / "seed-0" / "model.safetensors")
    weights = next(value for name, value in model.items() if name.endswith("embedding.weight"))
    secrets = [b"bank_01", b"class_proxies", b"num_train", b"evaluation.confusion", b"RunController"]
    secrets.append(weights.contiguous().numpy().tobytes()[:32])  # arrived with the last message
    for secret in secrets:
        assert secret not in tap.heard
