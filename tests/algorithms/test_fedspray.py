from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build, same, take_in
from toys import ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.fedspray import ClientState, FedSpray, ServerState
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Split
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn.optim import AdamState

LN3, LN4 = math.log(3), math.log(4)


def five_nodes() -> GraphBatch:
    """Client A: a path a0 - a1 - a2; client B: an edge b0 - b1. Only a0 (class 0) and b0 (class 1) are trained on."""

    def client(name: str, features: list[float], edges: list[list[int]], labels: list[int]) -> Client:
        graph = Graph.from_arrays(np.array(features)[:, None], np.array(edges), labels, num_classes=2)
        first = np.arange(len(labels)) == 0
        return Client(name, graph, Split(first, ~first, np.zeros_like(first)), np.arange(len(labels)))

    return GraphBatch.from_clients(
        [client("A", [1, 1, 0], [[0, 1], [1, 2]], [0, 1, 0]), client("B", [1, 1], [[0], [1]], [1, 0])],
        [0, 1],
        dtype=torch.float64,
    )


def five_node_round() -> tuple[ServerState, ClientState, dict[str, torch.Tensor]]:
    algorithm = FedSpray(
        backbone=backbones.make("sgc", layers=1, lr=0.1),
        local_epochs=1,
        proxy_dim=1,
        distill_weight=2.0,
        encoder_distill_weight=1.0,
        confidence=0.6,
        encoder_lr=0.01,
        proxy_lr=0.02,
    )
    batch = five_nodes()
    double = torch.float64
    server = ServerState(
        encoder={
            "embedding.weight": torch.tensor([[1.0]], dtype=double),
            "embedding.bias": torch.tensor([0.0], dtype=double),
            "fusion_head.weight": torch.tensor([[LN4, 0.0]], dtype=double),
            "fusion_head.bias": torch.zeros(2, dtype=double),
            "feature_head.weight": torch.tensor([[LN3, 0.0]], dtype=double),
            "feature_head.bias": torch.zeros(2, dtype=double),
        },
        class_proxies=torch.tensor([[1.0], [-1.0]], dtype=double),
        blend_score=torch.zeros(0),
    )
    gnn = {"linear.weight": torch.zeros(2, 1, 2, dtype=double), "linear.bias": torch.zeros(2, 2, dtype=double)}
    encoder = {name: value.expand(2, *value.shape) for name, value in server.encoder.items()}
    proxies = torch.zeros(2, 1, dtype=double)
    client = ClientState(
        gnn=gnn,
        gnn_optimizer=AdamState.zeros(gnn, 2),
        encoder_optimizer=AdamState.zeros(encoder, 2),
        node_proxies=proxies,
        proxy_optimizer=AdamState.zeros({"node": proxies}, 2),
    )
    message = algorithm.broadcast(server, (0, 1))
    client, uplink = algorithm.client_update(client, message, batch, seed=0)
    return take_in(algorithm, server, uplink, (0, 1)), client, uplink


def close(actual: torch.Tensor, expected: Any) -> bool:
    return torch.allclose(actual.double().flatten(), torch.tensor(expected).double().flatten(), rtol=0, atol=2e-6)


