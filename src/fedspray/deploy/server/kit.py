"""The server's folder: what it agreed to run, and where its runs are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedspray import files, stored
from fedspray.deploy import kinds
from fedspray.deploy.agreement import Agreement, check_name
from fedspray.errors import InputError, MissingDataError

CARD = "server.json"


@dataclass(frozen=True)
class Server:
    """A server's folder and its own settings."""

    folder: Path
    runs: Path
    """Where the run folders are."""

    @classmethod
    def open(cls, folder: Path) -> Server:
        """Reads ``local/server.json``."""
        card = folder / "local" / CARD
        if not card.is_file():
            raise MissingDataError(f"{card} is missing: {folder} is not a server's start-up kit")
        content = stored.read(card, kinds.ServerCard)
        return cls(folder, (folder / content["runs"]).resolve())

    def save(self) -> None:
        """Writes ``local/server.json``, with a path that stays true when the project is moved."""
        runs = os.path.relpath(self.runs.resolve(), self.folder.resolve())
        files.write_json(self.folder / "local" / CARD, {"runs": runs})

    def agreement(self, fingerprint: str) -> Agreement:
        """The server's copy of the agreement, which must be the one that is asked for."""
        own = Agreement.load(self.folder / "local")
        if own.fingerprint() != fingerprint:
            raise InputError(
                f"the job is for agreement {fingerprint[:12]}, but the server has {own.fingerprint()[:12]}"
            )
        return own.check_version()

    def run_folder(self, run: str) -> Path:
        """The folder of a run that was begun."""
        folder = self.runs / check_name("run", run)
        if not (folder / "settings.json").is_file():
            raise InputError(f"{folder} is not a run that was begun")
        return folder
