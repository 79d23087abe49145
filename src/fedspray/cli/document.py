"""Writes the generated parts of pages: ``python -m fedspray.cli.document docs/cli.md docs/privacy.md``.

They are between ``<!-- from the code: NAME -->`` and ``<!-- end -->``; the rest of the page is written by hand.
"""

from __future__ import annotations

import csv
import html
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path

from cyclopts import App
from cyclopts.argument import Argument

from fedspray.cli.knobs import usual
from fedspray.cli.main import app
from fedspray.cli.pages import arguments, command_names, examples, usage
from fedspray.experiment import DATA, TRAINING, knobs
from fedspray.knob import LIMITS, Knob

ATTACKS = Path(__file__).parents[3] / "results" / "attacks.csv"
_PART = re.compile(r"(<!-- from the code: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def document(page: str) -> str:
    """The page with its parts regenerated."""
    return _PART.sub(lambda found: f"{found[1]}\n{_part(found[2])}\n{found[3]}", page)


def commands(group: App = app, prefix: str = "") -> dict[str, App]:
    """Every command by its full name; those of a group are named after it."""
    found: dict[str, App] = {}
    for name in command_names(group):
        command = group[name]
        inner = command.default_command is None
        found |= commands(command, f"{prefix}{name} ") if inner else {f"{prefix}{name}": command}
    return found


def flags_of(name: str) -> list[Argument]:
    """The flags and arguments of a command."""
    _, apps, _ = app.parse_commands(name.split())
    with app.app_stack(apps):
        return arguments(apps[-1])


def _part(name: str) -> str:
    if name == "commands":
        return _table(("command", "what it does"), _overview())
    if name == "what leaves":
        return _table(("field", "sent by", "what it is", "the server gets", "it reveals"), _leaves())
    if name.startswith("attack "):
        return _attacks(*name.removeprefix("attack ").split(", "))
    if name in (DATA, TRAINING):
        chosen = (knob for knob in knobs().values() if knob.part == name)
        return _table(("flag", "meaning", "default", "allowed"), (_knob(knob) for knob in chosen))
    return "\n".join(_command(name))


def _leaves() -> Iterator[Sequence[str]]:
    """Every field of every algorithm, of the evaluation, of links, and of answers between organisations."""
    from fedspray import algorithms, links
    from fedspray.deploy.messages.wire import HEAD
    from fedspray.evaluation.counting import COUNT_KEYS, DETAIL_KEYS
    from fedspray.messages import fates

    senders: dict[tuple[str, ...], list[str]] = {}
    for name in algorithms.names():
        for field, key in fates(algorithms.find(name).uplink).items():
            senders.setdefault((field, key.text, key.told, key.reveals), []).append(name)
    for field, key in {**COUNT_KEYS, **DETAIL_KEYS}.items():
        senders[field, key.text, key.told, key.reveals] = ["all"]
    for name in links.names():
        for field, reveals in links.find(name).adds.items():
            senders[field, "added by the link", "each client's own", reveals] = [f"link {name}"]
    for field, reveals in HEAD.items():
        senders[field, "part of an answer", "each site's own", reveals] = ["all, between organisations"]
    for (field, *said), names in senders.items():
        yield f"`{field}`", ", ".join(names), *map(_cell, said)


def _attacks(attack: str, measure: str, nodes: str = "") -> str:
    """One measure of one attack: a row for each algorithm, a column for each protection, from results/attacks.csv."""
    lines = list(csv.DictReader(ATTACKS.read_text().splitlines()))
    links = list(dict.fromkeys(line["link"] for line in lines))
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if (line["attack"], line["measure"], line["nodes"].partition(".")[0]) == (attack, measure, nodes):
            row = found.setdefault(line["algorithm"], {"source": line["source"], "guess": line["guess"]})
            other = f" ({_two(line['guess'])})" if _two(line["guess"]) != _two(row["guess"]) else ""
            row[line["link"]] = f"{_two(line['value'])}{other}"
    titles = ("algorithm", "found from", "guess", *(link or "no protection" for link in links))
    rows = (
        (name, row["source"], _two(row["guess"]), *(row.get(link, "—") for link in links))
        for name, row in found.items()
    )
    return _table(titles, rows)


def _two(number: str) -> str:
    return f"{float(number):.2f}".replace("-0.00", "0.00")


def _overview() -> Iterator[Sequence[str]]:
    for name, command in commands().items():
        yield f"[`fedspray {name}`](#fedspray-{name.replace(' ', '-')})", _cell(command.help)


def _command(name: str) -> Iterator[str]:
    command, shown = commands()[name], flags_of(name)
    yield "\n".join(
        ["```", usage(app, name.split()), *(["", *examples(command)] if examples(command) else []), "```\n"]
    )
    yield f"{command.help}\n"
    given = {each.keys[-1] for each in shown if each.keys} & set(knobs())
    own = [each for each in shown if not (each.keys and each.keys[-1] in given)]
    if own:
        yield _table(("flag", "meaning", "default"), (_own(each) for each in own))
    parts = list(_parts(given))
    if parts:
        yield f"Also the flags of {' and of '.join(parts)}.\n"


def _parts(given: set[str]) -> Iterator[str]:
    """The parts of an experiment whose flags a command has, and which are missing."""
    for part in (DATA, TRAINING):
        names = [name for name, knob in knobs().items() if knob.part == part]
        if len(given & set(names)) > 1:  # `inspect` has one of training, the seed
            left_out = [f"`{knobs()[name].flag}`" for name in names if name not in given]
            yield f"[{part}](#{part.lower()})" + (f", without {', '.join(left_out)}" if left_out else "")


def _own(each: Argument) -> Sequence[str]:
    metavar = "" if each.hint is bool else each.parameter.metavar or ""
    name = metavar if each.index is not None else f"{each.name} {metavar}".rstrip()
    shown = each.show_default
    default = shown(each.field_info.default) if callable(shown) else shown or ""
    return (
        _code(name),
        _cell(each.parameter.help or ""),
        "required" if each.required else _cell(str(default or "")),
    )


def _knob(knob: Knob) -> Sequence[str]:
    bounds = [(words, getattr(knob, key)) for key, (words, _) in LIMITS.items()]
    allowed = ", ".join(f"{words} {limit}" for words, limit in bounds if limit not in (None, inf))
    flag = f"{knob.flag} {knob.metavar or ''}".rstrip()
    return _code(flag), _cell(knob.help), _cell(usual(knob) or ""), " or ".join(knob.choices or ()) or allowed


def _code(text: str) -> str:
    """Code inside a table: a bar between backticks would end the cell, or show its backslash."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(line) for line in (titles, *rows)]
    return "".join(f"| {line} |\n" for line in [lines[0], " | ".join(["---"] * len(titles)), *lines[1:]])


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(document(file.read_text()))
