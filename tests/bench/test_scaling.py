from __future__ import annotations

from typing import Any

import pytest

from benchmarks.scaling import exponent, find_series


def case(nodes: int, clients: int, seconds: float | None, **other: Any) -> dict[str, Any]:
    fixed = {"dataset": "banks", "backbone": "gcn", "algorithm": "fedavg"}
    return {**fixed, "nodes": nodes, "clients": clients, "ours": {"cpu_seconds": seconds}, **other}


def test_the_exponent_of_a_power_is_its_own() -> None:
    assert exponent({size: 3.0 * size**1.25 for size in (10, 100, 5000)}) == pytest.approx(1.25)


def test_series_differ_in_one_size_only() -> None:
    cases = [case(1000, 10, 2.0), case(100, 10, 0.2), case(1000, 100, 3.0), case(1000, 10, 9.0, dataset="pubmed")]
    by_nodes, by_clients = find_series([*cases, case(1000, 20, None), case(1000, 5, 1.0, backbone="sage")])
    assert by_nodes == {
        "grows": "nodes",
        "stays": "clients",
        "at": 10,
        "backbone": "gcn",
        "algorithm": "fedavg",
        "sizes": [100, 1000],
        "cpu_seconds": [0.2, 2.0],
        "exponent": pytest.approx(1.0),
        "growth": pytest.approx(10.0),
    }
    assert (by_clients["grows"], by_clients["at"], by_clients["sizes"]) == ("clients", 1000, [10, 100])
    assert by_clients["growth"] == pytest.approx(1.5)
