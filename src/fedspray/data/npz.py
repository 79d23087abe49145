"""Arrays from an npz file that may hold anything: what its headers say is checked before memory is taken for it."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedspray.errors import UNREADABLE, InputError
from fedspray.memory import check_memory


def read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """Every array of an npz file, by name; never a pickle."""
    if not zipfile.is_zipfile(file):
        raise InputError(f"{file} is not an npz file, but a graph in npz format is needed")
    try:
        with file.open("rb") as stream:
            _check_headers(file, stream)
            with np.load(stream, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except (*UNREADABLE, SyntaxError, MemoryError, OverflowError, RecursionError) as error:
        raise InputError(f"{file} is not a readable npz file of plain arrays ({error})") from None


def _check_headers(file: Path, stream: Any) -> None:
    """Refuses an array of more bytes than the file holds of it, and a file that does not fit into memory."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        check_memory(str(file), sum(member.file_size for member in members))
        for member in members:
            with archive.open(member) as part:
                version = npy.read_magic(part)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, dtype = read(part)
            size = math.prod((dtype.itemsize, *shape))
            if size > member.file_size:
                name = member.filename.removesuffix(".npy")
                raise InputError(f"{file} is damaged: {name} of shape {shape} needs {size:,} bytes, but has fewer")
    stream.seek(0)
