from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

import pytest
from toys import ragged_federation

from fedspray.api import run
from fedspray.data.federation import Federation
from fedspray.engine.local import LocalEngine
from fedspray.experiment import RunSettings
from fedspray.federate import build_federation
from fedspray.runs import plan


def settings(algorithm: str = "fedspray", rounds: int = 7, seeds: tuple[int, ...] = (0, 1)) -> RunSettings:
    return RunSettings(algorithm=algorithm, backbone="gcn", values={"rounds": rounds}, seeds=seeds)


@pytest.mark.parametrize("algorithm", ["fedspray", "fedavg", "local"])
def test_bytes_are_those_of_the_run(algorithm: str) -> None:
    federation = ragged_federation()
    found = plan.make_plan(federation, settings(algorithm))
    result = run(federation, algorithm=algorithm, backbone="gcn", rounds=7)
    record = result.seeds[0].records[3]
    assert found.sample_nodes == found.num_nodes
    assert found.bytes_up_per_round == record["bytes_up"] + record["bytes_evaluation"]
    assert found.bytes_down_per_round == record["bytes_down"]
    assert found.bytes_total == 2 * 7 * (found.bytes_up_per_round + found.bytes_down_per_round)
    assert found.cpu_seconds == pytest.approx(2 * 7 * found.cpu_seconds_per_round)


def test_settings_are_for_all_clients_and_not_for_those_tried() -> None:
    federation = build_federation("banks", clients=3, nodes=3_000)  # the first trial is on one of them
    other = RunSettings(values={"rounds": 2, "min_clients": 2}, backbone_of={"bank_00": "mlp", "bank_01": "mlp"})
    assert plan.make_plan(federation, other).num_clients == 3


def test_splits_are_kept_if_the_run_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def remember(sample: Federation, *given: Any, **named: Any) -> LocalEngine:
        tried.append(sample.split_fingerprint())
        return LocalEngine(sample, *given, **named)

    monkeypatch.setattr(plan, "LocalEngine", remember)
    federation = ragged_federation(seed=5)
    for keep in (True, False):
        plan.make_plan(federation, RunSettings(values={"rounds": 1}, keep_split=keep))
    kept, drawn = federation.split_fingerprint(), federation.with_split(0).split_fingerprint()
    assert tried == [kept, kept, drawn, drawn]


def test_a_large_client_is_thinned_to_the_same_density() -> None:
    federation = build_federation("banks", clients=2, nodes=20_000)
    sample = plan._sample(federation, 1_000)
    graphs = [client.graph for client in sample.clients]
    assert [graph.num_nodes for graph in graphs] == [1_000]
    degree = 2 * graphs[0].num_edges / 1_000
    whole = federation.clients[0].graph
    assert degree == pytest.approx(2 * whole.num_edges / whole.num_nodes, rel=0.1)
    assert sum(part.sum() for part in vars(sample.clients[0].split).values()) == pytest.approx(1_000, rel=0.05)


def test_huge_clients_cost_more_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = build_federation("banks", clients=2, nodes=6_400)
    monkeypatch.setattr(plan, "SAMPLE_NODES", 100)
    assert plan._slowness(federation.clients[0]) == pytest.approx(2.0)  # 32 times the sample: 32^0.2
    monkeypatch.setattr(plan, "SAMPLE_NODES", 10_000)
    assert plan._slowness(federation.clients[0]) == 1.0


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_available", lambda: 1_000)
    assert plan.make_plan(ragged_federation(), settings()).fits is False


@pytest.mark.nightly
def test_memory_and_time_are_right_within_a_factor_of_two() -> None:
    options = ["--dataset", "banks", "--clients", "30", "--nodes", "600000", "--rounds", "4", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def fedspray(*arguments: str) -> dict[str, float]:
        command = [sys.executable, "-c", "from fedspray.cli.main import entry_point; entry_point()", *arguments]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        answer: dict[str, float] = json.loads(done.stdout)
        return answer

    found = fedspray("plan", *options)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        result = fedspray("run", *options, "--out", f"{folder}/run")
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak > 1024 * before  # the run, not the plan, was the largest process so far
    assert 0.5 < found["memory"] / peak < 2
    seeds: list[dict[str, float]] = result["seeds"]  # type: ignore[assignment]
    assert 0.5 < found["cpu_seconds"] / seeds[0]["cpu_seconds"] < 2
