from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build, same
from torch.nn import functional
from toys import awkward_federation, ragged_federation, stack

import fedspray as fs
from fedspray import testing
from fedspray.algorithms.adafgl import AdaFGL, Propagation, signed_messages
from fedspray.backbones import make
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Split
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn.tree import part_of

NOW: dict[str, Any] = {"extractor_rounds": 1, "hidden": 8}
"""The second step from the second round on."""


def test_the_first_step_is_fedavg_bit_for_bit() -> None:
    batch = stack(ragged_federation(sparse=True), dtype=torch.float32)
    ours, plain = (Play(build(name, hidden=8, dropout=0.2), batch, rounds=4) for name in ("adafgl", "fedavg"))
    assert same(ours.server.gnn, plain.server.gnn)
    assert torch.equal(ours.logits(), plain.logits())


def test_the_second_step_leaves_the_averaged_gnn_as_it_is() -> None:
    batch = stack(ragged_federation())
    first, later = (Play(build("adafgl", **NOW), batch, rounds=rounds) for rounds in (1, 4))
    assert same(first.server.gnn, later.server.gnn)
    assert not same(first.client.personal, later.client.personal)
    assert later.uplinks[-1].keys() == first.uplinks[-1].keys()
    assert torch.allclose(later.logits().exp().sum(dim=1), torch.ones(29).double())  # it predicts probabilities


@pytest.mark.parametrize("rule", testing.RULES)
@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_every_rule_holds_in_the_second_step(rule: testing.Rule, backbone: str) -> None:
    rule(build("adafgl", backbone, **NOW, dropout=0.2))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_propagation_matrix_is_the_formulas(share: float) -> None:
    batch = stack(ragged_federation())
    alike = functional.normalize(torch.rand(29, 3, generator=torch.Generator().manual_seed(1)).double(), dim=1)
    found = Propagation(alike, batch, share)(torch.eye(29).double())
    edges = batch.adjacency.matrix.to_dense()
    for a, b in pairwise(batch.rows.ptr):
        own, eye = alike[a:b], torch.eye(b - a).double()
        full = share * edges[a:b, a:b] + (1 - share) * (own @ own.T - eye) + eye
        scale = full.sum(dim=1).rsqrt()
        assert torch.allclose(found[a:b, a:b], scale[:, None] * full * scale, rtol=0, atol=1e-12)
        assert not found[a:b, b:].any()


def test_networks_see_the_propagated_features_side_by_side() -> None:
    """Σ_h Ã^h X W_h = [X | ÃX | Ã²X] W."""
    algorithm, batch = build("adafgl", **NOW, propagation_steps=2), stack(ragged_federation())
    game = Play(algorithm, batch, rounds=2)
    gnn, params = part_of(game.message, "gnn"), game.client.personal
    outputs = algorithm._outputs(params, gnn, batch, lambda hidden: hidden, batch.train)
    said = functional.normalize(algorithm._probabilities(gnn, batch), dim=1)
    matrix, features = Propagation(said, batch, 0.5)(torch.eye(29).double()), batch.rows.dense(5)
    wide = torch.cat([features, matrix @ features, matrix @ matrix @ features], dim=1)
    for k, (a, b) in enumerate(pairwise(batch.rows.ptr)):
        own = {name: value[k] for name, value in params.items()}
        hidden = functional.leaky_relu(wide[a:b] @ own["smooth.1.weight"] + own["smooth.1.bias"], 0.25)
        expected = hidden @ own["smooth.2.weight"] + own["smooth.2.bias"]
        assert torch.allclose(outputs["smooth"][a:b], expected, rtol=0, atol=1e-12)
        plain = features[a:b]
        for layer in (1, 2):
            plain = functional.leaky_relu(plain @ own[f"feature.{layer}.weight"] + own[f"feature.{layer}.bias"], 0.25)
        expected = plain @ own["feature.3.weight"] + own["feature.3.bias"]
        assert torch.allclose(outputs["feature"][a:b], expected, rtol=0, atol=1e-12)


def test_signed_messages_of_two_nodes_by_hand() -> None:
    """Equal scores: v_1·v_2 = 1, m = (|2v|² - 2) / 4 = 1/2, R = 1 everywhere: R E = 2E, and leaky(-R) E = -E / 2."""
    graph = Graph.from_arrays(np.ones((2, 1)), [[0], [1]], [0, 1])
    batch = GraphBatch.from_graph(graph, dtype=torch.float64)
    scores = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    expected = ((2 * scores).softmax(dim=1) - (-scores / 2).softmax(dim=1) + scores) / 2
    assert torch.allclose(signed_messages(scores, batch, torch.arange(2)), expected, rtol=0, atol=1e-12)


