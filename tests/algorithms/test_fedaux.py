from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from play import Play, build
from toys import ragged_federation, stack

from fedspray.algorithms.fedaux import VECTOR, FedAux, kernel_mean
from fedspray.backbones import make
from fedspray.errors import InputError
from fedspray.nn.tree import part_of


def written_out(values: torch.Tensor, scores: torch.Tensor, width: float) -> torch.Tensor:
    """The paper's formula with all pairs of nodes."""
    kernel = torch.exp(-((scores[:, None] - scores) ** 2) / width**2)
    return kernel @ values / kernel.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("width", [0.2, 0.5, 1.0, 10.0, 1e3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_the_sum_over_all_pairs_is_exact(width: float, dtype: torch.dtype, tolerance: float) -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    scores = torch.rand(40, generator=draw, dtype=torch.float64) * 2 - 1
    scores[:2] = torch.tensor([-1.0, 1.0])  # as far apart as can be
    found = kernel_mean(values.to(dtype), scores.to(dtype), (0, 25, 25, 40), width)
    for part in (slice(0, 25), slice(25, 40)):  # clients do not mix
        expected = written_out(values[part], scores[part], width)
        assert torch.allclose(found[part].double(), expected, rtol=0, atol=tolerance)


def test_its_gradient_is_the_formulas() -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(12, 2, generator=draw, dtype=torch.float64, requires_grad=True)
    scores = (torch.rand(12, generator=draw, dtype=torch.float64) * 2 - 1).requires_grad_()
    target = torch.randn(12, 2, generator=draw, dtype=torch.float64)
    ours = torch.autograd.grad((kernel_mean(values, scores, (0, 12), 0.7) * target).sum(), (values, scores))
    plain = torch.autograd.grad((written_out(values, scores, 0.7) * target).sum(), (values, scores))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-11) for a, b in zip(ours, plain, strict=True))


def test_two_nodes_by_hand() -> None:
    """κ = exp(-1/4): the first node keeps 1 / (1 + κ) of its own embedding."""
    found = kernel_mean(torch.tensor([[1.0], [0.0]]).double(), torch.tensor([0.5, -0.5]).double(), (0, 2), 2.0)
    share = 1 / (1 + math.exp(-0.25))
    assert found[:, 0].tolist() == pytest.approx([share, 1 - share])


def test_without_weights_on_z_it_is_the_plain_network() -> None:
    """logits = W_h h + b, with h from PyTorch's own operations."""
    algorithm, batch = build("fedaux", hidden=8), stack(ragged_federation())
    game = Play(algorithm, batch)
    params = part_of(game.message, "gnn")
    silent = params["out.weight"].clone()
    silent[:, 8:] = 0
    hat = batch.gcn_adjacency.matrix.to_dense()
    expected = []
    for k, (a, b) in enumerate(zip(batch.rows.ptr[:-1], batch.rows.ptr[1:], strict=True)):
        part, x = hat[a:b, a:b], batch.rows.dense(5)[a:b]
        hidden = (part @ x @ params["conv1.weight"][k] + params["conv1.bias"][k]).relu()
        embedded = part @ hidden @ params["conv2.weight"][k] + params["conv2.bias"][k]
        expected.append(embedded @ silent[k, :8] + params["out.bias"][k])
    found = algorithm.net.logits({**params, "out.weight": silent}, batch)
    assert torch.allclose(found, torch.cat(expected), rtol=0, atol=1e-12)


def test_clients_are_mixed_by_the_cosines_of_their_vectors() -> None:
    """Vectors (1, 0), (0, 2) and (1, 1): cosines 0 and 1/√2; the third client has no training nodes."""
    algorithm = FedAux(backbone=make("gcn", hidden=2), sharpness=2.0)
    game = Play(algorithm, stack(ragged_federation()))
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]).double()
    sent = {**game.message, f"gnn.{VECTOR}": vectors, "num_train": torch.tensor([4.0, 1.0, 0.0]).double()}
    server = algorithm.server_update(game.server, sent, (0, 1, 2))
    share = math.exp(2) / (math.exp(2) + 1)
    assert server.gnn[VECTOR][0].tolist() == pytest.approx([share, 2 * (1 - share)])
    assert server.gnn[VECTOR][2].tolist() == pytest.approx([0.5, 1.0])  # as near to one as to the other
    assert algorithm.diagnostics(server, sent)["similarity"][0] == pytest.approx([1, 0, 0.7071])


def test_a_plain_mean_without_sharpness_and_everybody_alone_with_much() -> None:
    batch = stack(ragged_federation())
    alike = Play(build("fedaux", hidden=8, sharpness=0.0), batch, rounds=3)
    for key, sent in part_of(alike.uplinks[-1], "gnn").items():
        assert torch.allclose(alike.server.gnn[key], sent.mean(dim=0).expand_as(sent), rtol=0, atol=1e-12)
    alone = Play(build("fedaux", hidden=8, sharpness=1e30), batch, rounds=3)
    for k in range(3):
        single = Play(build("fedaux", hidden=8), stack(ragged_federation(), [k]), rounds=3)
        for key, value in part_of(single.uplinks[-1], "gnn").items():
            assert torch.allclose(alone.uplinks[-1][f"gnn.{key}"][k], value[0], rtol=0, atol=1e-12)


def test_the_vector_is_trained() -> None:
    game = Play(build("fedaux", hidden=8), stack(ragged_federation()), rounds=2)
    assert (game.server.gnn[VECTOR] - game.server.start[VECTOR]).abs().min() > 1e-4


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sharpness": -1.0}, "sharpness is -1.0"),
        ({"kernel_width": 0.1}, "kernel_width is 0.1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        FedAux(backbone=make("gcn"), **settings)
    assert str(caught.value).startswith(sentence)
