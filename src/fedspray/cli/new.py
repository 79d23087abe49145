"""``fedspray new``: a project folder for your own data or method."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

from fedspray.cli.flags import argument, examples, flag
from fedspray.cli.output import Output
from fedspray.errors import InputError, unknown

KINDS = ("data", "method")


@examples("fedspray new my-banks", "fedspray new my-method --kind method")
def new(
    folder: Annotated[Path, argument("The new folder.", "DIR")],
    /,
    *,
    kind: Annotated[str, flag("data: your own tables; method: your own algorithm.", "data|method")] = "data",
) -> None:
    """Start a project folder with a README whose commands work out of the box, to change step by step."""
    if kind not in KINDS:
        raise unknown("kind of project", kind, KINDS)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already and is not empty: choose a new folder")
    source = Path(__file__).parent / "templates" / kind
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        made = Path(temporary) / "new"
        shutil.copytree(source, made, ignore=shutil.ignore_patterns("__pycache__"))
        if folder.exists():
            folder.rmdir()
        made.rename(folder)
    Output().note(f"{folder} is ready: read {folder / 'README.md'}")
