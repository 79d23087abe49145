from __future__ import annotations

from pathlib import Path

import pytest
from toys import ragged_federation

import fedspray


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs on three ragged clients: Local, FedAvg and FedSpray, two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    for algorithm in ("local", "fedavg", "fedspray"):
        fedspray.run(ragged_federation(), algorithm=algorithm, rounds=5, seeds=(0, 1), hidden=8, out=folder / algorithm)
    return {path.name: path for path in sorted(folder.iterdir())}
