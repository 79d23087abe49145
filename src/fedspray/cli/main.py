"""The ``fedspray`` command.

Commands are imported when called, and import what they need when they run, so ``--help`` and completion
are fast.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

from cyclopts import CycloptsError, Parameter

from fedspray.cli import laboratory
from fedspray.cli.flags import OPTIONS, group
from fedspray.cli.output import Output, print_alert
from fedspray.cli.pages import Page, show_help
from fedspray.cli.refusals import explain, missing
from fedspray.errors import FULL, InputError, RunStopped
from fedspray.runs.interrupts import end_like_ctrl_c

BAD_INPUT = 2
BUG = 1
STOPPED = 3
INTERRUPTED = 130

COMMANDS = (
    *("demo", "run", "report", "watch", "algorithms", "links", "datasets", "inspect", "partition", "compare"),
    *("sweep", "tune", "plan", "new", "import", "schema", "predict", "adapt", "attack", "deploy", "site"),
)
"""Each is a module of this package with a function or command group of the same name."""
_ELSEWHERE = {"import": "tables:import_files"}
"""Except these: `import` is a Python keyword."""

EXAMPLES = (
    "fedspray run --dataset banks --rounds 50",
    "fedspray compare --algorithm fedavg --algorithm fedspray --rounds 50 --seeds 5",
    "fedspray inspect --dataset banks",
    "fedspray inspect --dataset pubmed --partitioner louvain --json",
    "fedspray partition --dataset banks --clients 100 --nodes 1000000 --out banks-100",
)


app = group(
    "fedspray",
    "Federated graph learning that does right by minority nodes.",
    {each: f"fedspray.cli.{_ELSEWHERE.get(each, f'{each}:{each}')}" for each in COMMANDS} | laboratory.commands(),
)
app.help_format, app.help_formatter = "plaintext", Page()
app.version, app.version_flags = lambda: f"fedspray {version('fedspray')}", ("--version",)
app.default_parameter = Parameter(negative=(), allow_repeating=True)


@app.command(name="--debug", group=OPTIONS)
def _debug() -> None:
    """Show the full traceback of an error; works in any position."""
    # `run_command` handles it in any position, so this is only for the help page.


@app.command(name="--install-completion", group=OPTIONS)
def _install_completion() -> None:
    """Make this shell complete commands, flags and values."""
    Output().note(f"wrote {app.install_completion(shell=_shell())}; open a new shell to use it")


@app.command(name="--show-completion", group=OPTIONS)
def _show_completion() -> None:
    """Print the completion script."""
    print(app.generate_completion(shell=_shell()), end="")


def _shell() -> Literal["zsh", "bash", "fish", "powershell"]:
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        return detect_shell()
    except ShellDetectionError:
        known = "bash, zsh, fish or powershell"
        raise InputError(f"SHELL is {os.environ.get('SHELL', '')!r}, but must be {known}") from None


app["--help"].group = app["--version"].group = OPTIONS
app["--help"].help, app["--version"].help = "Show this page, or a command's.", "Print the version."


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code.

    0: done; 1: a bug in fedspray; 2: bad input;
    3: a run that can't continue; 130: interrupted.
    """
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"]
    try:
        laboratory.check_here(words[0] if words else "")
        if not words or {"-h", "--help"} & set(words):
            show_help(app, [word for word in words if word not in ("-h", "--help")], EXAMPLES)
            return 0
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False, verbose=False)
        if command == app.help_print:  # a group without a subcommand
            show_help(app, words)
            return BAD_INPUT
        code: Any = command(*bound.args, **bound.kwargs)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exception(error)
        sentence, code = _describe(error)
        print_alert("error", sentence)
    return code if isinstance(code, int) else 0


def entry_point() -> None:
    """What the installed ``fedspray`` script calls."""
    if "_FEDSPRAY_COMPLETE" in os.environ:  # a completion script from version 0.1
        print_alert("error", "the shell completion is from an earlier version: run fedspray --install-completion")
        sys.exit(BAD_INPUT)
    end_like_ctrl_c()
    warnings.showwarning = _show_warning
    code = run_command(sys.argv[1:])
    if "nvflare" in sys.modules:  # its threads may wait for ever for a server that is gone
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _show_warning(message: Warning | str, *_where: Any, **_file: Any) -> None:
    print_alert("warning", str(message))


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, CycloptsError):
        return explain(error), BAD_INPUT
    if isinstance(error, InputError):
        return str(error), BAD_INPUT
    if isinstance(error, ModuleNotFoundError) and (sentence := missing(error)) is not None:
        return sentence, BAD_INPUT
    if isinstance(error, RunStopped):
        return str(error), STOPPED
    if isinstance(error, OSError) and error.errno in FULL:
        return f"the disk is full: {error.filename or 'a file'} cannot be written ({error.strerror})", STOPPED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", BAD_INPUT
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # as torch says it
        return f"this needs more memory than there is ({str(error).partition(chr(10))[0]})", STOPPED
    hint = "this is a bug in fedspray, please report it; --debug shows the traceback"
    return f"{type(error).__name__}: {error} ({hint})", BUG
