"""An experiment: where the data come from, and the run on them, from a TOML file or from flags.

The keys of the file are the names of the flags, with '_' for '-'; tables ``[set]`` and ``[backbone_of]``
hold what ``--set`` and ``--backbone-of`` give::

    dataset = "pubmed"
    partitioner = "files"
    partition_dir = "partitions/PubMed"
    algorithm = "fedspray"
    backbone = "gcn"
    seeds = 5

    [set]
    distill_weight = 2.0
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedspray import datasets
from fedspray.data.federation import Federation
from fedspray.errors import InputError, MissingDataError, unknown
from fedspray.federate import DATA_KEYS, build_federation, located
from fedspray.runs.settings import DTYPES, RunSettings, parse


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All that ``fedspray run`` takes."""

    dataset: str = "banks"
    partitioner: str | None = None
    partition_dir: str | None = None
    clients: int | None = None
    nodes: int | None = None
    alpha: float | None = None
    partition_seed: int = 0
    prepare: str | None = None
    split: str | None = None
    split_scope: str | None = None
    algorithm: str = "fedspray"
    backbone: str = "gcn"
    preset: str | None = None
    rounds: int | None = None
    local_epochs: int | None = None
    participation: float | None = None
    min_clients: int | None = None
    selection: str | None = None
    seed: int | None = None
    """One seed."""
    seeds: int | None = None
    """This many seeds, from 0 on."""
    keep_split: bool = False
    dtype: str = DTYPES[0]
    set: Mapping[str, Any] = field(default_factory=dict)
    backbone_of: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], where: str) -> Experiment:
        """From named values; unknown names are refused."""
        kinds = {f.name: str(f.type) for f in fields(cls)}
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name == "compare":
                raise InputError(f"{where}: [compare] is for `fedspray compare`, but this command takes one experiment")
            if name not in kinds:
                raise InputError(f"{where}: {unknown('key', str(name), kinds)} (settings go under [set])")
            if name in ("set", "backbone_of"):
                if not isinstance(value, Mapping):
                    raise InputError(f"{where}: {name} is {value!r}, but must be a table of names and values")
                checked[name] = dict(value)
            else:
                checked[name] = parse(name, value, kinds[name])
        return cls(**checked)

    @classmethod
    def read_values(cls, file: Path) -> dict[str, Any]:
        """The values in a TOML file."""
        try:
            return tomllib.loads(file.read_text())
        except FileNotFoundError:
            raise MissingDataError(f"{file} is not a file, but an experiment in TOML is needed") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not readable TOML ({error})") from None

    def source(self) -> dict[str, Any]:
        """What names the data; paths are absolute, so that a run can be resumed from anywhere."""
        values = {name: getattr(self, name) for name in DATA_KEYS}
        if self.dataset not in datasets.names() and located(self.dataset).exists():
            values["dataset"] = str(located(self.dataset).absolute())
        if self.partition_dir is not None:
            found = datasets.DataFolders.from_environment().located(Path(self.partition_dir))
            values["partition_dir"] = str(found.absolute())
        return values

    def run_settings(self) -> RunSettings:
        """What names the run."""
        if self.seed is not None and self.seeds is not None:
            raise InputError(f"seed is {self.seed} and seeds is {self.seeds}, but only one of them may be given")
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}, but must be at least 1")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed is {self.seed}, but must be at least 0")
        named = ("rounds", "local_epochs", "participation", "min_clients", "selection")
        flags = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        for name in flags:
            if name in self.set:
                raise InputError(f"{name} is given twice: as a flag of its own and as a setting")
        return RunSettings(
            algorithm=self.algorithm,
            backbone=self.backbone,
            preset=self.preset,
            values={**self.set, **flags},
            backbone_of=self.backbone_of,
            keep_split=self.keep_split,
            dtype=self.dtype,
            seeds=tuple(range(self.seeds)) if self.seeds is not None else (self.seed or 0,),
        )


def check_node_lists(values: Mapping[str, Any], dataset: str, where: str) -> None:
    """Refuses to cut another graph by the node lists of a file's own: ids of the one are ids of the other too.

    Args:
        values: the file's.
        dataset: what a flag names instead.
        where: the file.
    """
    own, lists = values.get("dataset"), values.get("partition_dir")
    if lists is not None and own is not None and own != dataset:
        raise InputError(
            f"{where}: partition_dir is {str(lists)!r}, node lists of {own}, but --dataset is {dataset}: "
            "give its own with --partition-dir"
        )


def open_source(source: Mapping[str, Any]) -> Federation:
    """The federation that `Experiment.source` names."""
    values = dict(source)
    if values["partition_dir"] is not None:
        values["partition_dir"] = Path(values["partition_dir"])
    return build_federation(values.pop("dataset"), **values)
