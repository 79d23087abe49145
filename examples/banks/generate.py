"""Draws the three banks' files in data/: run once, from this folder; the files are part of the example.

The graphs are those of the built-in generator `banks`. Its six normal features become columns such as banks have:
income, balance, age, a region, a day, a channel; some values are missing. The class is whether a customer runs a
business; each bank has mostly one kind of customer.
"""

from __future__ import annotations

import csv
from datetime import date, timedelta
from pathlib import Path

import numpy as np

import fedspray as fs

NAMES = ("north", "south", "west")
REGIONS, CHANNELS = ("coast", "hills", "lakes", "city", "valley"), ("branch", "phone", "web")
NEW = 40
"""Customers of each bank who come later."""


def write(path: Path, header: list[str], rows: list[list[object]]) -> None:
    """One CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])


def customer(name: str, values: np.ndarray, rng: np.random.Generator) -> list[object]:
    """The columns of one customer, without the class."""
    income, balance, age, region, since, channel = values
    columns: list[object] = [
        name,
        round(float(np.exp(10 + 0.6 * income)), 2),
        round(2_000 * float(balance), 2),
        round(45 + 9 * float(age)),
        REGIONS[int(np.clip(np.floor(region + 2.5), 0, 4))],
        (date(2016, 1, 1) + timedelta(days=round(500 * float(since)))).isoformat(),
        CHANNELS[int(np.clip(np.floor(1.2 * channel + 1.5), 0, 2))],
        "EUR",
    ]
    for place, share in ((1, 0.06), (3, 0.04), (6, 0.05)):
        if rng.random() < share:
            columns[place] = "n/a" if place == 1 else ""
    return columns


def main() -> None:
    """Writes customers, transfers, and those who come later with their true class in a file of its own."""
    banks = fs.Banks(num_clients=3, num_nodes=1_800, num_features=6, separation=2.5)
    graphs = [client.graph for client in fs.build_federation(banks, partition_seed=7).clients]
    header = ["customer", "income", "balance", "age", "region", "since", "channel", "currency"]
    for name, graph in zip(NAMES, graphs, strict=True):
        rng = np.random.default_rng(NAMES.index(name))
        ids = [f"{name[0].upper()}-{number:05d}" for number in rng.choice(100_000, graph.num_nodes, replace=False)]
        rows = [customer(ids[i], graph.dense_features()[i], rng) for i in range(graph.num_nodes)]
        kinds = ["household" if label == 0 else "business" for label in graph.labels]
        later = set(rng.choice(graph.num_nodes, NEW, replace=False).tolist())
        now = [i for i in range(graph.num_nodes) if i not in later]
        folder = Path(__file__).parent / "data" / name
        write(folder / "customers.csv", [*header, "segment"], [[*rows[i], kinds[i]] for i in now])
        write(folder / "new-customers.csv", header, [rows[i] for i in sorted(later)])
        write(folder / "new-customers-truth.csv", ["customer", "segment"], [[ids[i], kinds[i]] for i in sorted(later)])
        edges = [(int(u), int(v)) if rng.random() < 0.5 else (int(v), int(u)) for u, v in graph.edges.T]
        days = [(date(2024, 1, 1) + timedelta(days=int(day))).isoformat() for day in rng.integers(0, 300, len(edges))]
        lines = [
            ([ids[u], ids[v], round(float(rng.lognormal(4, 1)), 2), day], bool({u, v} & later))
            for (u, v), day in zip(edges, days, strict=True)
        ]
        columns = ["payer", "payee", "amount", "day"]
        write(folder / "transfers.csv", columns, [line for line, new in lines if not new])
        write(folder / "new-transfers.csv", columns, [line for line, new in lines if new])


if __name__ == "__main__":
    main()
