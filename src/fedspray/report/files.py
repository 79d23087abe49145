"""Result files: checked before the work starts, written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedspray.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def check_target(path: Path, suffixes: Sequence[str], option: str) -> None:
    """Refuses a file that cannot be written, before any time is spent on its content.

    Args:
        path: where the file will go; missing folders above it will be made.
        suffixes: the allowed endings, such as ``.png``.
        option: what asked for the file, for the message.
    """
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path} ends in {path.suffix or 'nothing'!r}, but must end in {_choices(suffixes)}")
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder, but a file is needed")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"{option} {path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path} cannot be written: there is no permission to write in {parent}")


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file beside its target and renames it, so that nobody ever sees half of it."""
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(temporary).chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner may read
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def write_predictions(
    path: Path,
    probabilities: NDArray[np.float64],
    node_names: Sequence[str] | None,
    class_names: Sequence[str] | None,
) -> None:
    """Writes node, predicted class and the probability of every class, as CSV or Parquet.

    Args:
        path: where to.
        probabilities: [N, C].
        node_names, class_names: used instead of numbers where they are known.
    """
    classes = list(class_names or map(str, range(probabilities.shape[1])))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["node", "prediction", *(f"probability_{name}" for name in classes)])
    for i, row in enumerate(probabilities):
        name = i if node_names is None else node_names[i]
        writer.writerow([name, classes[int(row.argmax())], *(f"{value:.6f}" for value in row)])
    content = text.getvalue()
    write_file(path, _as_parquet(content) if path.suffix.lower() == ".parquet" else content)


def _as_parquet(text: str) -> bytes:
    """A table in CSV as Parquet: numbers as numbers, names as text."""
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / name for name in ("table.csv", "table.parquet"))
        source.write_text(text, encoding="utf-8")
        read = f"read_csv('{source}', header=true, types={{'node': 'VARCHAR', 'prediction': 'VARCHAR'}})"
        duckdb.connect().execute(f"COPY (SELECT * FROM {read}) TO '{target}' (FORMAT parquet)")
        return target.read_bytes()


def _choices(suffixes: Sequence[str]) -> str:
    return " or ".join(suffixes)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
