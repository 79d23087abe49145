"""An experiment: the data and a run on it. Every knob is declared here, once.

A knob is a field with a description and limits. Its name is the flag (with '-' for '_'), the key in TOML, the
argument in Python, the key in ``settings.json`` and the line in an agreement between organisations. Knobs of
one data set or partitioner (``nodes`` of `banks`, ``alpha`` of `label-skew`) are fields of that plug-in, in the
plug-in's own file, and are collected from there. Settings of algorithms and backbones stay behind ``--set`` and the
table ``[set]``::

    dataset = "pubmed"
    partitioner = "louvain"
    resolution = 0.5
    algorithm = "fedspray"
    seeds = 5

    [set]
    distill_weight = 2.0

Nothing here imports torch or NumPy, so that ``--help`` is fast.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedspray import datasets, plugins
from fedspray.errors import InputError, MissingDataError, unknown
from fedspray.knob import LIMITS, TABLE, Knob, check, kind_of, knob
from fedspray.partitioners.base import Partitioner

DATA, TRAINING, FILES = "Data", "Training", "Files"
"""The parts of an experiment, and the panels of ``--help``."""
DTYPES = ("float32", "float64")
MOST_SEEDS = 100_000
"""How many seeds a run may have."""
DEFAULT_ALGORITHM, PAPER_ALGORITHM = "fedspray2", "fedspray"
"""The defaults: the second with a preset, since presets are published settings."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """What names a federation."""

    dataset: str = knob(
        "banks",
        "A name from `fedspray datasets`, a graph in npz format, or a folder: a saved federation, or one npz per "
        "client.",
        metavar="NAME|FILE|DIR",
    )
    partitioner: str | None = knob(
        None,
        "How one graph is cut into clients: louvain, metis, label-skew, files, or package.module:Name.",
        metavar="NAME",
        usual="louvain",
    )
    clients: int | None = knob(None, "Number of clients.", metavar="K", usual="the data set's own")
    partition_seed: int = knob(0, "Draws the partition, and the graphs of `banks`.", metavar="INT", least=0)
    prepare: str | None = knob(
        None,
        "Steps before the graph is cut: largest-component, normalise-rows, or both, joined by commas.",
        metavar="STEPS",
    )
    split: str | None = knob(
        None,
        "Percent of the labelled nodes for training, validation and test.",
        metavar="A/B/C",
        usual="40/30/30",
    )
    split_scope: str | None = knob(
        None,
        "client: every client draws its own split; graph: one is drawn before the graph is cut.",
        metavar="client|graph",
        usual="client",
    )
    own: Mapping[str, Any] = field(default_factory=dict)
    """The knobs of the data set or partitioner as given, by name."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def of(cls, **values: Any) -> Data:
        """From flat values, as `to_json` gives them; None means not given."""
        given = {name: value for name, value in values.items() if value is not None}
        core = {name: given.pop(name) for name in _names(cls) if name in given}
        return cls(**core, own=given)

    def to_json(self) -> dict[str, Any]:
        """All of it, flat."""
        return {**{name: getattr(self, name) for name in _names(Data)}, **self.own}

    def located(self) -> Data:
        """The same with absolute paths, so that a run can be resumed from anywhere."""
        values = self.to_json()
        if self.dataset not in datasets.names() and located(self.dataset).exists():
            values["dataset"] = str(located(self.dataset).absolute())
        for name in (name for name in self.own if knobs()[name].kind.startswith("Path")):
            values[name] = str(datasets.DataFolders.from_environment().located(Path(values[name])).absolute())
        return Data.of(**values)


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The number of rounds, participation, and the reported round."""

    rounds: int = knob(300, "Number of rounds.", metavar="R", least=1)
    patience: int = knob(
        0,
        "Stop after so many rounds in a row without a better one by validation; 0: never.",
        metavar="N",
        least=0,
        neutral=0,
    )
    participation: float = knob(1.0, "Share of clients that train in a round.", metavar="X", above=0, most=1)
    min_clients: int | None = knob(
        None,
        "Stop when fewer clients than this train in a round.",
        metavar="K",
        least=1,
        usual="half of those asked, rounded up",
    )
    selection: str = knob("loss", "How validation picks the reported round: loss, accuracy, balanced …", metavar="RULE")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything besides the data that decides a run's result."""

    algorithm: str = knob(
        None,
        "A name from `fedspray algorithms`, or package.module:Name.",
        metavar="NAME",
        usual=f"{DEFAULT_ALGORITHM}, or {PAPER_ALGORITHM} if a preset is given",
    )
    backbone: str = knob("gcn", "gcn, sgc, sage, mlp, gat, or package.module:Name.", metavar="NAME")
    preset: str | None = knob(
        None,
        "A named set of the algorithm's settings: paper or released for fedspray, published for others.",
        metavar="NAME",
    )
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the algorithm, backbone and rounds that differ from the defaults (and from the preset)."""
    backbone_of: Mapping[str, str] = knob(
        dict, "Another backbone for one client, with methods that don't share the GNN.", metavar="CLIENT=NAME"
    )
    seeds: tuple[int, ...] = (0,)
    keep_split: bool = knob(
        False, "Use the splits of a saved federation for every seed, instead of drawing them from the seed."
    )
    baseline: str | None = knob(
        None,
        "Also train this baseline, and report which clients are better off: local.",
        metavar="local",
        usual="nothing",
        choices=("local",),
        neutral=None,
    )
    dtype: str = knob(DTYPES[0], "Type of weights and messages: float32 or float64.", metavar="TYPE", choices=DTYPES)
    device: str = knob("cpu", "Where clients train: cpu, cuda, cuda:NUMBER, mps, or auto.", metavar="NAME")
    link: tuple[str, ...] = knob(
        (),
        "A step for messages between clients and server, with its settings ('noise sigma=0.1'): see `fedspray links`.",
        metavar="'NAME SETTING=VALUE …'",
        neutral=(),
    )

    def __post_init__(self) -> None:
        check(self)
        if self.algorithm is None:
            usual = DEFAULT_ALGORITHM if self.preset is None else PAPER_ALGORITHM
            object.__setattr__(self, "algorithm", usual)
        for each in fields(self):
            if kind_of(each).startswith("tuple["):  # JSON has lists
                object.__setattr__(self, each.name, tuple(getattr(self, each.name)))
        if not self.seeds:
            raise InputError("seeds is empty, but must hold at least one seed")
        for client, name in self.backbone_of.items():
            if not isinstance(name, str):
                raise InputError(f"backbone_of gives {client} {name!r}, but must give it a backbone's name")
        for seed in self.seeds:
            if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
                raise InputError(f"seeds contain {seed!r}, but must be whole numbers from 0 on")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds are {list(self.seeds)}, but each may be given once")

    def to_json(self) -> dict[str, Any]:
        """All fields, as ``RunSettings(**…)`` takes them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def of_client(self, name: str) -> RunSettings:
        """The settings as one client sees them: only its own backbone."""
        return replace(self, backbone=self.backbone_of.get(name, self.backbone), backbone_of={})


