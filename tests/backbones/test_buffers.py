"""Modules with buffers, as PyTorch Geometric's examples write them: they train, resume, predict, and stay at home."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import ragged_federation, stack, worker_of

import fedspray
from fedspray import backbones
from fedspray.algorithms.local import Local
from fedspray.backbones.base import Dropout
from fedspray.data.federation import Federation, Task
from fedspray.engine import clients
from fedspray.engine.worker import Request
from fedspray.errors import InputError
from fedspray.nn import tree
from fedspray.runs import run
from fedspray.runs.models import PersonalModel

MODULES = '''
import torch
from torch import nn
from torch_geometric.nn import GCNConv, GINConv

def mlp(fan_in, fan_out):
    return nn.Sequential(nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Linear(fan_out, fan_out))

class GIN(nn.Module):
    def __init__(self, fan_in, hidden, fan_out):
        super().__init__()
        self.first, self.second = GINConv(mlp(fan_in, hidden)), GINConv(mlp(hidden, fan_out))
    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)

class Norm(nn.Module):
    def __init__(self, fan_in, hidden, fan_out):
        super().__init__()
        self.first, self.norm, self.second = GCNConv(fan_in, hidden), nn.BatchNorm1d(hidden), GCNConv(hidden, fan_out)
    def forward(self, x, edge_index):
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)

class Counting(nn.Module):
    """Replaces its buffer instead of changing it."""
    def __init__(self, fan_in, hidden, fan_out):
        super().__init__()
        self.lin = nn.Linear(fan_in, fan_out)
        self.register_buffer("passes", torch.zeros(()))
    def forward(self, x, edge_index):
        if self.training:
            self.passes = self.passes + 1
        return self.lin(x) + self.passes

class Bad(nn.Module):
    def __init__(self, fan_in, hidden, fan_out):
        super().__init__()
        self.lin = nn.Linear(hidden, fan_out)
    def forward(self, x, edge_index):
        return self.lin(x)

class Wide(Bad):
    def __init__(self, fan_in, hidden, fan_out):
        super().__init__(fan_in, fan_in, hidden)
'''


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "buffered.py").write_text(MODULES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("buffered", None)


def test_statistics_are_those_of_a_plain_loop() -> None:
    """Local on one client, three rounds of two steps, is six steps of torch's Adam on the module itself.

    The bias before a BatchNorm has no gradient but rounding, of which a large ε of Adam makes nothing.
    """
    batch = stack(ragged_federation(), [1], dtype=torch.float32)
    task = Task(batch.num_features, batch.num_classes)
    backbone = backbones.make("buffered:Norm", hidden=8, lr=0.01, adam_eps=0.01)
    algorithm = Local(backbone=backbone, local_epochs=2)
    state = clients.init_state(algorithm, task, batch, 0)
    module = sys.modules["buffered"].Norm(5, 8, 3)
    module.load_state_dict({name: value[0] for name, value in {**state.client.gnn, **state.buffers}.items()})
    for seed in range(3):
        state, _ = clients.train(algorithm, state, {}, batch, seed)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, eps=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        logits = module(batch.rows.features, batch.edge_index)
        torch.nn.functional.cross_entropy(logits[batch.train], batch.train_labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    ours = {**state.client.gnn, **state.buffers}
    assert ours["norm.num_batches_tracked"].tolist() == [6]
    for name, value in module.state_dict().items():
        assert torch.allclose(ours[name][0], value, rtol=0, atol=1e-5), name
    module.eval()
    whole, client, _ = clients.bound(algorithm, tree.for_prediction(state), batch)
    predicted = whole.predict(client, {}, batch)
    assert torch.allclose(predicted, module(batch.rows.features, batch.edge_index), rtol=0, atol=1e-4)


def test_buffers_that_are_replaced_are_kept_too() -> None:
    federation = ragged_federation()
    worker = worker_of(Local(backbone=backbones.make("buffered:Counting"), local_epochs=4), federation)
    for number in (1, 2, 3):
        worker.handle(Request(number, evaluate=number > 1), {})
    assert worker.tensors(3)["state.buffers.passes"].tolist() == [12, 12, 12]
    assert worker.tensors(3)["candidate.client.buffers.passes"].tolist() == [8, 8, 8]


@pytest.mark.parametrize(
    ("algorithm", "backbone"),
    [
        ("fedavg", "buffered:Norm"),
        ("fedspray", "buffered:GIN"),
        ("scaffold", "buffered:Norm"),
        ("fedala", "buffered:GIN"),
    ],
)
def test_a_broken_run_ends_with_the_same_bits_and_predicts(algorithm: str, backbone: str, tmp_path: Path) -> None:
    federation, whole, broken = ragged_federation(), tmp_path / "whole", tmp_path / "broken"
    result = fedspray.run(federation, algorithm=algorithm, backbone=backbone, hidden=8, rounds=4, out=whole)
    settings, _ = run.load_settings(whole)
    run.begin(broken, federation, settings, None)

    def crash(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run.carry_out(federation, settings, broken, checkpoint_every=1, on_record=crash)
    assert run.carry_out(federation, settings, broken).seeds[0].metrics["models"] == result.seeds[0].metrics["models"]
    split = federation.with_split(0)
    for client in split.clients:
        model = PersonalModel.load(whole / "seed-0" / "models" / f"{client.name}.safetensors")
        right = model.predict(client, client.split.train).argmax(axis=1) == client.graph.labels
        assert right[client.split.test].mean() == pytest.approx(
            result.seeds[0].metrics["clients"][client.name]["overall"]
        )
        held = model.snapshot.client.buffers
        assert len(held["first.eps" if backbone == "buffered:GIN" else "norm.running_mean"]) == 1


def test_statistics_are_each_clients_own_and_never_travel() -> None:
    federation = ragged_federation()
    algorithm = fedspray.FedAvg(backbone=backbones.make("buffered:Norm", hidden=8))
    batch = stack(federation)
    state = clients.init_state(algorithm, federation.task, batch, 0)
    message = algorithm.broadcast(tree.cast(algorithm.init_server(federation.task, 0), torch.float64), (0, 1, 2))
    state, uplink = clients.train(algorithm, state, message, batch, 0)
    assert not any("running" in name for name in (*message, *uplink))
    means = state.buffers["norm.running_mean"]
    assert not torch.allclose(means[0], means[1])
    alone = stack(federation, [1])
    single = clients.init_state(algorithm, federation.task, alone, 0)
    single, _ = clients.train(algorithm, single, {name: value[1:2] for name, value in message.items()}, alone, 0)
    assert torch.allclose(single.buffers["norm.running_mean"][0], means[1], rtol=0, atol=1e-10)


def test_without_a_state_a_module_has_its_first_buffers() -> None:
    """As a server has them, which never sees others (FED-PUB): a training pass leaves no trace."""
    batch = stack(ragged_federation())
    backbone = backbones.make("buffered:Norm", hidden=8)
    params = backbone.init_params(Task(5, 3), batch, 0)
    first = backbone.classify(params, None, batch, lambda hidden: hidden)
    backbone.classify(params, None, batch, Dropout(0.0, batch, 0, 0))
    assert torch.equal(backbone.classify(params, None, batch, lambda hidden: hidden), first)


@pytest.mark.parametrize(
    ("algorithm", "backbone", "sentence"),
    [
        ("fedavg", "buffered:Bad", "8 nodes with 5"),
        ("fedavg", "buffered:Wide", "gives shape [8, 64]"),
        ("ditto", "buffered:Norm", "learns running statistics"),
        ("apfl", "buffered:Norm", "learns running statistics"),
        ("fedspray2-shared", "buffered:Norm", "learns running statistics"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    algorithm: str, backbone: str, sentence: str, tmp_path: Path
) -> None:
    federation = ragged_federation()
    with pytest.raises(InputError) as caught:
        fedspray.run(federation, algorithm=algorithm, backbone=backbone, rounds=1, out=tmp_path / "run")
    assert sentence in str(caught.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError) as caught:
        fedspray.compare(federation, [algorithm, "local"], backbones=backbone, rounds=1, jobs=2, out=tmp_path / "cells")
    assert sentence in str(caught.value)
    assert not list(tmp_path.glob("cells/*.json"))


@pytest.mark.parametrize("algorithm", ["ditto", "apfl"])
def test_constant_buffers_serve_two_models(algorithm: str) -> None:
    federation: Federation = ragged_federation()
    result = fedspray.run(federation, algorithm=algorithm, backbone="buffered:GIN", hidden=8, rounds=2)
    assert result.seeds[0].metrics["rounds"] == 2
