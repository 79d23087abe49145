"""Personal models as plain torch modules: the same logits as `predict` gives probabilities of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedspray as fs
from fedspray import Federation, PersonalModel, algorithms, backbones
from fedspray.data.federation import Client
from fedspray.errors import InputError


@pytest.fixture(scope="module")
def banks() -> Federation:
    return fs.build_federation("banks", clients=3, nodes=240, features=6, classes=3).with_split(0)


@pytest.fixture(scope="module")
def weighted(banks: Federation) -> Federation:
    rng = np.random.default_rng(0)
    clients = [
        replace(c, graph=replace(c.graph, edge_weights=rng.uniform(0.1, 3, c.graph.num_edges))) for c in banks.clients
    ]
    return replace(banks, clients=tuple(clients))


def trained(federation: Federation, algorithm: str, backbone: Any = "gcn", **values: Any) -> PersonalModel:
    result = fs.run(federation, algorithm, backbone=backbone, rounds=4, keep_split=True, progress=False, **values)
    return result.models["bank_01"]


def narrow(backbone: str) -> dict[str, int]:
    return {} if backbone == "sgc" else {"hidden": 8}


def said(model: PersonalModel, client: Client) -> np.ndarray[Any, Any]:
    """What the plain module says, with what PyTorch Geometric's users have at hand."""
    graph, module = client.graph, model.to_torch()
    dtype = getattr(torch, model.settings.dtype)
    edges = torch.from_numpy(np.concatenate([graph.edges, graph.edges[::-1]], axis=1))
    given: list[Any] = [torch.from_numpy(graph.dense_features()).to(dtype), edges]
    if graph.edge_weights is not None:
        given.append(torch.from_numpy(np.tile(graph.edge_weights, 2)).to(dtype))
    more = {}
    if model.settings.algorithm.startswith("fedspray2") and type(module).__name__ in ("Blend", "UnitRows"):
        more["labels"] = torch.from_numpy(np.where(client.split.train, graph.labels, -1))
    with torch.no_grad():
        return np.asarray(module(*given, **more).double().softmax(dim=1).numpy())


@pytest.mark.parametrize("backbone", backbones.names())
@pytest.mark.parametrize("algorithm", ["fedavg", "fedspray", "fedspray2"])
def test_the_same_outputs(algorithm: str, backbone: str, banks: Federation) -> None:
    client = banks.clients[1]
    for values in ({}, {"layers": 3, "unit_rows": True}):
        model = trained(banks, algorithm, backbone, dtype="float64", **narrow(backbone), **values)
        np.testing.assert_allclose(said(model, client), model.predict(client), atol=1e-10)


@pytest.mark.parametrize("backbone", ["gcn", "sage", "sgc"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedspray2"])
def test_with_weights_of_edges(algorithm: str, backbone: str, weighted: Federation) -> None:
    client = weighted.clients[1]
    model = trained(weighted, algorithm, backbone, dtype="float64", **narrow(backbone))
    np.testing.assert_allclose(said(model, client), model.predict(client), atol=1e-10)


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_every_method_gives_its_module_or_says_why_not(algorithm: str, banks: Federation) -> None:
    model = trained(banks, algorithm, hidden=8)
    if algorithm in ("fedaux", "fedlit", "fedspray-plus", "fedstar"):
        with pytest.raises(InputError, match="use predict"):
            model.to_torch()
    else:
        np.testing.assert_allclose(said(model, banks.clients[1]), model.predict(banks.clients[1]), atol=1e-5)


def test_a_client_that_went_back_to_its_gnn(banks: Federation) -> None:
    model = trained(banks, "fedspray2", hidden=8, dtype="float64")
    client = replace(model.snapshot.client, alone=torch.ones(1, dtype=torch.float64))
    back = replace(model, snapshot=replace(model.snapshot, client=client))
    np.testing.assert_allclose(said(back, banks.clients[1]), back.predict(banks.clients[1]), atol=1e-10)


class Own(torch.nn.Module):
    """A user's module with running statistics."""

    def __init__(self, fan_in: int, hidden: int, fan_out: int) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(fan_in, hidden), torch.nn.BatchNorm1d(hidden)
        self.last = torch.nn.Linear(hidden, fan_out)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.first(x)).relu())
        return found


def test_a_users_module_comes_back_with_its_statistics(banks: Federation) -> None:
    model = trained(banks, "fedavg", Own, hidden=8)
    np.testing.assert_allclose(said(model, banks.clients[1]), model.predict(banks.clients[1]), atol=1e-6)


def test_weights_can_be_saved_and_trained_further(banks: Federation, tmp_path: Any) -> None:
    module = trained(banks, "fedavg", hidden=8).to_torch()
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    module.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert sum(p.requires_grad for p in module.parameters()) == 4
