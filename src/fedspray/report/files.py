"""Result files: checked before the work starts, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspray.errors import InputError
from fedspray.files import staged
from fedspray.report.sheets import to_csv


def check_target(path: Path, suffixes: Sequence[str], option: str) -> None:
    """Refuses a file that cannot be written, before any time is spent on its content; ``option`` asked for it."""
    if path.suffix.lower() not in suffixes:
        allowed = " or ".join(suffixes)
        raise InputError(f"{option} {path} ends in {path.suffix or 'nothing'!r}, but must end in {allowed}")
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder, but a file is needed")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"{option} {path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path} cannot be written: there is no permission to write in {parent}")


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file beside its target and renames it, so that nobody ever sees half of it."""
    try:
        with staged(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Writes a table as CSV, with six digits and nothing for NaN, or as Parquet."""
    if path.suffix.lower() == ".csv":
        write_file(path, to_csv(list(columns), zip(*map(_cells, columns.values()), strict=True)))
        return
    import duckdb
    import pandas as pd

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "table.parquet"
        duckdb.connect().register("given", pd.DataFrame(columns)).execute(f"COPY given TO '{target}' (FORMAT parquet)")
        write_file(path, target.read_bytes())


def _cells(column: Sequence[Any]) -> list[Any]:
    values = np.asarray(column)
    if values.dtype.kind != "f":
        return list(column)
    return ["" if np.isnan(value) else f"{value:.6f}" for value in values.tolist()]
