from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


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


@pytest.fixture(scope="session", autouse=True)
def few_keys() -> Iterator[None]:
    """Large primes are found slowly: a new private key is one of sixteen, and differs from the fifteen before it."""
    try:
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ModuleNotFoundError:
        yield
        return
    make, kept, place = rsa.generate_private_key, dict[tuple[int, int], Any](), itertools.count()

    def take(public_exponent: int, key_size: int) -> Any:
        name = (key_size, next(place) % 16)
        if name not in kept:
            kept[name] = make(public_exponent, key_size)
        return kept[name]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rsa, "generate_private_key", take)
        yield
