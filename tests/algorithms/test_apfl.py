from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from play import Play, Watched, build, take_in
from toys import awkward_federation, permuted_federation, ragged_federation, stack

from fedspray import backbones
from fedspray.algorithms.apfl import APFL, ClientState
from fedspray.algorithms.base import supervised_loss
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.nn.tree import Message, Params, cast, expand, prefixed

MIXES = ("params", "logits")


def apfl(backbone: str = "gcn", **values: Any) -> APFL:
    algorithm = build("apfl", backbone, hidden=8, **values)
    assert isinstance(algorithm, APFL)
    return algorithm


def rival(name: str, backbone: str = "gcn", **values: Any) -> Any:
    return build(name, backbone, hidden=8, **values)


# ---- the two limits, and the shared model -------------------------------------------------------


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("alpha", "limit"), [(0.0, "fedavg"), (1.0, "local")])
@pytest.mark.parametrize("backbone", ["gcn", "sage", "gat"])
def test_the_limits_are_fedavg_and_local(alpha: float, limit: str, mix: str, backbone: str) -> None:
    batch = stack(ragged_federation(sparse=True))
    fixed = Watched(apfl(backbone, alpha_start=alpha, alpha_update="never", mix=mix), batch, rounds=4)
    expected = Watched(rival(limit, backbone), batch, rounds=4)
    for ours, theirs in zip(fixed.seen, expected.seen, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_uploads_are_fedavgs_whatever_alpha_is(alpha: float, mix: str, dropout: float) -> None:
    batch = stack(ragged_federation(), dtype=torch.float32)
    ours = Play(apfl(alpha_start=alpha, alpha_update="step", mix=mix, dropout=dropout), batch, rounds=3)
    fedavg = Play(rival("fedavg", dropout=dropout), batch, rounds=3)
    for mine, theirs in zip(ours.uplinks, fedavg.uplinks, strict=True):
        assert mine.keys() - theirs.keys() == {"alpha"}
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_personal_model_is_never_sent() -> None:
    """Another personal model changes α at most: nothing else that is sent depends on it."""
    batch, algorithm = stack(ragged_federation()), apfl()
    play = Play(algorithm, batch, rounds=2)
    message = play.message
    _, uplink = algorithm.client_update(play.client, message, batch, 9)
    other = replace(play.client, personal={name: 3 * value + 1 for name, value in play.client.personal.items()})
    after, sent = algorithm.client_update(other, message, batch, 9)
    assert all(torch.equal(uplink[name], sent[name]) for name in uplink if name != "alpha")
    assert set(sent) == {*prefixed("gnn", play.server.gnn), "num_train", "alpha"}
    assert not any(torch.equal(sent[f"gnn.{name}"], value) for name, value in after.personal.items())


def test_w_is_averaged_by_training_nodes_or_uniformly() -> None:
    batch = stack(ragged_federation())
    algorithm = apfl("sgc")
    server = cast(algorithm.init_server(Task(5, 3), 0), batch.dtype)
    values = torch.arange(3.0, dtype=torch.float64)[:, None, None].expand(3, 5, 3)
    message = {"gnn.linear.weight": values, "num_train": torch.tensor([6.0, 2.0, 0.0])}
    by_nodes = take_in(algorithm, server, message, (0, 1, 2)).gnn["linear.weight"]
    assert torch.allclose(by_nodes, torch.full_like(by_nodes, 2 / 8))
    alike = take_in(algorithm, server, {**message, "num_train": message["num_train"].sign()}, (0, 1, 2))
    assert torch.allclose(alike.gnn["linear.weight"], torch.full((5, 3), 1 / 2, dtype=torch.float64))
    uniform = Play(replace(algorithm, weighting="uniform"), stack(awkward_federation()), rounds=1)
    assert uniform.uplinks[0]["num_train"].tolist() == [1, 1, 1, 0]  # the last has no training nodes, hence no say
    nobody = {**message, "num_train": torch.zeros(3)}
    assert take_in(algorithm, server, nobody, (0, 1, 2)) is server


# ---- α ------------------------------------------------------------------------------------------


def random_models(algorithm: APFL, batch: GraphBatch, alpha: float) -> tuple[ClientState, Message]:
    """A client with unrelated v, and a w, both drawn."""
    task = Task(batch.num_features, batch.num_classes)
    client = algorithm.init_clients(task, batch, 0)

    def drawn(seed: int) -> Params:
        return algorithm.backbone.init_params(task, batch, seed, common=False)

    weights = torch.full((batch.num_clients,), alpha, dtype=batch.dtype)
    return replace(client, personal=drawn(1), alpha=weights), prefixed("gnn", drawn(2))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("backbone", backbones.names())
def test_alpha_follows_the_derivative_of_the_mixtures_loss(backbone: str, mix: str) -> None:
    batch, h = stack(ragged_federation()), 1e-5
    algorithm = apfl(backbone, alpha_lr=1e-4, local_epochs=1, mix=mix)
    client, message = random_models(algorithm, batch, 0.4)
    after, _ = algorithm.client_update(client, message, batch, 0)
    losses = [
        supervised_loss(algorithm.predict(replace(client, alpha=client.alpha + step), message, batch), batch)
        for step in (h, -h)
    ]
    assert torch.allclose((client.alpha - after.alpha) / 1e-4, (losses[0] - losses[1]) / (2 * h), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mix", MIXES)
def test_equal_models_leave_alpha_alone(mix: str) -> None:
    """In the first round v = w, so only the pull ρ towards the shared model acts."""
    batch = stack(ragged_federation())
    first = Play(apfl(mix=mix), batch, rounds=1).client.alpha
    assert torch.allclose(first, torch.full_like(first, 0.5), rtol=0, atol=1e-12)
    pulled = Play(apfl(mix=mix, alpha_decay=0.02), batch, rounds=1).client.alpha
    assert torch.allclose(pulled, torch.full_like(pulled, 0.5 - 0.003 * 0.02 * 0.5), rtol=0, atol=1e-12)
    later = Play(apfl(mix=mix), batch, rounds=2).client.alpha
    assert (later - 0.5).abs().min() > 1e-6


@pytest.mark.parametrize("rate", [0.1, 1e3])
@pytest.mark.parametrize("mix", MIXES)
def test_alpha_stays_between_0_and_1(rate: float, mix: str) -> None:
    batch = stack(ragged_federation())
    play = Play(apfl(alpha_lr=rate, alpha_update="step", mix=mix), batch, rounds=8)
    sent = torch.stack([uplink["alpha"] for uplink in play.uplinks])
    assert ((sent >= 0) & (sent <= 1)).all()
    if rate > 1:
        assert ((sent == 0) | (sent == 1))[1:].any()


def test_alpha_moves_at_the_first_step_only_unless_told_otherwise() -> None:
    """One step a round is the same in both modes; with more, the last ones move α in one of them only."""
    batch = stack(ragged_federation())
    by_round, by_step = (Play(apfl(local_epochs=1, alpha_update=when), batch, rounds=3) for when in ("round", "step"))
    assert torch.equal(by_round.client.alpha, by_step.client.alpha)
    by_round, by_step = (Play(apfl(alpha_update=when), batch, rounds=3) for when in ("round", "step"))
    assert (by_step.client.alpha - 0.5).abs().min() > (by_round.client.alpha - 0.5).abs().max()


def test_a_gradient_that_is_not_finite_leaves_alpha_alone() -> None:
    algorithm = apfl()
    alpha = torch.tensor([0.5, 0.5, 0.5], requires_grad=True)
    alpha.grad = torch.tensor([torch.nan, torch.inf, 1.0])
    assert torch.allclose(algorithm._step_alpha(alpha), torch.tensor([0.5, 0.5, 0.497]))


def test_a_client_without_training_nodes_uses_the_shared_model() -> None:
    batch = stack(awkward_federation())
    play = Play(apfl(), batch, rounds=3)
    fedavg = Play(rival("fedavg"), batch, rounds=3)
    last = batch.rows.client_of == 3
    assert play.client.alpha[3] == 0
    assert torch.equal(play.logits()[last], fedavg.logits()[last])


# ---- mixture ------------------------------------------------------------------------------------


def test_for_a_linear_network_both_mixtures_are_the_same() -> None:
    batch = stack(ragged_federation())
    one, other = (Watched(apfl("sgc", alpha_lr=0.1, mix=mix), batch, rounds=4) for mix in MIXES)
    assert (one.client.alpha - 0.5).abs().min() > 1e-4
    assert torch.allclose(one.client.alpha, other.client.alpha, rtol=0, atol=1e-10)
    for a, b in zip(one.seen, other.seen, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_the_personal_model_gets_alpha_times_the_mixtures_gradient() -> None:
    batch = stack(ragged_federation())
    algorithm = apfl("sgc", local_epochs=1, alpha_update="never")
    client, message = random_models(algorithm, batch, 0.25)
    after, _ = algorithm.client_update(client, message, batch, 0)
    shared = {name.removeprefix("gnn."): value for name, value in message.items()}
    mixture = {name: (0.25 * client.personal[name] + 0.75 * shared[name]).requires_grad_() for name in shared}
    _, logits = algorithm.backbone.train_outputs(mixture, batch, 0, 0)
    gradients = torch.autograd.grad(supervised_loss(logits, batch).sum(), list(mixture.values()))
    for name, gradient in zip(mixture, gradients, strict=True):  # Adam's first moment is gradient / 10
        assert torch.allclose(10 * after.personal_optimizer.first[name], 0.25 * gradient, rtol=0, atol=1e-12)


def test_predictions_with_the_clients_own_shared_model() -> None:
    batch = stack(ragged_federation())
    average, own = Play(apfl(), batch, rounds=3), Play(apfl(predict_with="own"), batch, rounds=3)
    assert average.client.shared == {}
    assert torch.equal(average.client.alpha, own.client.alpha)
    mixture = {
        name: own.client.alpha.view(3, *[1] * (v.dim() - 1)) * v
        + (1 - own.client.alpha).view(3, *[1] * (v.dim() - 1)) * own.uplinks[-1][f"gnn.{name}"]
        for name, v in own.client.personal.items()
    }
    assert torch.allclose(own.logits(), backbones.make("gcn", hidden=8).logits(mixture, batch), atol=1e-12)
    assert not torch.allclose(own.logits(), average.logits())


# ---- what it is for -----------------------------------------------------------------------------


@pytest.mark.slow
def test_permuted_labels_make_alpha_rise_and_beat_fedavg() -> None:
    batch = stack(permuted_federation(), dtype=torch.float32)
    settings: dict[str, Any] = {"hidden": 16, "init": "glorot", "lr": 0.01}
    ours, fedavg = (Play(build(name, **settings), batch, rounds=60) for name in ("apfl", "fedavg"))
    assert (ours.client.alpha > 0.5).all()
    assert ours.accuracy() > fedavg.accuracy() + 0.1


def test_the_record_shows_alpha_of_those_who_trained() -> None:
    batch = stack(ragged_federation(), [2, 0])
    algorithm = apfl(alpha_start=0.25, alpha_update="never")
    play = Play(algorithm, batch, rounds=1)
    assert json.loads(json.dumps(play.record())) == {"alpha": [0.25, 0.25]}


def test_absent_clients_are_left_out_of_the_average() -> None:
    whole, part = stack(ragged_federation()), stack(ragged_federation(), [1])
    play = Play(apfl(), part, rounds=1)
    expected = {name: play.uplinks[0][f"gnn.{name}"][0] for name in play.server.gnn}
    assert all(torch.allclose(play.server.gnn[name], value, atol=1e-12) for name, value in expected.items())
    message = prefixed("gnn", expand(play.server.gnn, whole.num_clients))
    assert apfl().predict(apfl().init_clients(Task(5, 3), whole, 0), message, whole).isfinite().all()


def test_the_published_preset() -> None:
    algorithm = build("apfl", preset="published")
    assert (algorithm.mix, algorithm.alpha_decay, algorithm.weighting) == ("logits", 0.02, "uniform")


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha_start", 1.5), ("alpha_lr", -1.0), ("alpha_decay", -0.1), ("mix", "weights"), ("alpha_update", "epoch")],
)
def test_wrong_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        apfl(**{name: value})
