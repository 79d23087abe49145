"""Kits as the sites get them: hardened, complete, and checked before they are used."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from clocks import clock
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from nvflare.lighter.utils import sign_content
from secrets_of import OWN_KEYS, holders
from toys import ragged_federation

from fedspray.data.federation import Federation, Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.operations.runs import begin_run, check_certificates, last_run
from fedspray.deploy.provisioning import certificates, kits
from fedspray.deploy.provisioning.archive import unpack
from fedspray.deploy.provisioning.certificates import certificate_of, make_request
from fedspray.deploy.provisioning.federation import init_project, schema
from fedspray.deploy.provisioning.kits import CONTROLLER, EXECUTOR, Address, place_server, write_job
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.kit import Server
from fedspray.deploy.site.check import check_site
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError
from fedspray.experiment import RunSettings

SITES = ("client_00", "client_01", "client_02")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Federation]:
    """A project of three sites, of which the last made its own key, and their data."""
    folder = tmp_path_factory.mktemp("project")
    federation = ragged_federation()
    federation.save(folder / "data")
    (folder / "requests").mkdir()
    make_request(folder / "own", "client_02").rename(folder / "requests" / "client_02.csr")
    agreement = Agreement.between("toy", SITES, federation.task, RunSettings(values={"rounds": 2}))
    archives = init_project(
        folder / "toy",
        agreement,
        Address("localhost", 1),
        grace=5.0,
        organisations={},
        requests=folder / "requests",
        make_keys=True,
        valid_days=30,
    )
    zips, signed = folder / "toy" / "zips", folder / "requests" / "client_02.csr"
    assert archives == {zips / f"{site}.zip": signed if site == "client_02" else None for site in SITES}
    return folder, federation


@pytest.fixture
def unpacked(made: tuple[Path, Federation], tmp_path: Path) -> Path:
    """The sites' kits, in folders of their own."""
    shutil.copytree(made[0] / "own", tmp_path / "toy-client_02")
    for site in SITES:
        assert unpack(made[0] / "toy" / "zips" / f"{site}.zip", tmp_path / f"toy-{site}").name == site
    return tmp_path


def open_site(unpacked: Path, name: str, made: tuple[Path, Federation]) -> Site:
    return replace(Site.open(unpacked / f"toy-{name}"), data=made[0] / "data" / "clients" / name)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_kit_allows_one_class_and_three_rights(made: tuple[Path, Federation], unpacked: Path) -> None:
    local = unpacked / "toy-client_00" / "local"
    resources = read(local / "resources.json")
    assert resources["class_allow_list"] == [EXECUTOR]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert "site_log_streamer" not in {part["id"] for part in resources["components"]}
    rights = read(local / "authorization.json")["permissions"]
    assert set(rights) == {"project_admin"}
    granted = {right for right, to in rights["project_admin"].items() if to != "none"}
    assert granted == {"submit_job", "manage_job", "view"}
    assert not list((unpacked / "toy-client_00").rglob("*.sh"))
    server = made[0] / "toy" / "kits" / "server" / "local"
    assert read(server / "resources.json")["class_allow_list"] == [CONTROLLER]
    assert "/tmp/nvflare" not in (server / "resources.json").read_text()
    assert read(server / "authorization.json")["permissions"]["project_admin"]["byoc"] == "none"


def test_each_private_key_is_in_one_place(made: tuple[Path, Federation], unpacked: Path) -> None:
    assert holders(made[0] / "toy") == [*OWN_KEYS, "zips/client_00.zip", "zips/client_01.zip"]
    for site in SITES:
        assert holders(unpacked / f"toy-{site}") == ["startup/client.key"]


