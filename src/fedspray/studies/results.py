"""A stored cell: one small JSON file, enough for every table, curve and test.

Besides the metrics and curves of the run, it holds its nodes (`NodeTable`), so that methods can be compared on the
same ones, and its class vectors, if the method has any, for the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedspray import files, stored
from fedspray.errors import InputError
from fedspray.files import Json
from fedspray.runs import nodes, proxies
from fedspray.runs.nodes import NodeTable
from fedspray.runs.proxies import ClassProxies
from fedspray.runs.result import SeedResult
from fedspray.runs.store import CURVES as CURVES

_WITHOUT_TEST = ("best_round", "rounds", "val", "train", "bytes_up", "bytes_down", "failures", "seconds", "cpu_seconds")
"""Metrics that studies need; old files may lack others."""


@dataclass(frozen=True, eq=False)
class CellResult:
    """The content of a finished cell's file."""

    content: Json

    @classmethod
    def from_run(cls, header: Json, folder: Path, result: SeedResult, *, validation_only: bool) -> CellResult:
        """Keeps what a study needs of a run; the header, what was run and on what, comes first in the file."""
        parts = ("train", "val") if validation_only else ("train", "val", "test")
        metrics = {k: v for k, v in result.metrics.items() if k in _WITHOUT_TEST or not validation_only}
        content = {
            **header,
            "validation_only": validation_only,
            "metrics": metrics,
            "curves": {
                part: {name: [_short(record[part][name]) for record in result.records] for name in CURVES}
                for part in parts
            },
        }
        if not validation_only:
            if not (folder / nodes.FILE).exists():
                raise InputError(
                    "a comparison is made on test nodes, but with secure-sum, and with dp without evaluation=exact, "
                    "they are known to the clients only: use fedspray run"
                )
            content["nodes"] = files.read_json(folder / nodes.FILE)
            if (folder / proxies.FILE).exists():
                content["proxies"] = ClassProxies.load(folder / proxies.FILE).to_json()
        return cls(content)

    @property
    def metrics(self) -> Json:
        """The entry of the run's seed: test metrics at the top, `val` and `train` below, bytes and seconds."""
        metrics: Json = self.content["metrics"]
        return metrics

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return int(self.content["seed"])

    @cached_property
    def nodes(self) -> NodeTable:
        """Which test nodes were predicted correctly."""
        return NodeTable.from_json(self.content["nodes"])

    @property
    def proxies(self) -> ClassProxies | None:
        """The class vectors of the reported round; None if the method has none."""
        kept = self.content.get("proxies")
        return None if kept is None else ClassProxies.from_json(kept)

    def save(self, path: Path) -> None:
        """Writes the file in one step, one line for each top-level key."""
        lines = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in files.seal(self.content).items())
        files.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: Path, key: str) -> CellResult:
        """Reads a cell's file and checks its key."""
        try:
            content = stored.read(path, stored.Cell)
            if not content["validation_only"]:
                stored.check(content["metrics"], stored.Seed, path)
            if content.get("key") != key:
                raise InputError(f"{path} holds the key {content.get('key')!r}, but must hold {key!r}")
            cell = cls(content)
            cell._check()
        except InputError as error:
            raise InputError(f"{error}: remove the file to run the cell again") from None
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise InputError(f"{path} is damaged: remove the file to run the cell again") from None
        return cell

    def _check(self) -> None:
        """Raises an error if something that studies read is missing, beside what `stored` demands."""
        tested = not self.content["validation_only"]
        metrics, rounds = self.metrics, self.metrics["rounds"]
        for name in _WITHOUT_TEST:
            metrics[name]
        kept = {"val", *(["test"] * tested), *self.content["curves"]}
        curves = [self.content["curves"][part][name] for part in kept for name in CURVES]
        if not {"overall", "minority"} <= set(metrics["val"]) or {len(curve) for curve in curves} != {rounds}:
            raise KeyError
        if tested and (
            self.nodes.counts.shape[1] != len(metrics["recall"]) or not set(metrics["clients"]) <= {*self.nodes.clients}
        ):
            raise KeyError


def _short(value: float | None) -> float | None:
    """Curves are for pictures: five digits."""
    return None if value is None else float(f"{value:.5g}")
