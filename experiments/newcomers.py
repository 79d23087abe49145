"""Newcomers: every client left out in turn, then given a model by `fedspray adapt` and, alone, by Local.

    python -m experiments.newcomers results/newcomers/physics.jsonl --dataset physics
    python -m experiments.newcomers results/newcomers/citation.jsonl --dataset citation

A file has a line for each client and seed that is done, so the command can be stopped and given again. Local trains
five times longer than the newcomer does (`rounds` against 5 · `rounds`), with the same rule for its reported round.
`--table` prints what a file holds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

import fedspray as fs
from fedspray.data.federation import Client, Federation
from fedspray.data.minority import NONE, is_minority
from fedspray.files import Json, append_line, read_lines
from fedspray.runs.adapt import ROUNDS, SharedPart, adapt
from fedspray.runs.models import PersonalModel

LONGER = 5
PLACES = {
    "physics": {"partition_dir": "partitions/Physics"},
    "citation": {},
    "pubmed": {"partition_dir": "partitions/PubMed"},
}


def measure(federation: Federation, left_out: Client, algorithm: str, seed: int) -> Json:
    """One client's two models, on its test nodes."""
    others = replace(federation, clients=tuple(c for c in federation.clients if c is not left_out))
    trained = fs.run(others, algorithm, keep_split=True, seeds=[seed], progress=False)
    shared = SharedPart.of(trained.models)
    assert shared is not None
    joined = adapt(shared, left_out, seed=seed)
    alone = fs.run(
        replace(federation, clients=(left_out,)),
        "local",
        rounds=LONGER * ROUNDS,
        keep_split=True,
        seeds=[seed],
        progress=False,
    ).models[left_out.name]
    counts = {name: _right(model, left_out) for name, model in (("adapt", joined), ("local", alone))}
    return {"client": left_out.name, "seed": seed, "algorithm": algorithm, "rounds": ROUNDS, **counts}


def _right(model: PersonalModel, client: Client) -> Json:
    labels, test = client.graph.labels, client.split.test
    right = model.predict(client.graph, client.split.train).argmax(axis=1) == labels
    majority = NONE if client.majority_class is None else client.majority_class
    minority = test & is_minority(labels, majority)
    return {
        "round": model.snapshot.round_index,
        "overall": [int(right[test].sum()), int(test.sum())],
        "minority": [int(right[minority].sum()), int(minority.sum())],
    }


def table(rows: list[Json]) -> str:
    """Means and worst clients, in Markdown."""
    lines = ["| model | overall, mean | overall, worst | minority, mean | minority, worst |", "|---|---|---|---|---|"]
    for name in ("adapt", "local"):
        cells = []
        for group in ("overall", "minority"):
            shares = [100 * row[name][group][0] / row[name][group][1] for row in rows if row[name][group][1]]
            cells += [f"{np.mean(shares):.2f}", f"{np.min(shares):.2f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing in a file, or shows it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", choices=sorted(PLACES), default="physics")
    parser.add_argument("--algorithm", default="fedspray2")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(read_lines(options.out)))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["client"], row["seed"], row["algorithm"]) for row in read_lines(options.out)}
    whole = fs.build_federation(options.dataset, **PLACES[options.dataset])
    for seed in range(options.seeds):
        split = whole.with_split(seed)
        for client in split.clients:
            if (client.name, seed, options.algorithm) not in done:
                append_line(options.out, json.dumps(measure(split, client, options.algorithm, seed)))


if __name__ == "__main__":
    main()
