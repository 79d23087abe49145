"""From three banks' CSV files to predictions: pandas for the files, one graph for each bank, personal models.

The command line does the same by a schema, also for rows that come later: banks/README.md.

python own_tables.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import fedspray as fs

DATA = Path(__file__).parent / "banks" / "data"
CLASSES = ("household", "business")
CHANNELS = ("branch", "phone", "web")


def read_bank(name: str) -> tuple[fs.Graph, pd.Series]:
    """One bank's graph, and the ids of its customers in the order of the nodes."""
    customers = pd.read_csv(DATA / name / "customers.csv", na_values="n/a")
    transfers = pd.read_csv(DATA / name / "transfers.csv")
    numbers = customers[["income", "balance", "age"]]
    numbers = numbers.fillna(numbers.median()) / [10_000, 1_000, 10]  # the same scale at every bank
    channels = pd.DataFrame({each: customers["channel"] == each for each in CHANNELS})
    place = {customer: row for row, customer in enumerate(customers["customer"])}
    ends = transfers[["payer", "payee"]].map(place.get).dropna().to_numpy(dtype=np.int64)
    labels = customers["segment"].map({kind: number for number, kind in enumerate(CLASSES)}).fillna(fs.UNLABELLED)
    features = np.hstack([numbers, channels]).astype(np.float32)
    graph = fs.Graph.from_arrays(features, ends.T, labels.to_numpy(dtype=np.int64), class_names=CLASSES)
    return graph, customers["customer"]


def main(folder: Path) -> None:
    """Train together, then let every bank predict with its own model."""
    read = {name: read_bank(name) for name in ("north", "south", "west")}
    federation = fs.Federation.from_graphs({name: graph for name, (graph, _) in read.items()}, name="three-banks")
    result = fs.run(federation, rounds=20, progress=False)
    print(result)
    folder.mkdir(parents=True, exist_ok=True)
    for client in federation.clients:
        chances = result.models[client.name].predict(client, train=client.split.train)
        table = pd.DataFrame(chances.round(3), columns=CLASSES, index=read[client.name][1])
        table.to_csv(folder / f"{client.name}.csv")
        print(f"{folder / client.name}.csv: {len(table)} customers")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "predictions"))
