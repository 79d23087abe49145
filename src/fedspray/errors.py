"""Errors for the user: one sentence with the value and what is allowed."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    EOFError,
    RuntimeError,  # a zip file that is encrypted or of a later version
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What NumPy, pandas and the standard library raise for a damaged or wrong data file."""


class InputError(ValueError):
    """Bad input. Its text is one clear sentence; the command line prints it and exits with code 2."""


class MissingDataError(InputError):
    """A required file is missing; the text says where to put it."""


class ContractError(InputError):
    """An algorithm breaks its contract, whatever the client."""


class OtherVersionError(InputError):
    """A checkpoint was written by an incompatible version of this package."""


class RunStopped(RuntimeError):
    """A run can't continue. Everything so far is saved, and it can be resumed."""


class DiskFull(RunStopped):
    """A file cannot be written because the disk or the user's quota is full."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers: no space, over the quota, file too large."""


@contextmanager
def disk_full_at(path: Path) -> Iterator[None]:
    """Turns the errors of a full disk, those of safetensors too, into a `DiskFull` that names the file."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))  # how safetensors reports an OSError
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if number not in FULL:
            raise
        raise DiskFull(
            f"the disk is full: {path} cannot be written ({os.strerror(number)}); free some space, then continue from "
            "the last saved round: fedspray.resume, or --resume for fedspray run, --attach for fedspray deploy run"
        ) from error


LIBRARIES = frozenset({"fedspray", *sys.stdlib_module_names})
"""Packages that are not the user's own; what is installed isn't either."""


def located(error: Exception) -> str:
    """An error in one line: type, text and, if it came from or through the user's own code, its last place there."""
    place = ""
    for frame, number in walk_tb(error.__traceback__):
        file, package = Path(frame.f_code.co_filename), frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in LIBRARIES and not {"site-packages", "dist-packages"} & {*file.parts}:
            place = f" ({file.name}, line {number})"
    return one_line(f"{type(error).__name__}: {error}{place}")


LONGEST = 300
"""Characters shown or kept of a text from outside."""


def one_line(text: str) -> str:
    """A text that is safe for a terminal: one line, no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def printable(text: str) -> str:
    """A text from another machine, for terminals and logs: one line, and not too long."""
    line = one_line(text[: 2 * LONGEST])
    return line if len(line) <= LONGEST and len(text) <= 2 * LONGEST else f"{line[: LONGEST - 1]}…"


PATH = (str, os.PathLike)
"""The types of a path, for `expect`."""


def expect(kinds: Any, words: str, /, **given: object) -> None:
    """Refuses arguments of a public function that are of other types; ``words`` say what they must be."""
    for name, value in given.items():
        if not isinstance(value, kinds):
            raise InputError(f"{name} is {described(value)}, but must be {words}")


def described(value: object) -> str:
    """A value of a wrong type, for a message: a plain one as it is, of others the type alone."""
    if isinstance(value, str | int | float | None):
        return printable(repr(value))
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"the class {name}" if isinstance(value, type) else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def unknown(kind: str, given: str, allowed: Iterable[str], *, elsewhere: Iterable[str] = ()) -> InputError:
    """The error for an unknown name: lists those allowed and suggests the nearest, also of names from ``elsewhere``."""
    names = sorted(allowed)
    meant = near(given, [*names, *elsewhere])
    hint = f"; did you mean {meant!r}?" if meant else ""
    listed = f"choose one of {', '.join(names)}" if names else "there are none"
    return InputError(f"unknown {kind} {given!r}: {listed}{hint}")


def near(given: str, known: Iterable[str]) -> str | None:
    """The known name behind another library's word or a misspelling."""
    names = {name.replace("-", "_"): name for name in known}
    word = given.lower().replace("-", "_")
    elsewhere = ELSEWHERE.get(word) or METRICS_ELSEWHERE.get(word)
    if elsewhere in names:
        return names[elsewhere]
    return next((names[found] for found in difflib.get_close_matches(word, names, n=1, cutoff=0.7)), None)


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
"""Other libraries' words for our names."""
METRICS_ELSEWHERE = {"f1": "macro_f1", "f1_score": "macro_f1", "accuracy": "overall", "acc": "overall"}
"""The same for metrics, which are no settings."""
