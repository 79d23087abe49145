"""Twenty sites as processes of one machine: nobody is left out, and nothing grows beyond its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from benchmarks.federation import measure

SITES, ROUNDS = 20, 4


@pytest.mark.nightly
def test_twenty_sites(tmp_path: Path) -> None:
    found = measure(SITES, ROUNDS, 200, tmp_path / "federation")
    assert (found["failures"], found["restarts"], found["jobs"]) == (0, 0, 1)
    assert found["bytes_payload"] > 0
    assert found["site_megabytes"] < 700
    assert found["server_megabytes"] < 1000
    assert found["overhead_per_round"] < 30  # it is below 2 s on idle cores
