"""Fits the memory formula of docs/performance.md: peak memory of runs of many shapes, one process each.

    python benchmarks/memory.py

FedSpray with a GCN, two rounds, random graphs. Prints bytes per stored feature, edge, node and weight by least
squares on relative errors, and how far the formula is off for each shape.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import nnls

HIDDEN = 64

SHAPES = [
    {"clients": clients, "nodes": nodes, "degree": degree, "features": features, "filled": filled}
    for clients, nodes, degree, features, filled in [
        (1, 100_000, 4, 32, 1.0),
        (1, 100_000, 40, 32, 1.0),
        (1, 100_000, 4, 256, 1.0),
        (1, 100_000, 4, 2_000, 0.02),
        (1, 300_000, 4, 32, 1.0),
        (1, 300_000, 20, 32, 1.0),
        (10, 100_000, 4, 32, 1.0),
        (10, 300_000, 20, 32, 1.0),
        (10, 100_000, 4, 2_000, 0.02),
        (100, 100_000, 4, 2_000, 0.02),
        (100, 100_000, 20, 32, 1.0),
        (1_000, 100_000, 4, 500, 0.1),
        (20, 30_000, 10, 8_000, 0.004),
    ]
]

TERMS = ("stored features", "edges", "nodes", "nodes of the largest block", "clients x weights")


def play(shape: dict[str, Any]) -> dict[str, Any]:
    """Trains two rounds in this process; returns the formula's terms and the bytes."""
    from scipy import sparse

    import fedspray
    from fedspray import Federation
    from fedspray.engine.local import choose_blocks
    from fedspray.engine.process import process_peak
    from fedspray.experiment import RunSettings
    from fedspray.runs.settings import resolve

    rng = np.random.default_rng(0)
    graphs: dict[str, fedspray.Graph] = {}
    bounds = np.linspace(0, shape["nodes"], shape["clients"] + 1).astype(int)
    stored = edges = 0
    for k, (begin, end) in enumerate(pairwise(bounds)):
        n = int(end - begin)
        if shape["filled"] < 1:
            features = sparse.random(n, shape["features"], shape["filled"], "csr", np.float32, rng)
            stored += features.nnz
        else:
            features = rng.normal(size=(n, shape["features"])).astype(np.float32)
            stored += features.size // 2  # no index is stored, and no transpose
        pairs = rng.integers(0, n, size=(2, n * shape["degree"] // 2))
        graphs[f"client_{k:04d}"] = fedspray.Graph.from_arrays(features, pairs, rng.integers(0, 5, n), num_classes=5)
        edges += graphs[f"client_{k:04d}"].num_edges
    federation = Federation.from_graphs(graphs, seed=0)
    settings = RunSettings(algorithm="fedspray", backbone="gcn", values={"rounds": 2}, seeds=(0,))
    algorithms = resolve(settings).for_clients(federation.roster)
    largest = max(sum(federation.clients[k].graph.num_nodes for k in b) for b in choose_blocks(federation, algorithms))
    fedspray.run(federation, algorithm="fedspray", rounds=2)
    weights = shape["features"] * HIDDEN * 2  # GNN and encoder; the other layers are small
    terms = [stored, edges, shape["nodes"], largest, shape["clients"] * weights]
    return {"terms": terms, "peak": process_peak()}


def main() -> None:
    """Plays every shape in a process of its own, and fits."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = []
    for shape in SHAPES:
        command = [sys.executable, __file__, json.dumps(shape)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    peaks = np.array([case["peak"] for case in found], dtype=np.float64)
    columns = np.array([[1e6, *case["terms"]] for case in found], dtype=np.float64)
    constants, _ = nnls(columns / peaks[:, None], np.ones(len(peaks)))
    print(f"base: {constants[0]:.0f} MB")
    for name, constant in zip(TERMS, constants[1:], strict=True):
        print(f"{name}: {constant:.1f} bytes")
    for shape, peak, guess in zip(SHAPES, peaks, columns @ constants, strict=True):
        print(f"{json.dumps(shape)}: {peak / 1e9:.2f} GB, formula {guess / 1e9:.2f} GB ({guess / peak:.2f})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(play(json.loads(sys.argv[1]))))
    else:
        main()
