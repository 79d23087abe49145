"""Signing: a project that is made before its sites have sent anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from secrets_of import OWN_KEYS, holders

from fedspray.data.federation import Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.provisioning import certificates
from fedspray.deploy.provisioning.archive import unpack
from fedspray.deploy.provisioning.certificates import certificate_of, make_request
from fedspray.deploy.provisioning.federation import init_project, sign
from fedspray.deploy.provisioning.kits import Address
from fedspray.deploy.provisioning.project import Project
from fedspray.errors import InputError
from fedspray.experiment import RunSettings

SITES = ("client_00", "client_01", "client_02")
CERTIFICATES = ("client.crt", "rootCA.pem")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    agreement = Agreement.between("toy", SITES, Task(5, 3), RunSettings(values={"rounds": 2}))
    more: dict[str, Any] = {"organisations": {"client_01": "West-Bank"}, "requests": None, "make_keys": False}
    assert init_project(tmp_path / "toy", agreement, Address("localhost", 1), grace=5, valid_days=9, **more) == {}
    return Project.open(tmp_path / "toy")


def test_request_sign_unpack(project: Project, tmp_path: Path) -> None:
    assert holders(project.folder) == OWN_KEYS
    assert project.without_certificate() == list(SITES)
    kit = tmp_path / "kit"
    archive = sign(project, make_request(kit, "client_01"))
    assert archive == project.folder / "zips" / "client_01.zip"
    assert holders(project.folder) == OWN_KEYS
    assert project.without_certificate() == ["client_00", "client_02"]
    assert unpack(archive, kit).name == "client_01"
    assert certificate_of(kit)["name"] == "client_01"
    assert Agreement.load(kit / "local").coordinator == project.coordinator_key()
    subject = certificates.read_certificate(kit / "startup" / "client.crt").subject
    assert subject.rfc4514_string() == "O=West_Bank,CN=client_01"
    ends = {certificates.read_certificate(kit / "startup" / name).not_valid_after_utc for name in CERTIFICATES}
    assert len(ends) == 1, "a certificate ends with its authority"


def test_what_was_amended_since_is_in_the_kit(project: Project, tmp_path: Path) -> None:
    new = replace(project.agreement(), settings=RunSettings(values={"rounds": 7}))
    project.take_on(new)
    unpack(sign(project, make_request(tmp_path / "kit", "client_01")), tmp_path / "kit")
    assert Agreement.load(tmp_path / "kit" / "local").fingerprint() == new.fingerprint()


def test_a_second_certificate_must_be_wanted(project: Project, tmp_path: Path) -> None:
    sign(project, make_request(tmp_path / "first", "client_01"))
    second = make_request(tmp_path / "second", "client_01")
    with pytest.raises(InputError, match="already: give --again"):
        sign(project, second)
    archive = sign(project, second, again=True)
    with pytest.raises(InputError, match=r"client\.key is not.*'client_01'"):
        unpack(archive, tmp_path / "first")
    assert sorted(file.name for file in (tmp_path / "first").iterdir()) == ["client_01.csr", "startup"]
    unpack(archive, tmp_path / "second")


def test_requests_that_are_not_signed(project: Project, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="client_00, client_01, client_02"):
        sign(project, make_request(tmp_path / "kit", "east"))
    with pytest.raises(InputError, match=r"nowhere\.csr is missing"):
        sign(project, tmp_path / "nowhere.csr")
    (tmp_path / "text.csr").write_text("please")
    with pytest.raises(InputError, match="not a certificate"):
        sign(project, tmp_path / "text.csr")
    assert project.without_certificate() == list(SITES)
    shutil.rmtree(project.folder / "ca")
    with pytest.raises(InputError, match=r"rootCA\.pem is missing"):
        sign(project, make_request(tmp_path / "another", "client_01"))


@pytest.mark.parametrize("bits", [0, 2048])
def test_keys_that_are_too_weak_or_of_another_kind(project: Project, tmp_path: Path, bits: int) -> None:
    key: Any = rsa.generate_private_key(65537, bits) if bits else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client_01")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    (tmp_path / "weak.csr").write_bytes(request.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(InputError, match="RSA with 3072 bits"):
        sign(project, tmp_path / "weak.csr")