def test_files_are_for_their_owner_alone(made: tuple[Path, Federation], unpacked: Path) -> None:
    for folder in (made[0] / "toy", unpacked / "toy-client_00", made[0] / "own"):
        for path in (folder, *folder.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_the_authority_is_secret_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(workshop: Path, *rest: Any) -> Path:
        files = [tmp_path / "ca", tmp_path / "kits", workshop, tmp_path / "ca" / "rootCA.key"]
        seen.extend(file.stat().st_mode & 0o777 for file in files)
        raise InputError("enough")

    monkeypatch.setattr(kits, "_provision", look)
    agreement = Agreement.between("toy", SITES, Task(5, 3), RunSettings())
    with pytest.raises(InputError, match="enough"):
        kits.make_kits(tmp_path, agreement, Address("localhost", 1), keys_for=SITES)
    assert seen == [0o700, 0o700, 0o700, 0o600]


def test_every_key_is_rsa_3072(made: tuple[Path, Federation], unpacked: Path) -> None:
    for file in (*(made[0] / "toy" / name for name in OWN_KEYS), *unpacked.glob("*/startup/client.key")):
        assert certificates.read_key(file).key_size == 3072


def test_why_keys_are_rsa() -> None:
    """With a key on a curve, NVFlare cannot sign jobs and log-ins. When it can, choose P-256."""
    for key in (ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()):
        with pytest.raises(TypeError):
            sign_content("a job", key)
    assert sign_content("a job", certificates.new_key())


def test_a_project_that_is_moved_knows_where_it_is(made: tuple[Path, Federation], tmp_path: Path) -> None:
    kit = tmp_path / "moved" / "kits" / "server"
    shutil.copytree(made[0] / "toy" / "kits" / "server", kit)
    assert Server.open(kit).runs == tmp_path / "moved" / "runs"
    assert str(tmp_path) not in (kit / "local" / "resources.json").read_text()
    (kit / "local" / "server.json").write_text(json.dumps({"runs": str(made[0] / "toy" / "runs")}))
    place_server(kit)
    assert Server.open(kit).runs == tmp_path / "moved" / "runs"
    text = (kit / "local" / "resources.json").read_text()
    assert str(made[0]) not in text
    assert str(kit / "storage" / "jobs") in text
    assert str(kit / "storage" / "snapshots") in text
    assert read(kit / "local" / "resources.json")["class_allow_list"] == [CONTROLLER]
    (kit / "local" / "resources.json").write_text("{}")
    with pytest.raises(InputError, match=r"resources\.json is not"):
        place_server(kit)
    (kit / "local" / "server.json").write_text("{}")
    with pytest.raises(InputError, match=r"server\.json .*: runs is missing"):
        Server.open(kit)


def test_a_job_is_json_that_names_a_run_and_an_agreement(made: tuple[Path, Federation], tmp_path: Path) -> None:
    agreement = Project.open(made[0] / "toy").agreement()
    write_job(tmp_path, "first", agreement, 5.0, 2)
    files = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    client = read(tmp_path / "app" / "config" / "config_fed_client.json")
    named = {"run": "first", "agreement": agreement.fingerprint()}
    assert client["executors"] == [{"tasks": ["round"], "executor": {"path": EXECUTOR, "args": named}}]


def test_a_good_site_is_found_good(made: tuple[Path, Federation], unpacked: Path) -> None:
    found = check_site(open_site(unpacked, "client_01", made))
    assert found["site"] == found["certificate"]["name"] == "client_01"
    assert found["nodes"] == 14
    assert sum(found["label_counts"]) == 14
    assert 28 <= found["certificate"]["days_left"] <= 30
    assert found["reachable"] is False
    assert found["bytes_up_per_round"] > 0
    assert "num_train" in found["fields_up"]
    assert not (unpacked / "toy-client_01" / "state").exists(), "a rehearsal leaves nothing"
    assert not (unpacked / "toy-client_01" / "ledger.jsonl").exists()


def test_a_site_with_its_own_key(made: tuple[Path, Federation], unpacked: Path) -> None:
    site = open_site(unpacked, "client_02", made)
    assert check_site(site)["certificate"]["name"] == "client_02"
    key = site.folder / "startup" / "client.key"
    key.chmod(0o640)
    with pytest.raises(InputError, match=rf"can be read by others, .*: chmod 600 {key}"):
        check_site(site)
    key.write_bytes((unpacked / "toy-client_00" / "startup" / "client.key").read_bytes())
    key.chmod(0o400)
    with pytest.raises(InputError, match="certificate for 'client_02'"):
        check_site(site)
    assert key.stat().st_mode & 0o777 == 0o400, "nobody asked for another mode"
    key.unlink()
    with pytest.raises(InputError, match=r"client\.key is missing"):
        check_site(site)


def spoil_certificate(site: Site, unpacked: Path) -> Site:
    other = unpacked / "toy-client_00" / "startup"
    for name in ("client.crt", "client.key"):
        (site.folder / "startup" / name).write_bytes((other / name).read_bytes())
    return site


def spoil_policy(site: Site, unpacked: Path) -> Site:
    file = site.folder / "local" / "resources.json"
    file.write_text(file.read_text().replace(f'"{EXECUTOR}"', '"*"'))
    return site


def unguarded(site: Site, unpacked: Path) -> Site:
    file = site.folder / "local" / "resources.json"
    file.write_text(json.dumps({**read(file), "app_validator": None}))
    return site


def spoil_kit(site: Site, unpacked: Path) -> Site:
    (site.folder / "startup" / "rootCA.pem").unlink()
    return site


def no_key(site: Site, unpacked: Path) -> Site:
    (site.folder / "startup" / "client.key").write_bytes(b"garbage\xff")
    return site


def locked_key(site: Site, unpacked: Path) -> Site:
    file = site.folder / "startup" / "client.key"
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption(b"secret")
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, locked)
    )
    return site


