"""The figures of a federation's processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from benchmarks.federation import Watcher


def test_the_servers_work_per_round() -> None:
    nobody: Any = None
    watcher = Watcher(nobody, Path())
    assert watcher.server_per_round(8) is None
    watcher.server_seconds = {
        0: 5.0,
        2: 8.0,
        9: 50.0,
    }  # reading data before, reporting after
    assert watcher.server_per_round(8) is None
    watcher.server_seconds[6] = 10.0
    assert watcher.server_per_round(8) == pytest.approx((10.0 - 8.0) / 4)
    assert watcher.server_per_round(10) == pytest.approx((50.0 - 8.0) / 7)