@dataclass(frozen=True, kw_only=True)
class Way:
    """How and where to run, which decides no result and is no part of an experiment."""

    threads: int | None = knob(
        None, "Threads for training.", metavar="N", least=1, most=4096, usual="1, or the run's own"
    )
    engine: str = knob(
        "local", "Trains clients in this process (local), or in an actor for each thread (ray).", metavar="NAME"
    )
    cluster: str | None = knob(None, "Address of the Ray head.", metavar="ADDRESS", usual="started here")
    checkpoint_every: int | None = knob(
        None, "Rounds between checkpoints.", metavar="N", least=1, usual="by time, under 5% of the run", part=FILES
    )
    track: str | None = knob(
        None, "Also log the run to MLflow or Weights & Biases.", metavar="mlflow|wandb", part=FILES
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything ``fedspray run`` takes."""

    data: Data = field(default_factory=Data)
    run: RunSettings = field(default_factory=RunSettings)

    @staticmethod
    def from_values(values: Mapping[str, Any], where: str) -> Experiment:
        """From flat values, as in a TOML file or from flags; unknown names are refused."""
        if "compare" in values:
            raise InputError(f"{where}: [compare] is for `fedspray compare`; this command takes one experiment")
        known = knobs()
        for name in values:
            if name not in known:
                raise InputError(f"{where}: {unknown('key', str(name), known)} (settings go under [set])")
        read = {name: known[name].read(value, f"{where}: ") for name, value in values.items()}
        data = Data.of(**{name: value for name, value in read.items() if known[name].part == DATA})
        return Experiment(data=data, run=_run_settings(read))

    @staticmethod
    def read_values(file: Path) -> dict[str, Any]:
        """The values in a TOML file."""
        try:
            return tomllib.loads(file.read_text())
        except FileNotFoundError:
            raise MissingDataError(f"{file} is not a file, but must be an experiment in TOML") from None
        except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
            raise InputError(f"{file} is not readable TOML ({error})") from None


def _run_settings(given: Mapping[str, Any]) -> RunSettings:
    if given.get("seed") is not None and given.get("seeds") is not None:
        raise InputError(f"seed is {given['seed']} and seeds is {given['seeds']}, but give only one of them")
    own = {name: given[name] for name in _names(RunSettings) if name in given}
    settings = {name: given[name] for name in SETTINGS if given.get(name) is not None}
    twice = next((name for name in settings if name in given.get("set", {})), None)
    if twice is not None:
        raise InputError(f"{twice} is given twice: as a flag and as a setting")
    count = given.get("seeds")
    seeds = tuple(range(count)) if count is not None else (given.get("seed") or 0,)
    return RunSettings(**own, values={**given.get("set", {}), **settings}, seeds=seeds)


# ---- knobs --------------------------------------------------------------------------------------


@cache
def knobs() -> dict[str, Knob]:
    """Every knob by name, those of the data first."""
    found = {knob.name: knob for knob in (*_declared(Data, DATA), *_plugin_knobs())}
    run = (*_declared(RunSettings, TRAINING), *_declared(RoundSettings, TRAINING), *_OTHERS)
    twice = sorted(found.keys() & {each.name for each in run})
    if twice:
        raise TypeError(f"{twice[0]} is a knob of both the data and the run, but a name must have one meaning")
    return found | {each.name: each for each in run}


def data_knobs() -> dict[str, Knob]:
    """The knobs that name a federation."""
    return {name: each for name, each in knobs().items() if each.part == DATA}


@cache
def way_knobs() -> dict[str, Knob]:
    """The knobs that decide no result."""
    return {each.name: each for each in _declared(Way, TRAINING)}


def run_knobs() -> set[str]:
    """The knobs of the run that aren't settings, such as `dtype` and `keep_split`."""
    return {*_names(RunSettings)} - {"algorithm", "backbone", "preset", "backbone_of"}


_OTHERS = (
    Knob("local_epochs", "int | None", "Local steps in a round.", TRAINING, metavar="E", least=1, usual="5"),
    Knob("set", TABLE, "Any setting of algorithm or backbone; see `fedspray algorithms`.", TRAINING, {}, "NAME=VALUE"),
    Knob("seed", "int | None", "One seed.", TRAINING, metavar="INT", least=0, usual="0"),
    Knob("seeds", "int | None", "Several seeds, from 0 on.", TRAINING, metavar="N", least=1, most=MOST_SEEDS),
)
"""`local_epochs` is a setting of every algorithm, with its own flag; the others are stored differently."""


def owned_fields(plugin: type[Any]) -> dict[str, Field[Any]]:
    """The fields of a data set's or partitioner's class by the name of their knob: ``num_nodes`` is ``nodes``."""
    return {each.name.removeprefix("num_"): each for each in fields(plugin)}


def partitioners() -> dict[str, type[Partitioner]]:
    """All partitioners by name."""
    package = "fedspray.partitioners"
    return {name: plugins.load_class(package, "partitioner", name, Partitioner) for name in plugins.names(package)}


def _plugin_knobs() -> list[Knob]:
    """The knobs of data sets and partitioners; two of the same name must be the same."""
    found: dict[str, Knob] = {}
    core = {each.name: each for each in _declared(Data, DATA)}
    for owner, plugin in {**partitioners(), **datasets.generators()}.items():
        for name, each in owned_fields(plugin).items():
            kind = kind_of(each)
            same = core.get(name) or found.get(name)
            if same is not None and kind not in (same.kind, same.kind.removesuffix(" | None")):
                raise TypeError(f"{name} of {owner} is {kind}, but elsewhere {same.kind}: a name must have one meaning")
            if name not in core:
                owners = (*(same.owners if same else ()), owner)
                text = f"For {' and '.join(f'`{each}`' for each in owners)}: {each.metadata['help']}."
                limits = {key: each.metadata[key] for key in LIMITS if key in each.metadata}
                metavar = each.metadata.get("metavar", _METAVARS.get(kind, "X"))
                usual = None if each.default in (MISSING, None) else str(each.default)
                wanted = kind if kind.endswith("None") else f"{kind} | None"
                found[name] = Knob(name, wanted, text, DATA, None, metavar, usual, **limits, owners=owners)
    return list(found.values())


_METAVARS = {"int": "N", "int | None": "N", "Path": "DIR", "str": "NAME"}


def _declared(owner: type[Any], part: str) -> list[Knob]:
    """The knobs that are fields of a class here; ``neutral`` only concerns results."""
    found = []
    for each in fields(owner):
        if "help" in each.metadata:
            about = {name: value for name, value in each.metadata.items() if name != "neutral"}
            default = {} if each.default is MISSING else each.default
            found.append(Knob(each.name, kind_of(each), default=default, **{"part": part, **about}))
    return found


def _names(owner: type[Any]) -> list[str]:
    return [each.name for each in fields(owner) if "help" in each.metadata]


SETTINGS = (*_names(RoundSettings), "local_epochs")
"""Knobs that are settings too: ``--rounds 5`` is ``--set rounds=5``."""


def located(dataset: str) -> Path:
    """The path of a data set that is not a name: here, or in the data folder if it has a ``/``."""
    path = Path(dataset)
    return datasets.DataFolders.from_environment().located(path) if len(path.parts) > 1 else path


def check_node_lists(values: Mapping[str, Any], dataset: str, where: str) -> None:
    """Refuses to cut another graph, which a flag names, by the file's node lists: their ids would fit it too."""
    own, lists = values.get("dataset"), values.get("partition_dir")
    if lists is not None and own is not None and own != dataset:
        raise InputError(
            f"{where}: partition_dir is {str(lists)!r}, node lists of {own}, but --dataset is {dataset}: "
            "pass its own with --partition-dir"
        )