def test_signed_messages_are_the_formulas() -> None:
    batch = stack(ragged_federation())
    scores = torch.randn(29, 3, generator=torch.Generator().manual_seed(2)).double()
    rows = torch.tensor([0, 3, 8, 9, 20, 28])
    found = signed_messages(scores, batch, rows)
    for a, b in pairwise(batch.rows.ptr):
        own = scores[a:b]
        direction = functional.normalize(own.softmax(dim=1), dim=1)
        alike = (direction @ direction.T).fill_diagonal_(0)
        middle = alike.mean()
        signs = torch.where(alike > middle, (alike - middle) / (1 - middle), -alike / middle).fill_diagonal_(1)
        heard = (functional.leaky_relu(part, 0.25) @ own for part in (signs, -signs))
        positive, negative = (part.softmax(dim=1) for part in heard)
        inside = (rows >= a) & (rows < b)
        expected = ((positive - negative + own) / 2)[rows[inside] - a]
        assert torch.allclose(found[inside], expected, rtol=0, atol=1e-12)


def chain(labels: list[int]) -> GraphBatch:
    """A chain of training nodes."""
    size = len(labels)
    edges = np.stack([np.arange(size - 1), np.arange(1, size)])
    graph = Graph.from_arrays(np.ones((size, 1)), edges, labels, num_classes=2)
    none = np.zeros(size, dtype=bool)
    client = Client("a", graph, Split(~none, none, none), np.arange(size))
    return GraphBatch.from_clients([client], [0], dtype=torch.float64)


def test_homophily_is_how_well_labels_spread() -> None:
    alike, unlike = (AdaFGL()._homophily(chain(labels), 0).item() for labels in ([0] * 12 + [1] * 12, [0, 1] * 12))
    assert alike > 0.7
    assert unlike < 0.4
    assert AdaFGL()._homophily(chain([1]), 0).item() == 0.5  # nobody to ask


def test_awkward_clients_have_a_homophily() -> None:
    found = AdaFGL()._homophily(stack(awkward_federation()), 0)
    assert found[2].item() == 1  # one class: everything is right
    assert found[3].item() == 0.5  # no labels


def test_the_loss_and_prediction_by_hand() -> None:
    """All logits 0 but those of `smooth`: cross-entropies are log 3, and predictions mix smooth, P̂ and 1/3."""
    algorithm, batch = build("adafgl", **NOW), stack(ragged_federation())
    game = Play(algorithm, batch, rounds=1)
    gnn = part_of(game.message, "gnn")
    said = algorithm._probabilities(gnn, batch)
    zeros = {name: torch.zeros_like(value) for name, value in game.client.personal.items()}
    zeros["smooth.2.bias"] = torch.tensor([1.0, 0.0, 0.0]).double().expand(3, 3)
    smooth = zeros["smooth.2.bias"][0]
    outputs = algorithm._outputs(zeros, gnn, batch, lambda hidden: hidden, batch.train)
    gaps = ((smooth - said) ** 2).mean(dim=1)
    for k, (a, b) in enumerate(pairwise(batch.rows.ptr)):
        nodes = batch.train[(batch.train >= a) & (batch.train < b)]
        entropy = functional.cross_entropy(smooth.expand(len(nodes), 3), batch.labels[nodes])
        expected = entropy + gaps[a:b].mean() + 3 * torch.tensor(3.0).double().log()
        assert algorithm._loss(outputs, gnn, batch)[k].item() == pytest.approx(expected.item())
    client = type(game.client)(zeros, torch.tensor([1.0, 0.0, 0.5]).double(), *[game.client.gnn_optimizer] * 2)
    found = algorithm.predict(client, game.message, batch).exp()
    alike = (smooth.softmax(dim=0) + said) / 2
    for share, (a, b) in zip((1.0, 0.0, 0.5), pairwise(batch.rows.ptr), strict=True):
        assert torch.allclose(found[a:b], share * alike[a:b] + (1 - share) / 3, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"extractor_rounds": -1}, "extractor_rounds is -1, but must be at least 0"),
        ({"topology_share": 1.5}, "topology_share is 1.5, but must be between 0 and 1"),
        ({"personal_lr": 0.0}, "personal_lr is 0.0, but must be above 0"),
        ({"personal_dropout": 1.0}, "personal_dropout is 1.0, but must be at least 0 and below 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        AdaFGL(backbone=make("gcn"), **settings)
    assert str(caught.value) == sentence


def test_a_run_is_saved_while_the_server_stays_as_it_is(tmp_path: Path) -> None:
    toy = ragged_federation()
    result = fs.run(toy, "adafgl", rounds=4, checkpoint_every=1, out=tmp_path / "run", progress=False, **NOW)
    loaded = fs.load(tmp_path / "run")
    assert isinstance(loaded, fs.RunResult)
    assert float(loaded.overall) == float(result.overall)