def test_one_round_by_hand() -> None:
    """One round of FedSpray, worked out on paper.

    Encoder at the start: e = relu(x), q = softmax(ln3·e, 0), p = softmax(ln4·(e + s), 0), S = (1, -1); GNN all 0,
    so ŷ = (1/2, 1/2) everywhere. λ1 = 2, τ = 0.6, one step each. Adam's first step is lr·sign(gradient), and its
    first moment is then gradient/10, so the moments show the gradients themselves.

    Soft targets, with 4^(e+s) : 1:
      a0 trained, class 0: e=1, s=S[0]=1,  4²=16    p = (16/17, 1/17)
      a1 unlabelled: e=1, q=(3/4, 1/4) > τ, s=3/4-1/4=1/2, 4^1.5=8   p = (8/9, 1/9)
      a2 unlabelled: e=0, q=(1/2, 1/2) ≤ τ: does not take part
      b0 trained, class 1: e=1, s=S[1]=-1, 4⁰=1     p = (1/2, 1/2)
      b1 like a1                                     p = (8/9, 1/9)
    Phase 1, gradient at the class-0 logit = [trained](ŷ-y)/1 + 2·(ŷ-p)/2 (two nodes take part in each client):
      a0: -1/2 + (1/2-16/17) = -16/17      a1: 1/2-8/9 = -7/18       b0: 1/2 + 0       b1: -7/18
      Âx: a0 = 1/2+1/√6, a1 = 1/3+1/√6; b0 = b1 = 1
      A: dW = -(16/17·(1/2+1/√6) + 7/18·(1/3+1/√6)), db = -(16/17 + 7/18): W, b = (+0.1, -0.1)
      B: dW = db = 1/2-7/18 = 1/9:                                          W, b = (-0.1, +0.1)
    Phase 2, trained nodes only. ŷ0(a0) = σ(2·0.1·(1/2+1/√6+1)), ŷ0(b0) = σ(-0.4):
      a0: q-y = (-1/4, 1/4); p-ŷ = 16/17-ŷ0 =: u > 0;   e+s = 2;   ds = u·ln4 > 0
      b0: q-y = (3/4, -3/4); p-ŷ = 1/2-ŷ0 =: v > 0;     e+s = 0, so the fusion weight has gradient 0;  ds = v·ln4 > 0
      de(a0) = -ln3/4 + u·ln4 > 0;   de(b0) = 3·ln3/4 + v·ln4 > 0: the embedding goes down by 0.01 in both
    Uplink: proxies 1-0.02 for class 0 from A, -1-0.02 for class 1 from B, the missing class as received.
    """
    server, client, uplink = five_node_round()
    root6 = 1 / math.sqrt(6)
    gradient_a = -(16 / 17 * (1 / 2 + root6) + 7 / 18 * (1 / 3 + root6))
    bias_a = -(16 / 17 + 7 / 18)
    moments = client.gnn_optimizer.first
    assert close(10 * moments["linear.weight"], [gradient_a, -gradient_a, 1 / 9, -1 / 9])
    assert close(10 * moments["linear.bias"], [bias_a, -bias_a, 1 / 9, -1 / 9])
    assert close(client.gnn["linear.weight"], [0.1, -0.1, -0.1, 0.1])
    assert close(client.gnn["linear.bias"], [0.1, -0.1, -0.1, 0.1])

    u = 16 / 17 - 1 / (1 + math.exp(-0.2 * (1.5 + root6)))
    v = 1 / 2 - 1 / (1 + math.exp(0.4))
    moments = client.encoder_optimizer.first
    assert close(10 * moments["feature_head.weight"], [-1 / 4, 1 / 4, 3 / 4, -3 / 4])
    assert close(10 * moments["fusion_head.weight"], [2 * u, -2 * u, 0, 0])
    assert close(10 * moments["fusion_head.bias"], [u, -u, v, -v])
    assert close(10 * moments["embedding.weight"], [-LN3 / 4 + u * LN4, 3 / 4 * LN3 + v * LN4])
    assert close(10 * client.proxy_optimizer.first["node"], [u * LN4, v * LN4])

    assert close(uplink["class_proxies"], [0.98, -1, 1, -1.02])
    assert close(uplink["class_ratios"], [1, 0, 0, 1])
    assert close(server.class_proxies, [0.98, -1.02])
    assert close(server.encoder["embedding.weight"], [0.99])
    assert close(server.encoder["feature_head.weight"], [LN3, 0])  # +0.01 from A, -0.01 from B
    assert close(server.encoder["fusion_head.weight"], [LN4 - 0.005, 0.005])  # -0.01 from A, 0 from B


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
def test_no_distillation_is_local_bit_for_bit(backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True), dtype=torch.float32)
    spray = Play(build("fedspray", backbone, distill_weight=0), batch, rounds=3)
    local = Play(build("local", backbone), batch, rounds=3)
    assert same(spray.client.gnn, local.client.gnn)


def test_a_class_that_nobody_holds_keeps_its_proxy() -> None:
    algorithm = FedSpray(backbone=backbones.make("gcn"), proxy_dim=2)
    server = ServerState({}, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(0))
    uplink = {
        "class_proxies": torch.tensor([[[5.0, 6.0], [3.0, 4.0]], [[7.0, 8.0], [3.0, 4.0]]]),
        "class_ratios": torch.tensor([[1.0, 0.0], [0.5, 0.0]]),
        "num_train": torch.tensor([4.0, 4.0]),
    }
    aligned = take_in(algorithm, server, uplink, (0, 1)).class_proxies
    # class 0: (1·5 + ½·7) / 1.5 = 17/3 and (1·6 + ½·8) / 1.5 = 20/3; class 1 is held by nobody
    assert torch.allclose(aligned, torch.tensor([[17 / 3, 20 / 3], [3.0, 4.0]]))


