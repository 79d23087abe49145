"""The coordinator's folder.

::

    PROJECT/project.json     host, port, grace time, organisations
    PROJECT/ca/              the federation's own certificate authority: keep it secret, keep it safe
    PROJECT/kits/server/     the server's kit, and coordinator/: each with its private key
    PROJECT/kits/SITE/       what a site's kit is made of: its certificate, once it is signed, but never its key
    PROJECT/zips/SITE.zip    what is sent to a site
    PROJECT/runs/RUN/        run folders, as those of `fedspray run`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspray import files, stored
from fedspray.deploy import kinds
from fedspray.deploy.agreement import FILE, Agreement
from fedspray.deploy.provisioning.certificates import CERTIFICATE, key_fingerprint, read_certificate
from fedspray.deploy.provisioning.kits import Address
from fedspray.errors import InputError, MissingDataError

CARD = "project.json"


@dataclass(frozen=True)
class Project:
    """A project's folder and its settings."""

    folder: Path
    address: Address
    grace: float = 60.0
    """Seconds that a round waits for the others once enough sites answered."""
    organisations: Mapping[str, str] = field(default_factory=dict)
    """Whose the sites are, for their certificates; a site that is not here is its own."""
    about: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By site: `contact`, whom to call, and `nodes`, how many its graph should have; as far as they are known."""

    def __post_init__(self) -> None:
        if not 0 < self.grace < math.inf:
            raise InputError(f"the grace time is {self.grace} seconds, but must be a number above 0")

    @classmethod
    def open(cls, folder: Path) -> Project:
        """Reads ``project.json``."""
        card = folder / CARD
        if not card.is_file():
            raise MissingDataError(f"{card} is missing: {folder} is not a project that fedspray deploy init made")
        content = stored.read(card, kinds.ProjectCard)
        address, named = Address(content["host"], content["port"]), content.get("organisations", {})
        return cls(folder, address, float(content["grace"]), named, content.get("about", {}))

    def save(self) -> None:
        """Writes ``project.json``."""
        content = {
            "host": self.address.host,
            "port": self.address.port,
            "grace": self.grace,
            "organisations": dict(self.organisations),
            **({"about": dict(self.about)} if self.about else {}),
        }
        files.write_json(self.folder / CARD, content)

    @property
    def server(self) -> Path:
        """The server's kit."""
        return self.folder / "kits" / "server"

    @property
    def coordinator(self) -> Path:
        """The coordinator's kit."""
        return self.folder / "kits" / "coordinator"

    def site(self, name: str) -> Path:
        """A site's kit, as it was made here."""
        return self.folder / "kits" / name

    def coordinator_key(self) -> str:
        """Fingerprint of the key that jobs are signed with."""
        return key_fingerprint(read_certificate(self.coordinator / "startup" / CERTIFICATE).public_key())

    def with_certificate(self) -> list[str]:
        """Sites whose certificate requests have been signed."""
        waiting = self.without_certificate()
        return [name for name in self.proposed().roster.clients if name not in waiting]

    def without_certificate(self) -> list[str]:
        """Sites whose certificate requests have not been signed yet."""
        sites = self.proposed().roster.clients
        return [name for name in sites if not (self.site(name) / "startup" / CERTIFICATE).exists()]

    def agreement(self) -> Agreement:
        """What is run."""
        return Agreement.load(self.server / "local")

    def proposed(self) -> Agreement:
        """What the sites are asked to agree to: that of `agreement`, or one with further sites."""
        return Agreement.load(self.folder) if (self.folder / FILE).is_file() else self.agreement()

    def take_on(self, agreement: Agreement) -> None:
        """From now on the server's agreement is this one."""
        agreement.save(self.folder)
        agreement.save(self.server / "local")

    def run_folder(self, run: str) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / run
