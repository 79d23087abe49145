"""The errors that a user sees: one sentence that names the value and what is allowed."""

from __future__ import annotations

import difflib
import tokenize
import zipfile
import zlib
from collections.abc import Iterable

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    EOFError,
    RuntimeError,  # a zip file that says it is encrypted, or of a version to come
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What NumPy, pandas and the standard library raise when a data file is damaged or holds something else."""


class InputError(ValueError):
    """Bad input. Its text is one clear sentence; the command line prints it and exits with code 2."""


class MissingDataError(InputError):
    """A file that is needed is not there, and the text says where to put it."""


class OtherVersionError(InputError):
    """A checkpoint was written by a version of this package that keeps other things."""


class RunStopped(RuntimeError):
    """A run cannot go on. Everything so far is saved, and it can be resumed."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """The error for a name that does not exist: it lists the names that do and points at the nearest."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {kind} {given!r}: choose one of {', '.join(names)}{hint}")
