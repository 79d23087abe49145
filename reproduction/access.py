"""Which data is here, and whose clients it is cut into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedspray import Federation, InputError, MissingDataError
from fedspray.datasets import DataFolders
from fedspray.experiment import Data
from fedspray.federate import open_data

AUTHORS, LOUVAIN, OWN = "authors'", "Louvain's", ""

LISTS = "xbfu/FedSpray"
"""The repository with the authors' node lists."""


@dataclass(frozen=True, eq=False)
class Found:
    """Data found here."""

    data: Data
    """With the node lists' real place."""
    split: str
    federation: Federation


@dataclass(frozen=True)
class NotFound:
    """Missing data, and where to put it."""

    reason: str


@dataclass(eq=False)
class Access:
    """Finds data, each set once.

    Args:
        partitions: folders in which the authors' node lists are looked for, as ``PubMed/client_01.txt`` …
    """

    partitions: Sequence[Path]
    _known: dict[str, Found | NotFound] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, chosen: Path | None = None) -> Access:
        """The folder that was asked for; or ``partitions`` here, then in the data folder."""
        folders = DataFolders.from_environment()
        if chosen is not None:
            chosen = folders.located(chosen)
            if not chosen.is_dir():
                raise InputError(
                    f"--partitions {chosen} is not a folder, but one with a folder for each data set is needed"
                )
            return cls([chosen])
        return cls([Path("partitions"), *([] if folders.data is None else [folders.data / "partitions"])])

    def find(self, data: Data, *, features: bool = True) -> Found | NotFound:
        """The federation of some data: with the authors' clients if their lists are here, else with Louvain's.

        Args:
            data: what is looked for.
            features: whether the nodes' features are needed too.
        """
        key = json.dumps(data.to_json(), sort_keys=True)
        if key not in self._known:
            self._known[key] = self._look(data)
        found = self._known[key]
        if features and isinstance(found, Found) and found.federation.task.num_features == 0:
            return NotFound(f"The edges and labels of {data.dataset} are here, but not its node features.")
        return found

    def lists(self, name: str) -> Path | None:
        """The folder of the authors' node lists of a data set, such as ``PubMed``."""
        return next((root / name for root in self.partitions if any((root / name).glob("*.txt"))), None)

    def where_lists_go(self, name: str) -> str:
        """A sentence for people who do not have the lists."""
        return f"The authors' node lists (repository {LISTS}) belong into {self.partitions[0] / name}."

    def _look(self, data: Data) -> Found | NotFound:
        values, split = data.to_json(), OWN
        if values.get("partition_dir") is not None:
            lists = self.lists(Path(values["partition_dir"]).name)
            split = LOUVAIN if lists is None else AUTHORS
            values |= {
                "partition_dir": None if lists is None else str(lists.absolute()),
                "partitioner": None if lists is None else "files",
            }
        try:
            return Found(Data.of(**values), split, open_data(Data.of(**values)))
        except MissingDataError as error:
            text = str(error)
            return NotFound(f"{text[0].upper()}{text[1:]}.")
