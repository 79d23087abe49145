"""How fast this machine is right now: one sparse product of PubMed's size.

Shared machines differ by a factor of two from one hour to the next. Ratios within a run don't care; CPU seconds
do, and can only be compared with those of another day or machine through something that both measured.
"""

from __future__ import annotations

import statistics
import time

import torch
from scipy import sparse

from fedspray import generator
from fedspray.data.rows import SparseMatrix

ROWS, COLUMNS, STORED, WIDTH = 19_717, 500, 988_031, 64
"""PubMed's features times a first layer of 64 units."""


def measure_yardstick(repetitions: int = 60) -> float:
    """CPU milliseconds of one product on one thread, the median."""
    draw = generator(0, "yardstick")
    features = sparse.random_array((ROWS, COLUMNS), density=STORED / (ROWS * COLUMNS), format="csr", rng=draw)
    matrix = SparseMatrix.from_scipy(sparse.csr_array(features), torch.float32).matrix
    weights = torch.ones(COLUMNS, WIDTH)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(repetitions):
            begin = time.process_time()
            matrix @ weights
            seconds.append(time.process_time() - begin)
    finally:
        torch.set_num_threads(before)
    return 1000 * statistics.median(seconds)
