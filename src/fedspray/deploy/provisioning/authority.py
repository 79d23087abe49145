"""A federation's own certificate authority, and the builder that has it sign NVFlare's kits.

::

    PROJECT/ca/rootCA.pem    its certificate, a copy of which is in every kit
    PROJECT/ca/rootCA.key    its private key: anyone who has it can add members to the federation
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.spec import Builder
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

from fedspray.deploy.provisioning.certificates import (
    AUTHORITY,
    common_name,
    new_key,
    read_certificate,
    read_key,
    write_key,
)
from fedspray.errors import MissingDataError

KEY = "rootCA.key"


@dataclass(frozen=True)
class Authority:
    """Signs the certificates of one federation; all of them end with its own."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @classmethod
    def make(cls, name: str, valid_days: int) -> Self:
        """A new one, with a key of its own."""
        key, who = new_key(), Identity(name)
        return cls(generate_cert(who, who, key, key.public_key(), valid_days=valid_days, ca=True), key)

    def renewed(self, valid_days: int) -> Self:
        """The same one, with the same key, for longer: what it signed before stays good until its end."""
        who = Identity(common_name(self.certificate.subject))
        return replace(
            self,
            certificate=generate_cert(who, who, self.key, self.key.public_key(), valid_days=valid_days, ca=True),
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads what `save` wrote."""
        for file in (folder / AUTHORITY, folder / KEY):
            if not file.is_file():
                raise MissingDataError(f"{file} is missing, but signing needs it: put the project's ca folder back")
        return cls(read_certificate(folder / AUTHORITY), read_key(folder / KEY))

    def save(self, folder: Path) -> None:
        """Writes certificate and key into ``folder``."""
        (folder / AUTHORITY).write_bytes(serialize_cert(self.certificate))
        (folder / KEY).unlink(missing_ok=True)
        write_key(folder / KEY, self.key)

    def issue(self, to: Identity, key: rsa.RSAPublicKey, host: str | None = None) -> bytes:
        """A certificate in PEM format; ``host`` makes it a server's."""
        issuer = Identity(common_name(self.certificate.subject))
        return bytes(
            serialize_cert(
                generate_cert(
                    to,
                    issuer,
                    self.key,
                    key,
                    server_default_host=host,
                    not_valid_before=datetime.now(UTC),
                    not_valid_after=self.certificate.not_valid_after_utc,
                )
            )
        )


class CertificateBuilder(Builder):  # type: ignore[misc]
    """Puts certificates into the kits of the server and the coordinator, and of sites whose keys are made here.

    NVFlare's own builder keeps every private key in plain text in its state folder; this one keeps none.
    """

    def __init__(self, authority: Authority, keys_for: Collection[str]) -> None:
        self._authority, self._keys_for = authority, keys_for

    def initialize(self, project: Project, ctx: ProvisionContext) -> None:
        """Shortens a host name that is too long for a certificate's subject."""
        CertBuilder._fix_server_name(project.get_server())

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Makes keys and certificates."""
        server = project.get_server()
        self._write(server, "server", ctx, server.get_default_host())
        for admin in project.get_admins():
            self._write(admin, "client", ctx)
        for site in project.get_clients():
            if site.name in self._keys_for:
                self._write(site, "client", ctx)
            else:
                self._write_authority(site, ctx)

    def _write(self, to: Participant, name: str, ctx: ProvisionContext, host: str | None = None) -> None:
        key, folder = new_key(), self._write_authority(to, ctx)
        identity = Identity(to.subject, to.org, to.get_prop("role"))
        (folder / f"{name}.crt").write_bytes(self._authority.issue(identity, key.public_key(), host))
        write_key(folder / f"{name}.key", key)

    def _write_authority(self, to: Participant, ctx: ProvisionContext) -> Path:
        folder = Path(ctx.get_kit_dir(to))
        (folder / AUTHORITY).write_bytes(serialize_cert(self._authority.certificate))
        return folder
