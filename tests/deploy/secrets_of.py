"""Where private keys are."""

from __future__ import annotations

import zipfile
from pathlib import Path

PRIVATE = b"PRIVATE KEY"


def holders(folder: Path) -> list[str]:
    """The files under a folder that hold a private key."""
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and (PRIVATE in file.read_bytes() or (file.suffix == ".zip" and in_zip(file)))
    )


def in_zip(file: Path) -> bool:
    with zipfile.ZipFile(file) as archive:
        return any(PRIVATE in archive.read(name) for name in archive.namelist())


OWN_KEYS = ["ca/rootCA.key", "kits/coordinator/startup/client.key", "kits/server/startup/server.key"]
