"""Certificates: NVFlare's own, except that a site may keep its private key to itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Participant
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.utils import serialize_cert

from fedspray.deploy.agreement import check_name
from fedspray.errors import InputError

KEY, REQUEST, AUTHORITY = "client.key", "client.csr", "rootCA.pem"
MOMENT = "%Y-%m-%d %H:%M UTC"


class KeepingCertBuilder(CertBuilder):  # type: ignore[misc]
    """NVFlare's certificate builder, which also signs the requests of sites that made their own keys."""

    def __init__(self, requests: Mapping[str, Path], valid_days: int) -> None:
        super().__init__(root_valid_days=valid_days)
        self._requests = {name: read_request(path, name) for name, path in requests.items()}

    def _build_write_cert_pair(self, participant: Participant, base_name: str, ctx: ProvisionContext) -> None:
        request = self._requests.get(participant.name)
        if request is None:
            super()._build_write_cert_pair(participant, base_name, ctx)
            return
        now = datetime.now(UTC)
        certificate = self._generate_cert(
            participant.subject,
            participant.org,
            self.issuer,
            self.pri_key,
            request.public_key(),
            not_valid_before=now,
            not_valid_after=min(self.root_cert.not_valid_after_utc, now + timedelta(days=self.root_valid_days)),
        )
        folder = Path(ctx.get_kit_dir(participant))
        (folder / f"{base_name}.crt").write_bytes(serialize_cert(certificate))
        (folder / AUTHORITY).write_bytes(self.serialized_cert)


def make_request(folder: Path, name: str) -> Path:
    """Makes a private key, which stays in ``folder``, and a certificate request to send to the coordinator."""
    check_name("site", name)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (KEY, REQUEST):
        if (folder / file).exists():
            raise InputError(f"{folder / file} exists already: choose another folder")
    key = rsa.generate_private_key(public_exponent=65537, key_size=3072)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    (folder / KEY).touch(mode=0o600)
    (folder / KEY).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (folder / REQUEST).write_bytes(request.public_bytes(serialization.Encoding.PEM))
    return folder / REQUEST


def read_request(path: Path, name: str) -> x509.CertificateSigningRequest:
    """A site's request, after checking that its maker has the key and asks for the site's own name."""
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not a certificate request ({error})") from None
    asked = common_name(request.subject)
    if asked is None:
        raise InputError(f"{path} asks for a certificate without a name (CN), but must be for {name!r}")
    if asked != name:
        raise InputError(f"{path} asks for a certificate for {asked!r}, but must be for {name!r}")
    if not request.is_signature_valid:
        raise InputError(f"{path} is not signed with its own key")
    return request


def common_name(subject: x509.Name) -> str | None:
    """The name that a certificate is for, if it has any."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else None


def describe(kit: Path) -> dict[str, Any]:
    """Whose a site's certificate is and how long; key, certificate and authority must belong together."""
    startup = kit / "startup"
    certificate, authority = _read(startup / "client.crt"), _read(startup / AUTHORITY)
    if not (startup / KEY).is_file():
        raise InputError(
            f"{startup / KEY} is missing: put the private key there that the certificate request was made with"
        )
    (startup / KEY).chmod(0o600)  # unpacking may have made it readable for others
    if _public_key(startup / KEY) != certificate.public_key():
        raise InputError(f"{startup / KEY} is not the key of {startup / 'client.crt'}")
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:
        raise InputError(f"{startup / 'client.crt'} was not issued by {startup / AUTHORITY}") from None
    check_dates(kit)
    return {
        "name": common_name(certificate.subject),
        "valid_until": certificate.not_valid_after_utc.isoformat(timespec="seconds"),
        "days_left": (certificate.not_valid_after_utc - datetime.now(UTC)).days,
    }


def check_dates(kit: Path) -> None:
    """Refuses a kit of a server, a site or the coordinator whose certificates are not valid now."""
    startup, now = kit / "startup", datetime.now(UTC)
    own = startup / "server.crt"
    for file in (own if own.is_file() else startup / "client.crt", startup / AUTHORITY):
        certificate = _read(file)
        if certificate.not_valid_after_utc < now:
            raise InputError(
                f"{file} ended on {certificate.not_valid_after_utc:{MOMENT}}, so nobody accepts it any more: "
                "the coordinator has to make a new project and send new kits"
            )
        if certificate.not_valid_before_utc > now:
            raise InputError(
                f"{file} is valid from {certificate.not_valid_before_utc:{MOMENT}} on, but it is {now:{MOMENT}} here: "
                "set this machine's clock right"
            )


def _read(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise InputError(f"{file} is not a certificate that can be read ({error})") from None


def _public_key(file: Path) -> Any:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), password=None).public_key()
    except TypeError:
        raise InputError(f"{file} has a passphrase, but must be a private key without one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{file} is not a private key in PEM format") from None
