"""Keys, certificates and requests: how they are made, read and checked."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from fedspray.errors import InputError, MissingDataError
from fedspray.files import private_files

KEY, CERTIFICATE, AUTHORITY = "client.key", "client.crt", "rootCA.pem"
KEY_BITS = 3072
"""Keys are RSA because NVFlare signs jobs and log-ins with RSA's padding, which other keys do not have."""
WARN_DAYS = 30
"""Days before its end from which on every command warns of a certificate."""
MOMENT = "%Y-%m-%d %H:%M UTC"


def new_key() -> rsa.RSAPrivateKey:
    """A private key, as every member of a federation has one."""
    return rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)


def write_key(file: Path, key: rsa.RSAPrivateKey) -> None:
    """Writes a private key into a new file that its owner alone can read."""
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(content)


@private_files()
def make_request(kit: Path, name: str) -> Path:
    """Makes a private key, which stays in ``kit``, and a certificate request to send to the coordinator."""
    from fedspray.deploy.agreement import check_name

    check_name("site", name)
    key_file, file = kit / "startup" / KEY, kit / f"{name}.csr"
    for taken in (key_file, file):
        if taken.exists():
            raise InputError(f"{taken} exists already: choose another folder")
    (kit / "startup").mkdir(parents=True, exist_ok=True)
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    write_key(key_file, key)
    file.write_bytes(request.public_bytes(serialization.Encoding.PEM))
    return file


def read_request(file: Path) -> tuple[str, rsa.RSAPublicKey]:
    """The name that a site asks a certificate for, and its key, after checking that its maker has the private one."""
    try:
        request = x509.load_pem_x509_csr(file.read_bytes())
    except FileNotFoundError:
        raise MissingDataError(f"{file} is missing, but a certificate request is needed") from None
    except ValueError as error:
        raise InputError(f"{file} is not a certificate request ({error})") from None
    name = common_name(request.subject)
    if name is None:
        raise InputError(f"{file} asks for a certificate without a name (CN), but it must be a site's")
    if not request.is_signature_valid:
        raise InputError(f"{file} is not signed with its own key")
    key = request.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < KEY_BITS:
        raise InputError(
            f"{file} is for another kind of key, but must be for RSA with {KEY_BITS} bits or more: "
            "make it with fedspray site request"
        )
    return name, key


def common_name(subject: x509.Name) -> str | None:
    """The name that a certificate is for, if it has any."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else None


def key_of(certificate: x509.Certificate) -> rsa.RSAPublicKey:
    """The public key of a certificate of ours."""
    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise InputError(f"the certificate for {common_name(certificate.subject)!r} has another kind of key, not RSA")
    return key


def key_fingerprint(key: Any) -> str:
    """sha256 of a public key."""
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def file_fingerprint(file: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def federation_fingerprint(kit: Path, agreement: str) -> str:
    """Of the authority's key and an agreement's own fingerprint: the same at the coordinator and at every site."""
    authority = key_fingerprint(read_certificate(kit / "startup" / AUTHORITY).public_key())
    return hashlib.sha256(f"{authority} {agreement}".encode()).hexdigest()


def to_read_aloud(fingerprint: str) -> str:
    """The first half of a fingerprint in groups of four: two people compare it by phone."""
    return " ".join(fingerprint[i : i + 4] for i in range(0, 32, 4))


def certificate_of(kit: Path) -> dict[str, Any]:
    """Whose a site's certificate is and how long; key, certificate and authority must belong together."""
    startup = kit / "startup"
    certificate, authority = read_certificate(startup / CERTIFICATE), read_certificate(startup / AUTHORITY)
    check_key(startup / KEY, certificate)
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:
        raise InputError(f"{startup / CERTIFICATE} was not issued by {startup / AUTHORITY}") from None
    check_dates(kit)
    return {
        "name": common_name(certificate.subject),
        "valid_until": certificate.not_valid_after_utc.isoformat(timespec="seconds"),
        "days_left": (certificate.not_valid_after_utc - datetime.now(UTC)).days,
    }


def check_key(file: Path, certificate: x509.Certificate) -> None:
    """The private key is there, belongs to the certificate, and is for its owner alone."""
    if not file.is_file():
        raise MissingDataError(
            f"{file} is missing: unpack the zip file with fedspray site unpack into the folder "
            "in which fedspray site request made the key"
        )
    if file.stat().st_mode & 0o077:
        raise InputError(f"{file} can be read by others, but must be for its owner alone: chmod 600 {file}")
    if read_key(file).public_key() != certificate.public_key():
        raise InputError(f"{file} is not the key of the certificate for {common_name(certificate.subject)!r}")


def check_dates(kit: Path) -> None:
    """Refuses a kit of a server, a site or the coordinator whose certificates are not valid now."""
    startup, now = kit / "startup", datetime.now(UTC)
    own = startup / "server.crt"
    for file in (own if own.is_file() else startup / CERTIFICATE, startup / AUTHORITY):
        certificate = read_certificate(file)
        if certificate.not_valid_after_utc < now:
            raise InputError(
                f"{file} ended on {certificate.not_valid_after_utc:{MOMENT}}, so it is no longer accepted: "
                "the coordinator must renew it (fedspray deploy renew)"
            )
        if certificate.not_valid_before_utc > now:
            raise InputError(
                f"{file} is valid from {certificate.not_valid_before_utc:{MOMENT}} on, but it is {now:{MOMENT}} here: "
                "correct this machine's clock"
            )


def warning_of(kit: Path) -> str | None:
    """A sentence about a kit's certificate that ends within 30 days, or about its authority's; None where none does."""
    startup = kit / "startup"
    files = [startup / name for name in ("server.crt", CERTIFICATE, AUTHORITY) if (startup / name).is_file()]
    ends = {file: read_certificate(file).not_valid_after_utc for file in files}
    file, end = min(ends.items(), key=lambda each: each[1])
    days = (end - datetime.now(UTC)).days
    if days >= WARN_DAYS:
        return None
    return (
        f"{file} ends in {days} days, on {end:{MOMENT}}: renew it in time (fedspray deploy renew, fedspray site renew)"
    )


def read_certificate(file: Path) -> x509.Certificate:
    """Reads a certificate in PEM format."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise InputError(f"{file} is not a certificate that can be read ({error})") from None


def read_key(file: Path) -> rsa.RSAPrivateKey:
    """Reads a private key in PEM format."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except TypeError:
        raise InputError(f"{file} has a passphrase, but must be a private key without one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{file} is not a private key in PEM format") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InputError(f"{file} is another kind of key, but must be RSA")
    return key
