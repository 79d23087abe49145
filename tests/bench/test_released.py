"""The player of the released code, with a stand-in for it: what it is given, and how its rounds are told apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from play import build
from toys import ragged_federation

from benchmarks.players import load_reference
from fedspray.errors import InputError

FILE = Path(__file__).parents[2] / "benchmarks" / "released.py"
STAND_IN = {
    "model": "class GCN: pass\nclass SAGE: pass\n",
    "client": """
from model import GCN, SAGE
class Client:
    def __init__(self, client_id, dataset, train, val, test, lr, epochs, hidden, weight, width, device):
        self.given = (lr, epochs, hidden, weight, width)
        self.gnn, self.nodes, self.data = SAGE(), (train, val, test), dataset
""",
    "server": """
class Server:
    def __init__(self, clients, ids, train, dataset, hidden, device, width):
        self.clients, self.rounds = clients, 0
    def train(self, rounds):
        for round in range(1, rounds + 1):
            self.rounds = round
            print(f"Round: {round:4d} | val_loss: {1 / round:9.5f} | acc_test: {0.5:7.5f}")
""",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in STAND_IN.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("FEDSPRAY_RELEASED", str(tmp_path))
    yield tmp_path
    for name in STAND_IN:
        sys.modules.pop(name, None)


def player(algorithm: Any) -> Any:
    return load_reference(FILE)(ragged_federation(), algorithm, 0, torch.float32)


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
def test_rounds_are_told_apart_by_what_it_prints(folder: Path, backbone: str) -> None:
    found = player(build("fedspray", backbone))
    assert [found.round()["test"]["loss"] for _ in range(3)] == [1.0, 0.5, 0.33333]
    assert sys.modules["client"].SAGE.__name__ == backbone.upper()


def test_it_gets_the_clients_of_the_benchmark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr("threading.Thread.start", lambda thread: kept.extend(thread._args))
    player(build("fedspray", "sage", hidden=7, lr=0.02))
    clients, federation = kept[0].clients, ragged_federation()
    assert [client.given for client in clients] == [(0.02, 5, 7, 1.0, 64)] * 3
    start = 0
    for client, own in zip(clients, federation.clients, strict=True):
        train, val, test = client.nodes
        assert sorted(train + val + test) == list(range(start, start + own.graph.num_nodes))
        assert client.data[0].y[train].tolist() == own.graph.labels[own.split.train].tolist()
        start += own.graph.num_nodes
    assert clients[0].data[0].edge_index.shape[1] == 2 * sum(c.graph.num_edges for c in federation.clients)


def test_bad_input_gets_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="the algorithm is FedAvg with GCN, but the released code is FedSpray with"):
        player(build("fedavg"))
    monkeypatch.setenv("FEDSPRAY_RELEASED", "nowhere")
    with pytest.raises(InputError, match="FEDSPRAY_RELEASED is 'nowhere', but must be the folder of a clone of"):
        player(build("fedspray"))
