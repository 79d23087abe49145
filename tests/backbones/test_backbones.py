"""Every backbone equals the PyG layer that it stands for, on one client, in double precision."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, SGConv
from toys import ragged_federation, stack

from fedspray import backbones, seeds
from fedspray.backbones.base import Backbone, Dropout
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn.tree import Params

TASK = Task(num_features=5, num_classes=3)


def setting(name: str, sparse: bool = True, **options: Any) -> tuple[Backbone, Params, GraphBatch]:
    backbone = backbones.make(name, hidden=8, **options)
    batch = stack(ragged_federation(sparse=sparse), ids=[1])
    return backbone, backbone.init_params(TASK, batch, seed=3), batch


def features(batch: GraphBatch) -> Tensor:
    matrix: Any = batch.rows.features
    return matrix if isinstance(matrix, Tensor) else matrix.matrix.to_dense()


def put(parameter: Tensor, value: Tensor) -> None:
    parameter.data = value.detach().clone().reshape(parameter.shape)


def gcn_oracle(params: Params, batch: GraphBatch) -> Tensor:
    hidden = features(batch)
    for layer, (fan_in, fan_out) in enumerate(((5, 8), (8, 3)), start=1):
        conv = GCNConv(fan_in, fan_out).double()
        put(conv.lin.weight, params[f"conv{layer}.weight"][0].T)
        put(conv.bias, params[f"conv{layer}.bias"][0])
        hidden = conv(hidden.relu() if layer > 1 else hidden, batch.edge_index)
    return hidden


def sage_oracle(params: Params, batch: GraphBatch) -> Tensor:
    hidden = features(batch)
    for layer, (fan_in, fan_out) in enumerate(((5, 8), (8, 3)), start=1):
        conv = SAGEConv(fan_in, fan_out).double()
        weight = params[f"conv{layer}.weight"][0]
        put(conv.lin_l.weight, weight[:, :fan_out].T)
        put(conv.lin_r.weight, weight[:, fan_out:].T)
        put(conv.lin_l.bias, params[f"conv{layer}.bias"][0])
        hidden = conv(hidden.relu() if layer > 1 else hidden, batch.edge_index)
    return hidden


def sgc_oracle(params: Params, batch: GraphBatch) -> Tensor:
    conv = SGConv(5, 3, K=2).double()
    put(conv.lin.weight, params["linear.weight"][0].T)
    put(conv.lin.bias, params["linear.bias"][0])
    result: Tensor = conv(features(batch), batch.edge_index)
    return result


def gat_oracle(params: Params, batch: GraphBatch) -> Tensor:
    hidden = features(batch)
    for layer, (fan_in, width, heads) in enumerate(((5, 4, 2), (8, 3, 1)), start=1):
        conv = GATConv(fan_in, width, heads=heads).double()
        put(conv.lin.weight, params[f"conv{layer}.weight"][0].T)
        put(conv.att_src, params[f"conv{layer}.source"][0])
        put(conv.att_dst, params[f"conv{layer}.target"][0])
        put(conv.bias, params[f"conv{layer}.bias"][0])
        hidden = conv(torch.nn.functional.elu(hidden) if layer > 1 else hidden, batch.edge_index)
    return hidden


def mlp_oracle(params: Params, batch: GraphBatch) -> Tensor:
    hidden = (features(batch) @ params["linear1.weight"][0] + params["linear1.bias"][0]).relu()
    return hidden @ params["linear2.weight"][0] + params["linear2.bias"][0]


ORACLES = {"gcn": gcn_oracle, "sage": sage_oracle, "sgc": sgc_oracle, "gat": gat_oracle, "mlp": mlp_oracle}
OPTIONS: dict[str, dict[str, Any]] = {"gat": {"heads": 2}}


def test_every_backbone_has_an_oracle() -> None:
    assert set(ORACLES) == set(backbones.names())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ORACLES)
def test_backbone_equals_pyg(name: str, sparse: bool) -> None:
    backbone, params, batch = setting(name, sparse, **OPTIONS.get(name, {}))
    assert torch.allclose(backbone.logits(params, batch), ORACLES[name](params, batch), rtol=0, atol=1e-10)


def weighted(batch: GraphBatch) -> tuple[GraphBatch, Tensor]:
    """A number from 0.1 to 3.1 for every edge, and what PyG wants: one for each direction."""
    drawn = 0.1 + 3 * seeds.generator(0, "edge weights").random((batch.edges.shape[1],))
    return replace(batch, edge_weights=drawn), torch.from_numpy(np.tile(drawn, 2))


def test_gcn_with_edge_weights_equals_pyg() -> None:
    backbone, params, plain = setting("gcn")
    batch, both = weighted(plain)
    hidden = features(batch)
    for layer, (fan_in, fan_out) in enumerate(((5, 8), (8, 3)), start=1):
        conv = GCNConv(fan_in, fan_out).double()
        put(conv.lin.weight, params[f"conv{layer}.weight"][0].T)
        put(conv.bias, params[f"conv{layer}.bias"][0])
        hidden = conv(hidden.relu() if layer > 1 else hidden, batch.edge_index, both)
    assert torch.allclose(backbone.logits(params, batch), hidden, rtol=0, atol=1e-10)
    assert not torch.allclose(backbone.logits(params, plain), hidden, rtol=0, atol=1e-3)


def test_sgc_with_edge_weights_equals_pyg() -> None:
    backbone, params, plain = setting("sgc")
    batch, both = weighted(plain)
    conv = SGConv(5, 3, K=2).double()
    put(conv.lin.weight, params["linear.weight"][0].T)
    put(conv.lin.bias, params["linear.bias"][0])
    assert torch.allclose(
        backbone.logits(params, batch), conv(features(batch), batch.edge_index, both), rtol=0, atol=1e-10
    )


def test_sage_takes_a_weighted_mean_and_attention_refuses_weights() -> None:
    """Node 0 has neighbours 1 and 2 with weights 1 and 3: (h_1 + 3 h_2) / 4."""
    graph = Graph.from_arrays(np.array([[1.0], [2.0], [4.0]], dtype=np.float32), np.array([[0, 0], [1, 2]]))
    batch = replace(GraphBatch.from_graph(graph, dtype=torch.float64), edge_weights=np.array([1.0, 3.0]))
    layer = backbones.layer_of(backbones.make("sage"), "a test")
    weights = {"weight": torch.tensor([[[1.0, 10.0]]]).double(), "bias": torch.zeros(1, 1).double()}
    assert layer(weights, None, batch, batch.rows)[:, 0].tolist() == [3.5 + 10, 1 + 20, 1 + 40]
    backbone, params, plain = setting("gat")
    with pytest.raises(InputError, match="edges have weights"):
        backbone.logits(params, weighted(plain)[0])


@pytest.mark.parametrize("name", ORACLES)
def test_gradients_equal_pyg(name: str) -> None:
    backbone, params, batch = setting(name, **OPTIONS.get(name, {}))
    params = {key: (value + 0.1).requires_grad_() for key, value in params.items()}
    backbone.train_outputs(params, batch, seed=0, epoch=0)[1].square().sum().backward()  # type: ignore[no-untyped-call]
    numeric = torch.autograd.gradcheck(
        lambda *values: backbone.train_outputs(dict(zip(params, values, strict=True)), batch, 0, 0)[1],
        tuple(value.detach().requires_grad_() for value in params.values()),
    )
    assert numeric
    assert all(value.grad is not None for value in params.values())


@pytest.mark.parametrize("name", ORACLES)
def test_stacked_clients_equal_single_ones(name: str) -> None:
    federation = ragged_federation(sparse=True)
    backbone = backbones.make(name, dropout=0.5)
    batch = stack(federation)
    params = backbone.init_params(TASK, batch, seed=3, common=False)
    together = backbone.train_outputs(params, batch, seed=5, epoch=1)[1]
    alone = torch.cat(
        [
            backbone.train_outputs({n: p[k : k + 1] for n, p in params.items()}, stack(federation, [k]), 5, 1)[1]
            for k in range(3)
        ]
    )
    assert torch.allclose(together, alone, rtol=0, atol=1e-10)


def test_every_seed_epoch_and_layer_drops_other_entries() -> None:
    batch = stack(ragged_federation())
    ones = torch.ones(batch.num_nodes, 40, dtype=torch.float64)
    drop = Dropout(0.5, batch, 0, 0)
    masks = [drop(ones), drop(ones), Dropout(0.5, batch, 0, 1)(ones), Dropout(0.5, batch, 1, 0)(ones)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 4
    assert torch.equal(Dropout(0.5, batch, 0, 0)(ones), masks[0])
    assert set(masks[0].flatten().tolist()) == {0.0, 2.0}


def test_common_start_is_the_same_for_all_and_own_start_is_not() -> None:
    batch = stack(ragged_federation())
    backbone = backbones.make("gcn")
    common = backbone.init_params(TASK, batch, seed=0)["conv1.weight"]
    own = backbone.init_params(TASK, batch, seed=0, common=False)["conv1.weight"]
    assert torch.equal(common[0], common[1])
    assert not torch.equal(own[0], own[1])
    alone = backbone.init_params(TASK, stack(ragged_federation(), [1]), seed=0, common=False)["conv1.weight"]
    assert torch.equal(own[1], alone[0])  # a client's draw does not depend on its company


@pytest.mark.parametrize(("init", "low", "high"), [("glorot", -0.5, 0.5), ("uniform01", 0.0, 1.0)])
def test_initial_weights_are_in_range(init: str, low: float, high: float) -> None:
    """Glorot on [5, 19]: ±√(6/24) = ±0.5."""
    backbone = backbones.make("gcn", hidden=19, init=init)
    params = backbone.init_params(TASK, stack(ragged_federation()), seed=0)
    weight = params["conv1.weight"]
    assert low <= weight.min() < low + 0.1
    assert high - 0.1 < weight.max() <= high
    assert params["conv1.bias"].any() == (init == "uniform01")


def test_asking_twice_for_the_same_weights_is_free_and_changed_weights_are_noticed() -> None:
    backbone, params, batch = setting("gcn")
    first = backbone.logits(params, batch)
    assert backbone.logits(params, batch) is first
    params["conv1.bias"].add_(1.0)
    second = backbone.logits(params, batch)
    assert second is not first
    assert not torch.equal(first, second)


def test_a_module_of_ones_own_is_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "from torch_geometric.nn import GCNConv\n"
        "class MyGNN(nn.Module):\n"
        "    def __init__(self, fan_in, hidden, fan_out):\n"
        "        super().__init__()\n"
        "        self.first, self.second = GCNConv(fan_in, hidden), GCNConv(hidden, fan_out)\n"
        "    def forward(self, x, edge_index):\n"
        "        return self.second(self.first(x, edge_index).relu(), edge_index)\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    own = backbones.make("my_models:MyGNN", hidden=8)
    batch = stack(ragged_federation(sparse=True))
    params = own.init_params(TASK, batch, seed=0)
    mine = own.logits(params, batch)
    ours = backbones.make("gcn", hidden=8).logits(
        {
            f"conv{layer}.{part}": params[f"{name}.{path}"].mT if part == "weight" else params[f"{name}.{path}"]
            for layer, name in ((1, "first"), (2, "second"))
            for part, path in (("weight", "lin.weight"), ("bias", "bias"))
        },
        batch,
    )
    assert torch.allclose(mine, ours, rtol=0, atol=1e-10)


def test_the_dropout_of_ones_own_module_is_drawn_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_dropout.py").write_text(
        "from torch import nn\n"
        "class Dropping(nn.Module):\n"
        "    def __init__(self, fan_in, hidden, fan_out):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Linear(fan_in, hidden), nn.Dropout(0.5), nn.Linear(hidden, fan_out))\n"
        "    def forward(self, x, edge_index):\n"
        "        return self.layers(x)\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    federation = ragged_federation()
    own, batch = backbones.make("my_dropout:Dropping", hidden=8), stack(federation)
    params = own.init_params(TASK, batch, seed=0)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = own.train_outputs(params, batch, 5, 0)[1]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(own.train_outputs(params, batch, 5, 0)[1], first)
    for seed, epoch in ((6, 0), (5, 1)):
        assert not torch.equal(own.train_outputs(params, batch, seed, epoch)[1], first)
    weights = {name: value[1:2] for name, value in params.items()}
    alone = own.train_outputs(weights, stack(federation, [1]), 5, 0)[1]
    assert torch.allclose(alone, first[batch.rows.ptr[1] : batch.rows.ptr[2]], rtol=0, atol=1e-10)
    expected = [layer.T for layer in (params["layers.0.weight"][0], params["layers.2.weight"][0])]
    hidden = batch.rows.features @ expected[0] + params["layers.0.bias"][0]  # type: ignore[operator]
    assert torch.allclose(own.logits(params, batch), hidden @ expected[1] + params["layers.2.bias"][0])  # none here


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("torch_geometric.nn:GCN", "its first arguments are in_channels, hidden_channels, num_layers, "),
        ("torch.nn:ReLU", "fails ("),  # takes no three arguments
    ],
)
def test_a_module_with_other_arguments_is_told_how_it_is_built(name: str, cause: str) -> None:
    with pytest.raises(InputError) as caught:
        backbones.make(name, hidden=64).learns_statistics(TASK)
    assert cause in str(caught.value)
    assert "built as Class(in, hidden, out) by position: write a subclass" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("gcnn", {}, "unknown backbone 'gcnn'"),
        ("gcn", {"init": "normal"}, "init is 'normal'"),
        ("gcn", {"dropout": 1.0}, "dropout is 1.0"),
        ("gcn", {"hidden": 0}, "hidden is 0"),
        ("gcn", {"adam_eps": 0.0}, "adam_eps is 0.0"),
        ("gat", {"negative_slope": -4.0}, "negative_slope is -4.0"),
        ("gat", {"heads": 5}, "heads is 5"),
        ("no_such_module:X", {}, "backbone 'no_such_module:X': the module 'no_such_module' cannot be imported"),
        ("collections:Nope", {}, "backbone 'collections:Nope': the module 'collections' has no class 'Nope'"),
        ("math:pi", {}, "backbone 'math:pi': the module 'math' has no class 'pi', only a float of that name"),
        ("collections:OrderedDict", {}, "backbone 'collections:OrderedDict' is not derived from Module"),
    ],
)
def test_bad_backbones_are_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        backbones.make(name, **options)
    assert str(caught.value).startswith(sentence)
