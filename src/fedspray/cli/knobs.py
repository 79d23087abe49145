"""The flags of an experiment, made from its knobs: a new knob becomes a flag of every command it concerns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

from cyclopts import Parameter

from fedspray.cli.flags import flag
from fedspray.cli.output import Output
from fedspray.errors import InputError
from fedspray.experiment import DATA, TRAINING, knobs, way_knobs
from fedspray.knob import Knob

if TYPE_CHECKING:
    from fedspray.data.federation import Federation
    from fedspray.experiment import Experiment as ReadExperiment

Given = dict[str, Any]
"""The given flags as texts, by the names of their knobs."""
_NOT_ATTACKED = ("link", "seeds", "keep_split", "baseline", "backbone_of")
_LISTS = ("dataset", "algorithm", "backbone")
"""The knobs a study takes several values of."""


def flags_of(chosen: Iterable[Knob], *, lists: Collection[str] = (), required: Collection[str] = ()) -> Any:
    """The annotation of a parameter that receives the given flags by name."""
    kinds = {}
    for knob in chosen:
        many: bool = knob.name in lists or knob.is_table or knob.is_list
        kind = list[str] if many else bool if knob.kind == "bool" else str
        kinds[knob.name] = Annotated[Required[kind] if knob.name in required else kind, _described(knob, many)]
    return Annotated[TypedDict("Flags", kinds, total=False), Parameter(name="*")]  # type: ignore[operator]


def _described(knob: Knob, many: bool) -> Parameter:
    text = f"{knob.help.removesuffix('.')}; repeatable." if many else knob.help
    names = f"{knob.name}s" if knob.name in ("dataset", "algorithm", "partitioner") else ""
    return flag(text, knob.metavar, box=knob.part, default=usual(knob), complete=names)


def usual(knob: Knob) -> str | None:
    """The default in words."""
    if knob.usual is not None or knob.default in (None, ()) or knob.kind == "bool" or knob.is_table:
        return knob.usual
    return str(knob.default)


if TYPE_CHECKING:
    Experiment = Given
    Training = Given
    Amendment = Given
    Data = Given
    Study = Given
    Search = Given
    Attack = Given
    Way = Given
else:

    @cache
    def __getattr__(name: str) -> Any:  # built when a command needs them
        if name not in _CHOSEN:
            raise AttributeError(name)
        return _CHOSEN[name](list(knobs().values()))


def _data(known: list[Knob]) -> Any:
    seed = next(knob for knob in known if knob.name == "seed")
    split = replace(seed, help="Draws the splits.", usual="0; a saved federation keeps its own split", part=DATA)
    return flags_of([*(knob for knob in known if knob.part == DATA), split], required=["dataset"])


def _study(known: list[Knob], *others: str) -> Any:
    text = "Any setting, for all cells or those of a data set, method or backbone (fedspray:distill_weight=2)."
    owned = {knob.name: replace(knob, help=text, metavar="[OWNER:]NAME=VALUE") for knob in known if knob.name == "set"}
    return flags_of([owned.get(knob.name, knob) for knob in known if knob.name not in others], lists=_LISTS)


_CHOSEN: dict[str, Callable[[list[Knob]], Any]] = {
    "Experiment": flags_of,
    "Training": lambda known: flags_of([knob for knob in known if knob.part == TRAINING]),
    "Amendment": lambda known: flags_of([replace(knob, usual="as agreed") for knob in known if knob.part == TRAINING]),
    "Data": _data,
    "Study": lambda known: _study(known, "seed"),
    "Attack": lambda known: flags_of([k for k in known if k.name not in _NOT_ATTACKED], lists=["algorithm"]),
    "Search": lambda known: _study(known, "seed", "seeds"),
    "Way": lambda _: flags_of(way_knobs().values()),
}
"""The flags of a run, of a run on others' data, of a change to it, of a federation, study, attack, search or way."""


def values(given: Given | None) -> Given:
    """The flags as keys of an experiment, with their types: ``--set`` and ``--backbone-of`` as tables."""
    found: Given = {}
    for name, value in (given or {}).items():
        knob = knobs().get(name) or way_knobs()[name]
        if knob.is_table:
            found[name] = dict(_pair(knob.flag, item) for item in value)
        elif isinstance(value, list) and not knob.is_list:
            found[name] = [knob.read(each) for each in value]
        else:
            found[name] = knob.read(value)
    return found


def read(config: Path | None, given: Given | None) -> ReadExperiment:
    """The experiment in a file, if one is given, with its values overridden by flags."""
    from fedspray.experiment import Experiment, check_node_lists

    flags = values(given)
    found = {} if config is None else Experiment.read_values(config)
    if "dataset" in flags and "partition_dir" not in flags:
        check_node_lists(found, flags["dataset"], str(config))
    for name in ("set", "backbone_of"):
        if name in found and name in flags and isinstance(found[name], dict):
            flags[name] = {**found[name], **flags[name]}
    if "seed" in flags or "seeds" in flags:
        found = {name: value for name, value in found.items() if name not in ("seed", "seeds")}
    return Experiment.from_values({**found, **flags}, "command line" if config is None else str(config))


def open_federation(output: Output, data: Given) -> Federation:
    """Builds the federation that these values describe, with a spinner on standard error."""
    from fedspray.federate import build_federation

    with output.busy(f"preparing {data['dataset']} …"):
        federation = build_federation(**data)
    note_tidied(output, federation)
    return federation


def note_tidied(output: Output, federation: Federation) -> None:
    """Reports how a user's own graph was tidied, and traps that would otherwise stay silent."""
    from fedspray.federate import traps_of

    tidied = federation.settings.get("tidied")
    if tidied:
        output.note(f"{federation.settings['dataset']}: {tidied}")
    for trap in traps_of(federation):
        output.note(f"warning: {trap.sentence}")


def _pair(flag: str, item: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in item.partition("="))
    if not name or not value:
        raise InputError(f"{flag} is {item!r}, but must be of the form NAME=VALUE")
    return name, value
