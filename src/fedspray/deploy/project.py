"""The coordinator's folder.

::

    PROJECT/project.json     host, port, grace time
    PROJECT/ca/              the federation's own certificate authority: keep it secret, keep it safe
    PROJECT/kits/server/     the server's kit; so each site's, and coordinator/
    PROJECT/zips/SITE.zip    what is sent to each site
    PROJECT/runs/RUN/        run folders, as those of `fedspray run`
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fedspray.deploy.agreement import Agreement
from fedspray.deploy.kits import Address
from fedspray.errors import InputError, MissingDataError
from fedspray.runs import store

CARD = "project.json"


@dataclass(frozen=True)
class Project:
    """A project's folder and its settings."""

    folder: Path
    address: Address
    grace: float = 60.0
    """Seconds that a round waits for the others once enough sites answered."""

    def __post_init__(self) -> None:
        if not 0 < self.grace < math.inf:
            raise InputError(f"the grace time is {self.grace} seconds, but must be a number above 0")

    @classmethod
    def open(cls, folder: Path) -> Project:
        """Reads ``project.json``."""
        card = folder / CARD
        if not card.is_file():
            raise MissingDataError(f"{card} is missing: {folder} is not a project that fedspray deploy init made")
        content = store.read_json(card)
        try:
            return cls(folder, Address(content["host"], int(content["port"])), float(content["grace"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{card} is not as fedspray deploy init wrote it ({error})") from None

    def save(self) -> None:
        """Writes ``project.json``."""
        content = {"host": self.address.host, "port": self.address.port, "grace": self.grace}
        store.write_json(self.folder / CARD, content)

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

    def agreement(self) -> Agreement:
        """What is run."""
        return Agreement.load(self.server / "local")

    def run_folder(self, run: str) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / run