def garbled_certificate(site: Site, unpacked: Path) -> Site:
    (site.folder / "startup" / "client.crt").write_text("garbage")
    return site


def broken_policy(site: Site, unpacked: Path) -> Site:
    (site.folder / "local" / "resources.json").write_text('{"class_allow_list": [')
    return site


def no_policy(site: Site, unpacked: Path) -> Site:
    (site.folder / "local" / "resources.json").unlink()
    return site


def no_server(site: Site, unpacked: Path) -> Site:
    (site.folder / "startup" / "fed_client.json").write_text("{}")
    return site


def no_port(site: Site, unpacked: Path) -> Site:
    file = site.folder / "startup" / "fed_client.json"
    file.write_text(file.read_text().replace("localhost:1", "localhost:one"))
    return site


def other_features(site: Site, unpacked: Path) -> Site:
    from fedspray.data.graph import Graph

    file = unpacked / "other.npz"
    Graph.from_arrays([[0.0] * 4] * 3, [[0], [1]], [0, 1, 2]).to_npz(file)
    return replace(site, data=file)


def more_classes(site: Site, unpacked: Path) -> Site:
    from fedspray.data.graph import Graph

    file = unpacked / "other.npz"
    Graph.from_arrays([[0.0] * 5] * 3, [[0], [1]], [0, 1, 3]).to_npz(file)
    return replace(site, data=file)


def no_data(site: Site, unpacked: Path) -> Site:
    return replace(site, data=unpacked / "nowhere")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (spoil_certificate, "for 'client_00'.* for 'client_01'"),
        (spoil_policy, "allows other classes"),
        (unguarded, "takes jobs without"),
        (spoil_kit, "rootCA.pem is missing"),
        (no_key, r"client\.key is not"),
        (locked_key, r"client\.key has"),
        (garbled_certificate, r"client\.crt is not"),
        (broken_policy, r"resources\.json is not"),
        (no_policy, r"resources\.json is missing"),
        (no_server, r"fed_client\.json does not"),
        (no_port, r"fed_client\.json does not"),
        (other_features, "4 features per node"),
        (more_classes, "4 classes, but 3 are agreed"),
        (no_data, "does not exist"),
    ],
)
def test_what_is_wrong_is_said(made: tuple[Path, Federation], unpacked: Path, spoil: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_site(spoil(open_site(unpacked, "client_01", made), unpacked))


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        ({"threads": "x"}, "site.json .*: threads is 'x': .* integer"),
        ({"threads": 0}, "threads in .* is 0, but must be from 1 to 4096"),
        ({"threads": True}, "site.json .*: threads is True: .* integer"),
        ({"data": 7}, "site.json .*: data is 7: .* string"),
    ],
)
def test_a_site_card_that_is_wrong(unpacked: Path, card: dict[str, Any], complaint: str) -> None:
    file = unpacked / "toy-client_00" / "local" / "site.json"
    file.write_text(json.dumps({**read(file), **card}))
    with pytest.raises(InputError, match=complaint):
        Site.open(unpacked / "toy-client_00")


@pytest.mark.parametrize(
    ("days", "complaint"),
    [
        (400, r"client\.crt ended on .*no longer accepted"),
        (-400, r"client\.crt is valid from .* on, but it is .* here: correct this machine's clock"),
    ],
)
def test_certificates_of_another_time(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch, days: int, complaint: str
) -> None:
    certificate_of(unpacked / "toy-client_00")
    monkeypatch.setattr(certificates, "datetime", clock(days))
    with pytest.raises(InputError, match=complaint):
        certificate_of(unpacked / "toy-client_00")


