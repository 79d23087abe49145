"""Where an import goes: one graph, one client's folder, or a federation's folder, complete or not at all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedspray.data.federation import Client, Federation
from fedspray.data.graph import Graph
from fedspray.errors import InputError


def check_new(out: Path) -> None:
    """Refuses a target that exists; an empty folder will do."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out} exists already and is not empty: choose a new one")


def write(made: Graph | Client | Federation, out: Path) -> None:
    """Writes beside the target first, then moves it there."""
    check_new(out)
    try:
        if isinstance(made, Federation):
            made.save(out)
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
            staging = Path(temporary) / out.name
            if isinstance(made, Client):
                made.save(staging)
            else:
                made.to_npz(staging)
            if out.is_dir():
                out.rmdir()
            shutil.move(staging, out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error
