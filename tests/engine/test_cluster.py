"""Blocks in the actors of a Ray cluster: the same bits as in this process, whatever dies."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import Fragile, ragged_federation

from fedspray import algorithms, backbones, links
from fedspray.algorithms.fedavg import FedAvg
from fedspray.data.batch import GraphBatch
from fedspray.engine.cluster import Actors, Cluster, connected, opened
from fedspray.engine.local import LocalEngine
from fedspray.engine.rounds import Progress, run_rounds, start
from fedspray.errors import InputError, RunStopped
from fedspray.experiment import RoundSettings, RunSettings
from fedspray.federate import build_federation
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs.run import begin, carry_out

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray (pip install 'fedspray[ray]')")


def slow(test: Any) -> Any:
    """For tests that start a cluster."""
    return pytest.mark.slow(with_ray(test))


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any, **named: Any) -> str:
        with pytest.raises(InputError) as caught, opened(*given, **named):
            pass
        return str(caught.value)

    assert "'rai'" in refused("rai")
    assert "'10.0.0.1:6379'" in refused("local", "10.0.0.1:6379")
    assert "'cuda'" in refused("ray", device=torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "fedspray[ray]" in refused("ray")


@dataclass(frozen=True, kw_only=True)
class Deadly(FedAvg):
    """FedAvg in which the process of client 2 dies."""

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        if 2 in batch.client_ids:
            os._exit(1)
        return super().client_update(client, message, batch, seed)


def kill(cluster: Cluster, which: int) -> None:
    """Kills one of a cluster's actors, as an administrator or the system would."""
    import ray

    actor = cluster._actors[which]
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


@pytest.fixture(scope="module")
def two_processors() -> Iterator[None]:
    with connected(None, 2):
        yield


@pytest.fixture
def cluster(two_processors: None) -> Iterator[Cluster]:
    with opened("ray", threads=2) as made:
        assert made is not None
        yield made


def played(
    algorithm: Any,
    cluster: Cluster | None,
    *,
    chain: tuple[str, ...] = (),
    rounds: int = 6,
    on_round: Callable[[Progress], None] = lambda _: None,
) -> tuple[Any, ...]:
    """Everything that a run of three blocks leaves: records, the server's state, what clients remember, models."""
    federation, blocks = ragged_federation(sparse=True), [[0, 1], [2]]
    home = None
    if cluster is not None:
        home = cluster.home(federation, [algorithm] * 3, 0, torch.float64, len(blocks))
    engine = LocalEngine(
        federation,
        [algorithm] * 3,
        0,
        blocks=blocks,
        dtype=torch.float64,
        threads=2,
        links=links.chain(chain, algorithm.uplink),
        home=home,
    )
    records: list[dict[str, Any]] = []
    progress = run_rounds(
        algorithm,
        engine,
        RoundSettings(rounds=rounds, min_clients=1),
        0,
        start(algorithm, federation.task, 0, torch.float64),
        on_record=lambda record: records.append({**record, "seconds": 0, "cpu_seconds": 0}),
        on_round=on_round,
    )
    kept = engine.personal_models().items()
    models = {f"{k}.{n}": v for k, m in kept for n, v in (tree.flatten(m.client) | m.message).items()}
    return records, engine.blocks, tree.flatten(progress.server), engine.tensors(rounds), models


def check_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[:2] == other[:2]
    for mine, theirs in zip(one[2:], other[2:], strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[name].equal(theirs[name]) for name in mine)


@slow
@pytest.mark.parametrize(
    ("name", "chain"), [("fedspray", ("secure-sum",)), ("fedavg", ("used-rows", "compress up_bits=4"))]
)
def test_two_actors_are_one_process_to_the_bit(cluster: Cluster, name: str, chain: tuple[str, ...]) -> None:
    algorithm = algorithms.find(name)(backbone=backbones.make("gcn", hidden=8))
    check_same(played(algorithm, cluster, chain=chain), played(algorithm, None, chain=chain))


@slow
def test_an_actor_that_is_killed_changes_nothing(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = algorithms.find("fedspray")(backbone=backbones.make("gcn", hidden=8))

    def strike(progress: Progress) -> None:
        if progress.round_index in (2, 3):
            kill(cluster, progress.round_index % 2)

    check_same(played(algorithm, cluster, on_round=strike), played(algorithm, None))
    assert capsys.readouterr().out == ""  # which may be JSON


@slow
def test_a_client_that_fails_is_found_and_trained_alone(cluster: Cluster) -> None:
    algorithm = Fragile(backbone=backbones.make("gcn", hidden=8))

    def strike(progress: Progress) -> None:
        if progress.round_index == 2:
            kill(cluster, 0)  # which holds single clients by now

    there = played(algorithm, cluster, on_round=strike)
    assert [record["trained"] for record in there[0][:4]] == [[0, 1, 2], [0, 2], [0, 1, 2], [0]]
    check_same(there, played(algorithm, None))


@slow
def test_what_always_dies_stops_the_run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspray.engine.cluster.ATTEMPTS", 2)
    with pytest.raises(RunStopped, match=r"clients \[2\]"):
        played(Deadly(backbone=backbones.make("gcn", hidden=8)), cluster)


@slow
def test_a_run_goes_on_wherever_it_was_begun(cluster: Cluster, tmp_path: Path) -> None:
    """Begun here and stopped, continued on the cluster and stopped, ended here; the actors read files."""
    federation = build_federation("banks", clients=4, nodes=400)
    federation.save(tmp_path / "saved")
    cluster = Cluster(2, tmp_path / "saved")
    run = RunSettings(algorithm="fedspray", values={"rounds": 6, "participation": 0.75}, seeds=(0, 1))
    straight = carry_out(federation, run, None, threads=2)
    begin(tmp_path / "run", federation, run, None, threads=2)
    for stop, where in ((2, None), (4, cluster), (99, None)):

        def interrupt(seed: int, record: Any, stop: int = stop) -> None:
            if record["round"] == stop and seed == 0:
                raise KeyboardInterrupt

        try:
            ended = carry_out(
                federation, run, tmp_path / "run", threads=2, cluster=where, on_record=interrupt, checkpoint_every=1
            )
        except KeyboardInterrupt:
            cluster.clear()
    assert [seed.metrics["models"] for seed in ended.seeds] == [seed.metrics["models"] for seed in straight.seeds]


@slow
def test_an_actor_reads_the_files_of_its_own_clients(cluster: Cluster, tmp_path: Path) -> None:
    federation = build_federation("banks", clients=3, nodes=300)
    federation.save(tmp_path / "saved")
    algorithm = algorithms.find("fedavg")(backbone=backbones.make("gcn"))
    home = Cluster(2, tmp_path / "saved").home(federation, [algorithm] * 3, 0, torch.float32, 2)
    assert isinstance(home, Actors)
    shutil.rmtree(tmp_path / "saved" / "clients" / federation.clients[2].name)
    assert home.open([0, 1]).columns == [None, None]
    with pytest.raises(InputError, match=federation.clients[2].name):
        assert home.open([2]).columns
