"""The ``fedspray`` command.

Commands import what they need when they run, so that ``--help`` and completion answer at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from fedspray.cli import (
    algorithms,
    bench,
    compare,
    datasets,
    demo,
    deploy,
    inspect,
    partition,
    plan,
    predict,
    report,
    reproduce,
    run,
    site,
    sweep,
    tune,
)
from fedspray.cli.output import print_error
from fedspray.errors import FULL, InputError, RunStopped

BAD_INPUT = 2
BUG = 1
STOPPED = 3
INTERRUPTED = 130

EPILOG = """
[bold]Examples[/bold]

fedspray run --dataset banks --rounds 50

fedspray compare --algorithm fedavg --algorithm fedspray --rounds 50 --seeds 5

fedspray inspect --dataset banks

fedspray inspect --dataset pubmed --partitioner louvain --json

fedspray partition --dataset banks --clients 100 --nodes 1000000 --out banks-100
"""

app = typer.Typer(
    name="fedspray",
    help="Federated graph learning that does right by minority nodes.",
    epilog=EPILOG,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("run", epilog=run.EPILOG)(run.run)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("algorithms")(algorithms.algorithms)
app.command("datasets", epilog=datasets.EPILOG)(datasets.datasets)
app.command("inspect", epilog=inspect.EPILOG)(inspect.inspect)
app.command("partition", epilog=partition.EPILOG)(partition.partition)
app.command("compare", epilog=compare.EPILOG)(compare.compare)
app.command("sweep", epilog=sweep.EPILOG)(sweep.sweep)
app.command("tune", epilog=tune.EPILOG)(tune.tune)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("bench", epilog=bench.EPILOG)(bench.bench)
app.command("reproduce", epilog=reproduce.EPILOG)(reproduce.reproduce)
app.command("predict", epilog=predict.EPILOG)(predict.predict)
app.add_typer(deploy.app, name="deploy")
app.add_typer(site.app, name="site")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fedspray {version('fedspray')}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the full traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    # `--version` acts in its callback, and `run_command` finds `--debug` wherever it stands.
    pass


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code.

    0: done; 1: a bug of ours; 2: bad input, explained in one sentence;
    3: a run that cannot go on; 130: interrupted.
    """
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"] or ["--help"]
    try:
        code = typer.main.get_command(app).main(args=rest, prog_name="fedspray", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):  # the second is Ctrl-C or Ctrl-D at a question
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exception(error)
        sentence, code = _describe(error)
        if sentence:  # a command without its arguments has printed its help already
            print_error(sentence)
    return code if isinstance(code, int) else 0


def entry_point() -> None:
    """What the installed ``fedspray`` script calls."""
    sys.exit(run_command(sys.argv[1:]))


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, InputError):
        return str(error), BAD_INPUT
    if isinstance(error, RunStopped):
        return str(error), STOPPED
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        message = error.format_message().strip().removesuffix(".")
        return message and message + hint, BAD_INPUT
    if isinstance(error, OSError) and error.errno in FULL:
        return f"the disk is full: {error.filename or 'a file'} cannot be written ({error.strerror})", STOPPED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", BAD_INPUT
    name = type(error).__name__
    return (
        f"{name}: {error} (this is a bug in fedspray, please report it; --debug shows where it happened)",
        BUG,
    )
