"""Runs a variant on validation nodes alone and adds a row to trials.csv; test nodes are never looked at.

Half of each client's validation nodes choose the round, the blend and the shift ("choice"); the other half stand in
for test nodes ("held"), so that no figure comes from nodes that something was chosen on. The real test nodes are
unlabelled here.

    FEDSPRAY_DATA=... python develop.py NAME DATASET BACKBONE ROUNDS SEED[,SEED...] ALGORITHM [SETTING=VALUE ...]
"""

from __future__ import annotations

import ast
import csv
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedspray
from fedspray import Federation, build_federation
from fedspray.data.federation import Client, Split
from fedspray.data.graph import UNLABELLED
from fedspray.datasets.gnn_benchmark import read_npz
from fedspray.seeds import generator

TRIALS = Path(__file__).with_name("trials.csv")
AUTHORS = {"pubmed": "PubMed", "physics": "Physics"}


def halved(client: Client, seed: int) -> Client:
    """The client with half of its validation nodes as test nodes, and its real test nodes unlabelled."""
    split = client.split
    nodes = generator(seed, "half", client.name).permutation(np.flatnonzero(split.val))
    held = np.isin(np.arange(len(split.val)), nodes[: len(nodes) // 2])
    graph = replace(client.graph, labels=np.where(split.test, UNLABELLED, client.graph.labels))
    return replace(client, graph=graph, split=Split(split.train, split.val & ~held, held))


def federation_of(dataset: str, seed: int) -> Federation:
    """The authors' clients where they published some, otherwise ten by Louvain."""
    if dataset in AUTHORS:
        whole = build_federation(dataset, partition_dir=Path("partitions") / AUTHORS[dataset], seed=seed)
    elif dataset == "computers":  # the same file format as Coauthor's
        raw = Path(os.environ["FEDSPRAY_DATA"]) / "Computers" / "raw" / "amazon_electronics_computers.npz"
        with tempfile.TemporaryDirectory() as folder:
            read_npz(raw).to_npz(Path(folder) / "computers.npz")
            whole = build_federation(Path(folder) / "computers.npz", partitioner="louvain", clients=10, seed=seed)
    else:
        whole = build_federation(dataset, partitioner="louvain", clients=10, seed=seed)
    return replace(whole, clients=tuple(halved(client, seed) for client in whole.clients))


def parsed(given: Sequence[str]) -> dict[str, Any]:
    """Settings from their text."""
    pairs = (text.split("=", 1) for text in given)
    return {key: value if value.islower() else ast.literal_eval(value) for key, value in pairs}


def write_row(key: tuple[str, str, str, int, int, str, Sequence[str]], record: dict[str, Any], seconds: float) -> None:
    """Adds one row: what was run, and the record of its best round."""
    name, dataset, backbone, seed, rounds, algorithm, given = key
    row = {
        "variant": name,
        "dataset": dataset,
        "backbone": backbone,
        "seed": seed,
        "rounds": rounds,
        "algorithm": algorithm,
        "settings": " ".join(given),
        "defaults": "B",
        "best_round": record["round"],
        **{key: record["diagnostics"].get(key, "") for key in ("blend", "shift")},
        **{
            f"{part}_{metric}": f"{100 * record[key][metric]:.2f}"
            for part, key in (("choice", "val"), ("held", "test"))
            for metric in ("overall", "minority")
        },
        "choice_loss": f"{record['val']['loss']:.4f}",
        "cpu_seconds": f"{seconds:.0f}",
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": f"fedspray {fedspray.__version__}, torch {torch.__version__}",
    }
    new = not TRIALS.exists()
    with TRIALS.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, row)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print({name: row[name] for name in list(row)[:-3] if name not in ("rounds", "algorithm")}, flush=True)


def main(name: str, dataset: str, backbone: str, rounds: int, seeds: list[int], algorithm: str, *given: str) -> None:
    """Runs each seed and writes its row."""
    for seed in seeds:
        began = time.process_time()
        result = fedspray.run(
            federation_of(dataset, seed),
            algorithm=algorithm,
            backbone=backbone,
            rounds=rounds,
            seeds=(seed,),
            keep_split=True,
            **parsed(given),
        ).seeds[0]
        record = next(r for r in result.records if r["round"] == result.metrics["best_round"])
        write_row((name, dataset, backbone, seed, rounds, algorithm, given), record, time.process_time() - began)


if __name__ == "__main__":
    name, dataset, backbone, rounds, seeds, algorithm, *given = sys.argv[1:]
    main(name, dataset, backbone, int(rounds), [int(seed) for seed in seeds.split(",")], algorithm, *given)