@pytest.mark.parametrize(("kit", "file"), [("server", "server.crt"), ("coordinator", "client.crt")])
def test_the_coordinators_certificates_of_another_time(
    made: tuple[Path, Federation], monkeypatch: pytest.MonkeyPatch, kit: str, file: str
) -> None:
    project = Project.open(made[0] / "toy")
    check_certificates(project)
    monkeypatch.setattr(certificates, "datetime", clock(400))
    with pytest.raises(InputError, match=rf"kits/{kit}/startup/{file} ended on"):
        certificates.check_dates(project.folder / "kits" / kit)
    with pytest.raises(InputError, match="ended on"):
        check_certificates(project)


def test_a_request_without_a_name(made: tuple[Path, Federation], tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    (tmp_path / "client_00.csr").write_bytes(request.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(InputError, match="certificate without"):
        certificates.read_request(tmp_path / "client_00.csr")


def test_requests_must_be_for_sites_and_signed(made: tuple[Path, Federation], tmp_path: Path) -> None:
    make_request(tmp_path / "keys", "client_09").rename(tmp_path / "client_00.csr")
    agreement = Project.open(made[0] / "toy").agreement()
    more: dict[str, Any] = {"grace": 5.0, "organisations": {}, "requests": tmp_path}
    more |= {"make_keys": False, "valid_days": 30}
    with pytest.raises(InputError, match="certificate for 'client_09'"):
        init_project(tmp_path / "new", agreement, Address("localhost"), **more)
    (tmp_path / "client_00.csr").rename(tmp_path / "client_09.csr")
    with pytest.raises(InputError, match="no site"):
        init_project(tmp_path / "other", agreement, Address("localhost"), **more)
    with pytest.raises(InputError, match="exists already"):
        make_request(tmp_path / "keys", "client_09")


@pytest.mark.parametrize("change", [{"host": 7}, {"port": "x"}, {"grace": None}, {"grace": -1}, {"organisations": []}])
def test_a_project_card_that_is_wrong(made: tuple[Path, Federation], tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "project.json").write_text(json.dumps({**read(made[0] / "toy" / "project.json"), **change}))
    with pytest.raises(InputError, match=r"project\.json .*: \w+ is |grace time is -1"):
        Project.open(tmp_path)


def test_runs_have_names(made: tuple[Path, Federation]) -> None:
    project = Project.open(made[0] / "toy")
    with pytest.raises(InputError, match="no run yet"):
        last_run(project)
    assert begin_run(project, "first") == last_run(project) == "first"
    with pytest.raises(InputError, match="--attach"):
        begin_run(project, "first")
    with pytest.raises(InputError, match="not a run"):
        begin_run(project, "../first")


@pytest.mark.parametrize(("text", "names"), [("3", None), ("a,b, c", ("a", "b", "c")), ("FILE", ("a", "b", "c"))])
def test_schema(tmp_path: Path, text: str, names: tuple[str, ...] | None) -> None:
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    given = str(tmp_path / "names.txt") if text == "FILE" else text
    assert schema("7", given) == Task(7, 3, names, None)
    assert schema(given, "2") == Task(3, 2, None, names)


@pytest.mark.parametrize(
    ("features", "classes", "sentence"),
    [
        ("7", "a,", "least two names"),
        ("7", "1", "--classes is 1"),
        ("0", "2", "--features is 0"),
        ("-3", "2", "--features is '-3'"),
        ("nowhere.txt", "2", "--features is 'nowhere.txt'"),
        ("a,b,a", "2", "names 'a' twice"),
        ("99999999999999999999", "2", "--features is 99999999999999999999"),
        ("10000001", "2", "--features is 10000001"),
        ("9" * 5000, "2", "most 10,000,000"),
        ("000000000000", "2", "--features is 000000000000"),
        ("²", "2", "--features is '²'"),
    ],
)
def test_bad_schemas_are_refused(features: str, classes: str, sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        schema(features, classes)
    assert sentence in str(refusal.value)


def test_a_long_list_of_names_is_not_a_path() -> None:
    names = tuple(f"feature_{index}" for index in range(1000))
    assert schema(",".join(names), "2") == Task(1000, 2, None, names)
    with pytest.raises(InputError, match="least two names"):
        schema("x" * 5000, "2")


def test_files_that_are_no_lists_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights.bin").write_bytes(b"\xff\x00\xfe" * 9)
    with pytest.raises(InputError, match=r"--features is 'weights\.bin'"):
        schema("weights.bin", "2")
    Path("a,b").write_text("c\nd\ne\n")
    with pytest.raises(InputError, match="'a,b', which"):
        schema("3", "a,b")
    Path("3").write_text("c\nd\n")
    assert schema("3", "2") == Task(3, 2)