def test_proxies_are_aligned_by_ratio_not_by_size() -> None:
    """A small client in which class 0 is everything counts more for class 0 than a large one with a tenth of it."""
    algorithm = FedSpray(backbone=backbones.make("gcn"), proxy_dim=1)
    uplink = {
        "class_proxies": torch.tensor([[[1.0]], [[0.0]]]),
        "class_ratios": torch.tensor([[1.0], [0.1]]),
        "num_train": torch.tensor([10.0, 1000.0]),
    }
    server = ServerState({}, torch.zeros(1, 1), torch.zeros(0))
    assert take_in(algorithm, server, uplink, (0, 1)).class_proxies.item() == pytest.approx(1 / 1.1)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_ablation_has_no_proxies(noise: float) -> None:
    game = Play(build("fedspray-no-proxies", proxy_noise=noise), stack(ragged_federation()), rounds=3)
    assert not game.server.class_proxies.any()
    assert not game.client.node_proxies.any()


def test_kept_node_proxies_do_not_restart() -> None:
    batch = stack(ragged_federation())
    algorithm = FedSpray(backbone=backbones.make("gcn"), node_proxy_start="kept")
    once, twice = (Play(algorithm, batch, rounds=rounds).client.node_proxies for rounds in (1, 2))
    # every coordinate starts at 0.1 and moves by at most ~lr in each of 5 steps a round
    assert (once - 0.1).abs().max() <= 6 * 0.02
    assert (twice - once).abs().max() <= 6 * 0.02


def test_blend_mixes_the_two_heads() -> None:
    """ŷ = (3/4, 1/4) and q = (1/2, 1/2) with w = 1/2: proportional to √(3/4·1/2) : √(1/4·1/2) = √3 : 1."""
    algorithm = FedSpray(backbone=backbones.make("sgc", layers=1), proxy_dim=1, blend=0.5)
    batch = five_nodes()
    double = torch.float64
    client = ClientState(
        gnn={
            "linear.weight": torch.zeros(2, 1, 2, dtype=double),
            "linear.bias": torch.tensor([[LN3, 0.0], [LN3, 0.0]], dtype=double),
        },
        gnn_optimizer=None,  # type: ignore[arg-type]  # prediction does not need what only training does
        encoder_optimizer=None,  # type: ignore[arg-type]
        node_proxies=None,  # type: ignore[arg-type]
        proxy_optimizer=None,  # type: ignore[arg-type]
    )
    message = {
        "encoder.embedding.weight": torch.ones(2, 1, 1, dtype=double),
        "encoder.embedding.bias": torch.zeros(2, 1, dtype=double),
        "encoder.feature_head.weight": torch.zeros(2, 1, 2, dtype=double),
        "encoder.feature_head.bias": torch.zeros(2, 2, dtype=double),
    }
    probabilities = algorithm.predict(client, message, batch).exp()
    expected = math.sqrt(3) / (1 + math.sqrt(3))
    assert torch.allclose(probabilities[:, 0], torch.full((5,), expected, dtype=double))


@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize("backbone", backbones.names())
def test_presets_train_every_backbone_at_the_published_step_size(preset: str, backbone: str) -> None:
    """SGC's own default is larger."""
    assert build("fedspray", backbone, preset=preset).backbone.lr == 0.003


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"combine": "multiply"}, "combine is 'multiply'"),
        ({"blend": 1.5}, "blend is 1.5"),
        ({"local_epochs": 0}, "local_epochs is 0"),
        ({"distill_weight": -3.0}, "distill_weight is -3.0"),
        ({"encoder_distill_weight": -1.0}, "encoder_distill_weight is -1.0"),
        ({"encoder_weight_decay": -0.1}, "encoder_weight_decay is -0.1"),
        ({"proxy_noise": -1.0}, "proxy_noise is -1.0"),
        ({"encoder_lr": -1.0}, "encoder_lr is -1.0"),
        ({"proxy_lr": 0.0}, "proxy_lr is 0.0"),
        ({"proxy_dim": 0}, "proxy_dim is 0"),
        ({"confidence": 7.0}, "confidence is 7.0"),
        ({"confidence": -0.1}, "confidence is -0.1"),
        (
            {"combine": "concat", "projector_start": "fusion"},
            "projector_start is 'fusion'",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedSpray(backbone=backbones.make("gcn"), **settings)
    assert str(caught.value).startswith(sentence)
