"""Many small federations, each trained once: what the advisor of `fedspray inspect --advise` is fitted on.

FedSpray 2 trains every client's own GNN on the way, so one run says of each client whether federating helped. Half of
the federations are drawn with `banks`, half as graphs of blocks that are cut; every tenth is a cut of real data.

    python -m experiments.advisor results/advisor/federations.jsonl --minutes 30

goes on after the federations that the file holds already. `python -m experiments.advisor_fit` fits the advisor.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedspray as fs
from fedspray.data import advice
from fedspray.errors import InputError
from fedspray.files import Json, append_line, read_lines, write_text
from fedspray.partitioners.label_skew import LabelSkew
from fedspray.partitioners.louvain import Louvain
from fedspray.seeds import generator

ROUNDS = 80
REAL = ("pubmed", "topfgl/Cora/10", "topfgl/CiteSeer/10", "physics")
"""Data that FedSpray 2 was developed on, or published clients; unseen data come from the cells of their own study."""


def draw(number: int) -> tuple[str, Json, fs.Federation]:
    """Federation ``number``: its source, how it was drawn, and itself."""
    rng = generator(number, "advisor")
    if number % 10 == 9:
        return _real(rng, REAL[number // 10 % len(REAL)], number)
    return _banks(rng, number) if number % 2 else _blocks(rng, number)


def _banks(rng: np.random.Generator, number: int) -> tuple[str, Json, fs.Federation]:
    clients, classes = int(rng.integers(2, 11)), int(rng.integers(2, 6))
    knobs: Json = {
        "clients": clients,
        "nodes": clients * int(rng.integers(80, 401)),
        "classes": classes,
        "features": int(rng.integers(max(8, classes), 65)),
        "degree": float(rng.uniform(2, 10)),
        "majority_neighbour_share": float(rng.uniform(0.55, 0.9)),
        "minority_ratio": float(rng.uniform(0.15, 0.9)),
        "separation": float(rng.uniform(0.5, 4)),
    }
    return "banks", knobs, fs.build_federation("banks", partition_seed=number, **knobs)


def _blocks(rng: np.random.Generator, number: int) -> tuple[str, Json, fs.Federation]:
    """A graph of classes that prefer their own kind more or less, cut by its communities or by its labels."""
    clients, classes, size = int(rng.integers(2, 11)), int(rng.integers(2, 8)), int(rng.integers(80, 401))
    degree, homophily, separation = rng.uniform(2, 10), rng.uniform(0.1, 0.95), float(rng.uniform(0.5, 4))
    features, by_labels = int(rng.integers(8, 65)), bool(rng.integers(2))
    nodes = clients * size
    labels = rng.choice(classes, size=nodes, p=rng.dirichlet(np.full(classes, 2.0)))
    means = rng.normal(size=(classes, features)) * separation / np.sqrt(2 * features)
    source = rng.integers(0, nodes, size=int(nodes * degree / 2))
    alike = rng.random(len(source)) < homophily
    target = rng.integers(0, nodes, size=len(source))
    for label in range(classes):
        own, ends = np.flatnonzero(labels == label), alike & (labels[source] == label)
        target[ends] = rng.choice(own, size=int(ends.sum())) if len(own) else target[ends]
    graph = fs.Graph.from_arrays(
        means[labels] + rng.normal(size=(nodes, features)), np.stack([source, target]), labels, num_classes=classes
    )
    alpha = float(rng.uniform(0.2, 2))
    cut = LabelSkew(clients, alpha) if by_labels else Louvain(clients)
    knobs = {
        **{"clients": clients, "nodes": nodes, "classes": classes, "features": features, "degree": float(degree)},
        **{"homophily": float(homophily), "separation": separation, "alpha": alpha if by_labels else None},
    }
    return "blocks", knobs, fs.Federation.from_graph(graph, cut.partition(graph, number), name="blocks")


def _real(rng: np.random.Generator, dataset: str, number: int) -> tuple[str, Json, fs.Federation]:
    if "/" in dataset:
        return dataset, {}, fs.build_federation(dataset)
    by_labels, clients = bool(rng.integers(2)), int(rng.integers(3, 13))
    how: Json = {"partitioner": "label-skew", "alpha": float(rng.uniform(0.2, 2))} if by_labels else {}
    knobs = {"clients": clients, "partitioner": "louvain", **how}
    return dataset, knobs, fs.build_federation(dataset, partition_seed=number, **knobs)


def measure(number: int) -> Json:
    """What the advisor looks at, and on how many test nodes each client's two models are right."""
    source, knobs, federation = draw(number)
    result = fs.run(federation, "fedspray2", rounds=ROUNDS, seeds=[number], progress=False)
    counts: dict[str, Any] = result.seeds[0].metrics["against_local"]
    clients = [
        {"name": name, "predictors": short(values), "test": counts[name]["test"]}
        for name, values in advice.predictors(federation).items()
        if name in counts
    ]
    return {"number": number, "source": source, "knobs": knobs, "clients": clients}


def again(row: Json) -> Json:
    """A row with its predictors looked at again, and nothing trained: the same number draws the same federation."""
    found = advice.predictors(draw(row["number"])[2]) if "clients" in row else {}
    clients = [
        {"name": c["name"], "predictors": short(found[c["name"]]), "test": c["test"]} for c in row.get("clients", ())
    ]
    return {**row, "clients": clients} if clients else row


def short(values: Json | None) -> Json | None:
    """Five digits."""
    return None if values is None else {name: float(f"{value:.5g}") for name, value in values.items()}


def main() -> None:
    """Measures federations for some minutes of processor time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--again", action="store_true", help="only look at the predictors again, after a change of them"
    )
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read_lines(options.out)
    if options.again:
        write_text(options.out, "".join(json.dumps(again(row)) + "\n" for row in rows))
        return
    number = max((row["number"] for row in rows), default=-1) + 1
    while time.process_time() < 60 * options.minutes:
        try:
            append_line(options.out, json.dumps(measure(number)))
        except InputError as error:  # knobs that do not go together, a client without a training node
            append_line(options.out, json.dumps({"number": number, "source": "refused", "why": str(error)}))
        number += 1


if __name__ == "__main__":
    main()
