from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data sets and published partitions; without it the test is skipped."""
    chosen = os.environ.get("FEDSPRAY_TEST_DATA")
    folder = Path(chosen) if chosen else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "PubMed" / "raw").is_dir():
        pytest.skip(f"the real data sets are not in {folder}: set FEDSPRAY_TEST_DATA")
    return folder


@pytest.fixture(scope="session", autouse=True)
def disk_that_need_not_be_waited_for() -> Iterator[None]:
    """No test takes the power away: what a process wrote, the next one can read."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
