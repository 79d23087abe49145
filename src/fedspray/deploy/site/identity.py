"""How a site proves itself to the other sites: by the certificate that the federation's authority gave it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.hashes import SHA256

from fedspray.deploy.provisioning.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    common_name,
    key_fingerprint,
    read_certificate,
    read_key,
)
from fedspray.engine.secure import Unsafe

_PADDING = PSS(mgf=MGF1(SHA256()), salt_length=PSS.DIGEST_LENGTH)


class CertificateIdentity:
    """Signs with a site's key and knows the others' by their certificates.

    Args:
        kit: the site's folder.
        sites: the names of all sites, in the order of the agreement.
    """

    def __init__(self, kit: Path, sites: Sequence[str]) -> None:
        startup = kit / "startup"
        self.certificate = (startup / CERTIFICATE).read_bytes()
        self._key, self._authority, self._sites = read_key(startup / KEY), read_certificate(startup / AUTHORITY), sites
        self.peers: dict[str, str] = {}
        """Fingerprints of the keys that other sites proved themselves with."""

    def sign(self, text: bytes) -> bytes:
        """RSA-PSS with SHA-256."""
        return self._key.sign(text, _PADDING, SHA256())

    def check(self, client_id: int, certificate: bytes, signature: bytes, text: bytes) -> None:
        """The certificate is the authority's, valid now and for that site, and the signature is its key's."""
        if not 0 <= client_id < len(self._sites):
            raise Unsafe(f"there is no site {client_id} in the agreement")
        name, now = self._sites[client_id], datetime.now(UTC)
        try:
            found = x509.load_pem_x509_certificate(certificate)
            found.verify_directly_issued_by(self._authority)
            key = found.public_key()
            assert isinstance(key, rsa.RSAPublicKey)
            key.verify(signature, text, _PADDING, SHA256())
        except Exception as error:
            raise Unsafe(f"a message in the name of {name} is not signed with its key") from error
        if common_name(found.subject) != name or not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            raise Unsafe(f"the certificate sent for {name} belongs to somebody else, or is not valid now")
        self.peers[name] = key_fingerprint(key)
