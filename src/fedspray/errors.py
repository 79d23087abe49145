"""The errors that a user sees: one sentence that names the value and what is allowed."""

from __future__ import annotations

import difflib
import errno
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

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


class DiskFull(RunStopped):
    """A file cannot be written because its disk, or the user's share of it, is full."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the system's errors that say so: no space, over the quota, over the limit for files."""


@contextmanager
def disk_full_at(path: Path) -> Iterator[None]:
    """Turns the errors of a full disk, those of safetensors too, into a `DiskFull` that names the file."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))  # how safetensors tells an OSError
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if number not in FULL:
            raise
        raise DiskFull(
            f"the disk is full: {path} cannot be written ({os.strerror(number)}); make room, then go on from the last "
            "saved round: --resume for fedspray run, --attach for fedspray deploy run"
        ) from error


LONGEST = 300
"""Characters of a text from outside that are shown or kept."""


def one_line(text: str) -> str:
    """A text that a terminal shows as it is: on one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def printable(text: str) -> str:
    """A text that another machine sent, for terminals and logs: one line, and not too long."""
    line = one_line(text[: 2 * LONGEST])
    return line if len(line) <= LONGEST and len(text) <= 2 * LONGEST else f"{line[: LONGEST - 1]}…"


def unknown(kind: str, given: str, allowed: Iterable[str], *, elsewhere: Iterable[str] = ()) -> InputError:
    """The error for a name that does not exist: it lists the names that do and points at the one that is meant.

    Args:
        kind: of thing.
        given: the name.
        allowed: all names of this kind.
        elsewhere: names of another kind that may be meant.
    """
    names = sorted(allowed)
    meant = near(given, [*names, *elsewhere])
    hint = f"; did you mean {meant!r}?" if meant else ""
    return InputError(f"unknown {kind} {given!r}: choose one of {', '.join(names)}{hint}")


def near(given: str, known: Iterable[str]) -> str | None:
    """The name that is meant by one that does not exist: another program's word for it, or a misspelling."""
    names = {name.replace("-", "_"): name for name in known}
    word = given.lower().replace("-", "_")
    if ELSEWHERE.get(word) in names:
        return names[ELSEWHERE[word]]
    return next((names[found] for found in difflib.get_close_matches(word, names, n=1, cutoff=0.6)), None)


_NAMES_ELSEWHERE = {
    "adam_eps": ("eps", "epsilon"),
    "algorithm": ("method", "strategy", "fl_algorithm"),
    "backbone": ("model", "gnn", "network"),
    "clients": ("num_clients", "n_clients", "num_parties"),
    "dataset": ("data", "data_set", "graph"),
    "dropout": ("drop_rate", "dropout_rate", "p_drop"),
    "dtype": ("precision",),
    "hidden": ("hidden_dim", "hidden_size", "hidden_channels", "hid_dim", "nhid", "width"),
    "layers": ("num_layers", "n_layers", "depth"),
    "local_epochs": ("epochs", "num_epochs", "local_steps", "local_ep", "e"),
    "lr": ("learning_rate", "step_size", "eta"),
    "nodes": ("num_nodes", "n_nodes"),
    "participation": ("fraction", "client_fraction", "frac", "sample_ratio", "participation_rate"),
    "run": ("train", "fit"),
    "rounds": ("num_rounds", "n_rounds", "global_rounds", "comm_rounds", "communication_rounds"),
    "sample_nodes": ("batch_size",),
    "seed": ("random_state", "random_seed", "rng"),
    "seeds": ("seed", "num_seeds", "n_seeds", "repeats"),
    "selection": ("early_stopping", "model_selection"),
    "weight_decay": ("wd", "l2", "decay", "l2_penalty"),
}
ELSEWHERE = {alias: name for name, aliases in _NAMES_ELSEWHERE.items() for alias in aliases}
"""What other programs call a thing that has a name here."""
