"""Whether GNN and encoder should share one product with the features: X [W | V] against X W and X V.

    python benchmarks/one_product.py [PARTITIONS]

PubMed and Physics, all clients stacked, one thread, CPU milliseconds, medians of rounds played in turn. The shared
product is timed alone, and with what it needs around it: weights put side by side, and the result taken apart.
PARTITIONS is the folder of client lists, by default `partitions`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedspray import GraphBatch, build_federation
from fedspray.data.rows import SparseMatrix
from fedspray.engine.process import prepare_process

REPETITIONS, ENCODER = 31, 64
GNNS = {"gcn": 64, "sage": 128}


def compare(matrix: Tensor, width: int) -> dict[str, float]:
    """CPU milliseconds of each way."""
    rows, columns = matrix.shape
    gnn, encoder = torch.rand(columns, width), torch.rand(columns, ENCODER)
    both = torch.cat([gnn, encoder], dim=1)
    results = [torch.empty(rows, size) for size in (width, ENCODER, width + ENCODER)]

    def product(weight: Tensor, result: Tensor) -> None:
        torch.addmm(result, matrix, weight, beta=0, out=result)

    def apart() -> None:
        product(gnn, results[0])
        product(encoder, results[1])

    def shared() -> None:
        product(both, results[2])

    def shared_and_cut() -> None:
        torch.cat([gnn, encoder], dim=1, out=both)
        product(both, results[2])
        results[0].copy_(results[2][:, :width])
        results[1].copy_(results[2][:, width:])

    ways: dict[str, Callable[[], None]] = {"two products": apart, "one": shared, "one, cut apart": shared_and_cut}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPETITIONS):
        for name, way in ways.items():
            began = time.process_time()
            way()
            seconds[name].append(time.process_time() - began)
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}


def main(partitions: Path) -> None:
    """Prints a line for each data set and GNN."""
    torch.set_num_threads(1)
    prepare_process()
    for dataset, folder in (("pubmed", "PubMed"), ("physics", "Physics")):
        federation = build_federation(dataset, partitioner="files", partition_dir=partitions / folder)
        batch = GraphBatch.from_clients(federation.clients, range(federation.num_clients), dtype=torch.float32)
        assert isinstance(batch.rows.features, SparseMatrix)
        for gnn, width in GNNS.items():
            found = compare(batch.rows.features.matrix, width)
            print(f"{dataset}, {gnn}: " + ", ".join(f"{name} {value:.2f} ms" for name, value in found.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "partitions"))
