"""Training on another device. None is here, so a stand-in shows that no tensor is left on the CPU (`standin`)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from play import build
from standin import Strayed, is_there, stand_in
from toys import fast, ragged_federation, worker_of

import fedspray
from fedspray import algorithms, backbones
from fedspray.data.federation import Federation
from fedspray.engine.device import CPU, find_device, nodes_that_fit
from fedspray.engine.local import choose_blocks
from fedspray.engine.worker import Request
from fedspray.errors import InputError
from fedspray.experiment import Data, RunSettings
from fedspray.nn import tree
from fedspray.studies.cells import Cell

ACCELERATOR = torch.cuda.is_available() or torch.backends.mps.is_available()

OTHERS: dict[str, dict[str, Any]] = {
    "blends": {"name": "fedspray", "blend": "auto", "proxy_noise": 0.1, "combine": "concat"},
    "samples": {"name": "fedspray", "sample_nodes": 2, "fanout": 2},
    "uniform": {"name": "apfl", "mix": "logits", "alpha_update": "step"},
    "nothing": {"name": "fedlit", "share": "nothing", "self_loops": False, "edge_repr": "sym"},
    "publish": {"name": "fedstar", "head": "published", "personal_start": "own", "degree_scale": "log"},
    "forget": {"name": "fedprox", "reset_optimizer": True, "proximal_weight": 1.0},
    "update": {"name": "gcfl-plus", "sequence": "update"},
}


def train(federation: Federation, algorithm: Any, device: torch.device | None) -> dict[str, torch.Tensor]:
    """Two rounds of a worker, a restart of it, and a third that reports; what leaves it is on the CPU."""
    worker, ids = worker_of(algorithm, federation, device=device or CPU), (0, 1, 2)
    server = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
    for number in (1, 2):
        uplink, counts = worker.handle(Request(number, evaluate=number > 1), algorithm.broadcast(server, ids))
        assert not any(map(is_there, (*uplink.values(), *counts.values())))
    tensors = worker.tensors(2)
    again = worker_of(algorithm, federation, device=device or CPU)
    again.recall({number: worker.tensors(number) for number in worker.rounds})
    request = Request(3, best_round=1, detail=True, evaluate=False, train=False)
    _, counts = again.handle(request, algorithm.broadcast(server, ids))
    models = again.personal_models()
    assert all(model is not None and not any(map(is_there, model.message.values())) for model in models)
    return {**tensors, **uplink, **counts}


def check(federation: Federation, algorithm: Any) -> None:
    found = []
    for moved in (False, True):
        with stand_in() if moved else nullcontext() as device:
            found.append(train(federation, algorithm, device))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert not is_there(found[1][name]), name
        assert torch.equal(value, found[1][name]), name


@pytest.mark.parametrize("backbone", fast(backbones.names(), "sage"))
@pytest.mark.parametrize("name", algorithms.names())
def test_no_tensor_is_left_on_the_cpu(name: str, backbone: str) -> None:
    check(ragged_federation(sparse=True), build(name, backbone, hidden=8, dropout=0.2, local_epochs=1))


@pytest.mark.parametrize("name", OTHERS)
def test_no_tensor_is_left_on_the_cpu_with_other_settings(name: str) -> None:
    settings = dict(OTHERS[name])
    check(ragged_federation(), build(settings.pop("name"), "sage", hidden=8, local_epochs=2, **settings))


def test_the_stand_in_finds_what_is_left() -> None:
    with stand_in() as device:
        there, here = torch.ones(2, 2).to(device), torch.ones(2, 2)
        assert (there.device, here.device) == (device, CPU)
        assert is_there((there @ there).relu_())
        assert torch.equal((there + 1).cpu(), here + 1)
        for wrong in (lambda: there @ here, lambda: torch.cat([here, there]), lambda: there[here.long()], there.numpy):
            with pytest.raises(Strayed):
                wrong()


@pytest.mark.skipif(not ACCELERATOR, reason="needs an accelerator")
def test_a_device_gives_what_the_cpu_gives() -> None:
    """Every algorithm with every backbone, to 1e-4 after two rounds in single precision."""
    federation = ragged_federation(sparse=True)
    for name, backbone in product(algorithms.names(), backbones.names()):
        how: dict[str, Any] = {"algorithm": name, "backbone": backbone, "rounds": 2, "progress": False}
        models = [fedspray.run(federation, **how, device=device).models for device in ("cpu", "auto")]
        for client in federation.clients:
            on_cpu, there = (found[client.name].predict(client) for found in models)
            assert np.allclose(on_cpu, there, rtol=0, atol=1e-4), (name, backbone)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:1", "mps:0", ""])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"device is '{name}', but must be auto, cpu, cuda, cuda:NUMBER or mps"):
        find_device(name)


@pytest.mark.skipif(ACCELERATOR, reason="there is one")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    assert find_device("auto") == find_device("cpu") == CPU
    with pytest.raises(InputError, match="device is 'cuda:1'"):
        find_device("cuda:1")
    with pytest.raises(InputError, match="device is 'cuda'"):
        fedspray.run(ragged_federation(), rounds=1, device="cuda", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_device_is_written_down_but_no_part_of_a_cells_key(tmp_path: Path) -> None:
    federation = ragged_federation()
    result = fedspray.run(federation, rounds=1, hidden=4, device="cpu", out=tmp_path / "run", progress=False)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (settings["device"], settings["run"]["device"]) == ("cpu", "cpu")
    assert result.summary()["device"] == "cpu"
    federation.save(tmp_path / "data")
    keys = {
        Cell(
            dataset="x",
            method="fedavg",
            data=Data.of(dataset=str(tmp_path / "data")),
            run=RunSettings(algorithm="fedavg", device=device),
        ).key()
        for device in ("cpu", "auto")
    }
    assert len(keys) == 1


def test_blocks_are_as_large_as_memory_allows() -> None:
    """Three clients of 9, 14 and 6 nodes with 5 dense features; two layers of 8 units and 3 classes make a width of 19.

    Numbers: 4 · 29·5 for features, 8 for each edge, 8 · 19·5·3 for weights, 16 · 19·29 for layers.
    """
    federation = ragged_federation()
    edges = sum(client.graph.edges.shape[1] for client in federation.clients)
    numbers = 4 * 29 * 5 + 8 * edges + 8 * 19 * 5 * 3 + 16 * 19 * 29
    own = [build("fedavg", hidden=8)] * 3
    assert nodes_that_fit(federation, own, torch.float32, 2 * 4 * numbers) == 29
    assert nodes_that_fit(federation, own, torch.float64, 2 * 4 * numbers) == 14
    assert choose_blocks(federation, own, most=29) == [[0, 1, 2]]
    assert len(choose_blocks(federation, own, most=14)) == 3
