"""``fedspray new``: a project folder for your own data or method."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from fedspray import files
from fedspray.cli.flags import argument, examples, flag
from fedspray.cli.output import Output
from fedspray.errors import unknown

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
    files.check_new(folder)
    with files.staged(folder) as made:
        source = Path(__file__).parent / "templates" / kind
        shutil.copytree(source, made, ignore=shutil.ignore_patterns("__pycache__"))
    Output().note(f"{folder} is ready: read {folder / 'README.md'}")
