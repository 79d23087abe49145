"""What must not move: the models and figures of runs, and the keys of cells.

``frozen.json`` holds what commit e86f414 gave. Sums of floating-point numbers depend on the kernels that a processor
gets, so it also says which torch and instruction set it was made with, and on which processor. Where torch or the
instructions are others, the models cannot be compared, but keys can. On such a machine a file of one's own can be made
from the commit before a change and compared after it::

    FEDSPRAY_DATA=DATA OMP_NUM_THREADS=1 python tests/frozen/frozen.py FILE.json
    FEDSPRAY_FROZEN=FILE.json OMP_NUM_THREADS=1 python -m pytest tests/frozen
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import fedspray
from fedspray import algorithms
from fedspray.data.federation import Federation
from fedspray.experiment import Experiment
from fedspray.runs.result import SeedResult
from fedspray.studies import cells
from fedspray.studies.cells import Cell
from fedspray.studies.study import Study

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
FILE = Path(os.environ.get("FEDSPRAY_FROZEN", Path(__file__).parent / "frozen.json"))
STUDIES = [file.stem for file in sorted((ROOT / "experiments").glob("*.toml"))]

_CUT_AT_ONCE = {"warmup": 0, "pause": 0, "min_gap": -2, "max_ratio": 2, "min_members": 2}
ON_BANKS: dict[str, Json] = {
    **{name: {"algorithm": name} for name in algorithms.names()},
    "clusters": {"algorithm": "gcfl", **_CUT_AT_ONCE},
    "clusters by gradients": {"algorithm": "gcfl-plus", "sequence_length": 2, **_CUT_AT_ONCE},
    "some clients": {"algorithm": "fedspray", "participation": 0.5, "selection": "balanced", "dropout": 0.2},
    "some nodes": {"algorithm": "fedavg", "sample_nodes": 8, "fanout": 3, "selection": "accuracy", "hidden": 8},
    "own networks": {"algorithm": "local", "backbone": "mlp", "backbone_of": {"bank_01": "gat"}},
}
"""Every algorithm with its defaults, and what defaults do not reach."""

ON_PUBMED = {
    f"{algorithm} {backbone}": {"algorithm": algorithm, "backbone": backbone}
    for algorithm in ("fedavg", "fedspray", "fedlit")
    for backbone in ("gcn", "sgc", "sage")
}


def banks() -> Federation:
    return fedspray.build_federation("banks", nodes=200)


def pubmed() -> Federation:
    """With the authors' node lists, from ``FEDSPRAY_DATA``."""
    return fedspray.build_federation("pubmed", partition_dir=Path("partitions/PubMed"))


def digests(federation: Federation, settings: Json) -> Json:
    """The models of a short run, and its figures without times."""
    (seed,) = fedspray.run(federation, rounds=3, **settings).seeds
    return {"models": digest(seed.metrics["models"]), "figures": digest(figures(seed))}


_POOLED = (
    *("overall", "minority", "majority", "balanced", "overall_client_mean", "minority_client_mean"),
    *("macro_f1", "recall", "loss"),
)
_CLIENT = ("overall", "minority", "nodes", "minority_nodes", "recall", "loss")
_COUNTED = ("round", "trained", "failed", "evaluated", "bytes_down", "bytes_up", "bytes_evaluation", "diagnostics")
_REPORTED = ("best_round", "rounds", "auc", "by_homophily", "bytes_up", "bytes_down", "failures")


def figures(seed: SeedResult) -> Json:
    """The figures by the names of commit e86f414: later ones may stand beside them."""

    def parts(source: Json, *names: str) -> Json:
        return {name: {key: source[name][key] for key in _POOLED} for name in names}

    metrics = seed.metrics
    return {
        **{name: metrics[name] for name in (*_REPORTED, *_POOLED)},
        **parts(metrics, "val", "train"),
        "clients": {k: {name: row[name] for name in (*_CLIENT, "round")} for k, row in metrics["clients"].items()},
        "records": [
            {
                **{name: record[name] for name in _COUNTED},
                **parts(record, "train", "val", "test"),
                "clients": {
                    k: {part: {name: row[part][name] for name in _CLIENT} for part in ("val", "test")}
                    for k, row in record["clients"].items()
                },
            }
            for record in seed.records
        ],
    }


def cells_of(name: str) -> Iterator[Cell]:
    """Every cell of a study in `experiments`, its searches included, in the order of its rows."""
    study = Study.from_values(Experiment.read_values(ROOT / "experiments" / f"{name}.toml"), name)
    for row in study.rows():
        yield from row.cells()
        search = study.search
        if search is not None:
            for point in (*(search.shared_points() if search.shared else ()), *search.points(row.method)):
                yield from row.with_values(point).with_seeds(search.seeds).cells(validation_only=True)


def keys(found: Iterable[Cell]) -> Json:
    """How many different cells, and the sha256 of their file names."""
    names = [cell.name(cell.key()) for cell in found]
    return {"cells": len(set(names)), "sha256": digest(names)}


def keys_on_banks(study: str, replace: Callable[[object, str, object], None] = setattr) -> Json:
    """The keys of a study's cells as if `banks` were its data: everything of a key that is not data."""
    federation = banks()
    replace(cells, "_open", lambda source: federation)
    replace(cells, "_fingerprint", lambda source: federation.fingerprint())
    return keys(cells_of(study))


def machine() -> Json:
    """What the bits of a run depend on."""
    return {"torch": torch.__version__, "instructions": torch.backends.cpu.get_cpu_capability()}


def processor() -> str:
    """For people: which one it is, as far as it says."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def everything() -> Json:
    os.chdir(ROOT)
    local, real = banks(), pubmed()
    return {
        "machine": machine(),
        "processor": processor(),
        "banks": {name: digests(local, settings) for name, settings in ON_BANKS.items()},
        "pubmed": {name: digests(real, settings) for name, settings in ON_PUBMED.items()},
        "keys": {study: keys(cells_of(study)) for study in STUDIES if study.endswith("-pubmed")},
        "keys_on_banks": {study: keys_on_banks(study) for study in STUDIES},
    }


if __name__ == "__main__":
    text = json.dumps(everything(), indent=1)
    Path(sys.argv[1]).write_text(re.sub(r"\n   +| *\n  (?=})", " ", text) + "\n")  # one line for each entry
