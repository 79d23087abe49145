"""``fedspray attack``: what a server can infer from what clients send."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedspray.cli import knobs
from fedspray.cli.flags import AsJson, examples, flag
from fedspray.cli.output import Output
from fedspray.errors import InputError

if TYPE_CHECKING:
    from fedspray.data.federation import Federation
    from fedspray.experiment import RunSettings

ROUNDS = 10
"""Of the runs that are attacked, unless the flag says otherwise."""
FILE = "attacks.csv"


@examples(
    "fedspray attack --dataset banks --clients 6 --nodes 300 --algorithm fedavg --algorithm fedspray2",
    "fedspray attack --dataset banks --algorithm fedspray --link 'dp epsilon=1' --link 'dp epsilon=8 + secure-sum'",
    "fedspray attack --run runs/mine",
)
def attack(
    *,
    given: knobs.Attack | None = None,
    link: Annotated[
        list[str] | None,
        flag("A protection to attack, links joined by +; repeatable.", "LINKS", default="none, noise, dp, secure-sum"),
    ] = None,
    attack: Annotated[
        list[str] | None, flag("One of these attacks; repeatable.", "NAME", default="all", complete="attacks")
    ] = None,
    run: Annotated[
        Path | None, flag("Attack the method, links and data of this run; its report will show the table.", "DIR")
    ] = None,
    out: Annotated[Path | None, flag("The table.", "FILE.csv", default=f"with --run: DIR/{FILE}")] = None,
    as_json: AsJson = False,
) -> None:
    """Infer labels, features and membership from a run's updates and models, and compare with a plain guess."""
    from fedspray import algorithms, attacks
    from fedspray.attacks import _playing as playing
    from fedspray.report.files import check_target, write_file
    from fedspray.report.sheets import to_csv
    from fedspray.report.tables import attack_table
    from fedspray.runs import store

    output = Output(as_json)
    target = out or (None if run is None else run / FILE)
    if target is not None:
        check_target(target, [".csv"], "--out")
    for name in attack or ():
        attacks.find(name)
    flags = dict(given or {})
    chosen = flags.pop("algorithm", None)
    if run is None:
        federation, settings = _from_flags(output, flags)
        names, links = chosen or algorithms.names(), link or list(playing.PROTECTIONS)
    elif given or link:
        raise InputError(f"--run {run} has its own data, method and links: remove the other flags")
    else:
        federation, settings = _from_run(output, run)
        names, links = [settings.algorithm], list(dict.fromkeys(["", " + ".join(settings.link)]))
    campaign = playing.Campaign(federation.with_split(settings.seeds[0]), settings)
    rows = list(campaign.rows(names, links, attack or (), tell=lambda name: output.note(f"attacking {name} …")))
    if not as_json:
        output.show(attack_table(playing.COLUMNS, rows))
    versions = " ".join(f"{name} {version}" for name, version in store.versions().items())
    command = _command(given, link, attack, run)
    about = {"rounds": campaign.rounds, "seed": settings.seeds[0], "command": command, "versions": versions}
    if target is not None:
        cells = ([*(row[name] for name in playing.COLUMNS), *about.values()] for row in rows)
        lines = [[f"{cell:.6f}" if isinstance(cell, float) else cell for cell in line] for line in cells]
        write_file(target, to_csv([*playing.COLUMNS, *about], lines))
        output.note(f"wrote {target}")
    output.result({**about, "rows": rows})


def _from_flags(output: Output, flags: dict[str, Any]) -> tuple[Federation, RunSettings]:
    from fedspray.federate import open_data

    experiment = knobs.read(None, flags)
    with output.busy(f"preparing {experiment.data.dataset} …"):
        federation = open_data(experiment.data)
    settings = experiment.run
    return federation, replace(settings, values={"rounds": ROUNDS, **settings.values})


def _from_run(output: Output, folder: Path) -> tuple[Federation, RunSettings]:
    from fedspray.experiment import Data
    from fedspray.federate import open_data
    from fedspray.runs.run import load_settings

    settings, content = load_settings(folder)
    if content["source"] is None:
        raise InputError(f"{folder} was started from Python, so its data cannot be found: attack it with flags")
    with output.busy(f"preparing {content['dataset']} …"):
        return open_data(Data.of(**content["source"])), settings


def _command(given: dict[str, Any] | None, link: Any, attack: Any, run: Path | None) -> str:
    from fedspray.report.html import flag_words

    words = ["fedspray", "attack"]
    own = {"link": link or [], "attack": attack or [], "run": [] if run is None else [run]}
    for name, value in {**(given or {}), **own}.items():
        words += flag_words(f"--{name.replace('_', '-')}", value)
    return shlex.join(words)
