"""Differential privacy: ε by formulas of its own, what one client or node can change, and what a run says of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from toys import permuted_federation, ragged_federation, stack

pytest.importorskip("dp_accounting")

import dp_accounting
from dp_accounting import pld

import fedspray
from fedspray import links
from fedspray.algorithms.fedavg import FedAvg
from fedspray.algorithms.fedspray2 import FedSpray2
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.links import dp
from fedspray.links.base import Trip
from fedspray.nn.tree import Message, part_of
from fedspray.runs.settings import resolve

TRIP = Trip(0, 1, 0, FedAvg.uplink, torch.float32, num_features=5)


# ---- ε ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_epsilon_solves_the_equation_of_the_gaussian_mechanism(noise: float) -> None:
    """Balle and Wang (2018), theorem 8: δ = Φ(1/2z - εz) - e^ε Φ(-1/2z - εz)."""

    def gap(epsilon: float) -> float:
        first, second = (norm.cdf(sign / (2 * noise) - epsilon * noise) for sign in (1, -1))
        return float(first - math.exp(epsilon) * second - 1e-5)

    exact, renyi = dp.epsilon_of(noise, 1e-5)
    assert exact == pytest.approx(brentq(gap, 1e-6, 60), rel=1e-4)
    assert exact < renyi < 1.2 * exact + 0.2


def test_rounds_compose_as_one_mechanism_with_less_noise() -> None:
    """The accountant's own composition of 50 rounds, by privacy loss distributions, which it rounds up."""
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(7.0), 50))
    exact, _ = dp.epsilon_of(7.0 / math.sqrt(50), 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=2e-3)
    assert accountant.get_epsilon(1e-5) >= exact - 1e-6


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0, 16.0])
def test_the_noise_of_a_target_keeps_to_it(epsilon: float) -> None:
    settings = RunSettings(algorithm="fedavg", values={"rounds": 100}, link=(f"dp epsilon={epsilon}",))
    spent = [resolve(settings).spent(r)["privacy"]["epsilon"] for r in (1, 50, 100)]
    assert spent[0] < spent[1] < spent[2] <= epsilon
    assert spent[2] == pytest.approx(epsilon, rel=1e-3)


# ---- what one client can change -----------------------------------------------------------------------------


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), st.floats(0, 1e5))
def test_no_group_is_longer_than_its_limit(values: list[float], count: float) -> None:
    """Without noise to speak of: groups gnn.* (both tensors together) and counts, whatever a client has."""
    declared = {**FedSpray2.uplink, **FedAvg.uplink}
    message: Message = {
        "gnn.a": torch.tensor([values[:2]]),
        "gnn.b": torch.tensor([values[2:]]),
        "choice_counts": torch.tensor([[count, 1.0]]),
        "num_train": torch.tensor([count]),
    }
    base = torch.tensor([[1.0, 2.0]])
    link = links.make("dp noise=1e-12 clip=0.5 count_clip=20 shares=2")  # shares are not rounded
    sent, _ = link.to_server(message, {}, replace(TRIP, declared=declared, received={"gnn.a": base}))
    assert torch.stack([(sent["gnn.a"] - base).norm(), sent["gnn.b"].norm()]).norm() <= 0.5 + 1e-4
    assert sent["choice_counts"].norm() <= 20 + 1e-4
    assert sent["num_train"].tolist() == [1.0]  # a weight alone


@pytest.mark.parametrize(("shares", "share"), [(1, 1.0), (4, 0.5)])
def test_noise_has_the_size_that_the_formula_says(shares: int, share: float) -> None:
    """z · C · √P / √m with P = 2 groups."""
    declared = {**FedSpray2.uplink, "gnn.*": FedAvg.uplink["gnn.*"]}
    message: Message = {"gnn.a": torch.zeros(1, 40_000), "choice_losses": torch.zeros(1, 40_000)}
    link = links.make(f"dp noise=3 clip=0.1 shares={shares}")
    sent, _ = link.to_server(message, {}, replace(TRIP, declared=declared))
    for value in sent.values():
        assert value.std().item() == pytest.approx(3 * 0.1 * math.sqrt(2) * share, rel=0.02)


def test_noise_between_organisations_is_the_clients_secret() -> None:
    """All know the run's seed, so noise that is drawn from it can be taken off again."""
    link = links.make("dp noise=1")
    message: Message = {"gnn.a": torch.zeros(1, 3)}
    here, there, again = (
        link.to_server(message, {}, replace(TRIP, secret=secret))[0]["gnn.a"] for secret in (None, 5, 5)
    )
    assert torch.equal(there, again)
    assert not torch.equal(here, there)


# ---- what one node can change -------------------------------------------------------------------------------


def teacher(**values: Any) -> FedSpray2:
    given = {"encoder_dropout": 0.0, "reads_neighbours": False, "embedding_dim": 6, **values}
    return FedSpray2(**given)


def gradients(algorithm: FedSpray2, batch: GraphBatch, seed: int = 0) -> torch.Tensor:
    """[P]: of one client, with proxies that say something."""
    federation = ragged_federation()
    message = algorithm.broadcast(algorithm.init_server(federation.task, 1), (0,))
    message = {name: value.to(batch.dtype) for name, value in message.items()}
    message["encoder.proxies"] = torch.ones_like(message["encoder.proxies"])
    client = algorithm.init_clients(federation.task, batch, 0)
    _, uplink = algorithm.client_update(client, message, batch, seed)
    return torch.cat([value.flatten() for value in part_of(uplink, "gradient").values()])


def with_train(federation: Federation, nodes: list[int]) -> GraphBatch:
    """The second client with these training nodes alone."""
    client = federation.clients[1]
    mask = client.split.train.copy()
    mask[:] = False
    mask[nodes] = True
    own = replace(client, split=replace(client.split, train=mask, val=~mask, test=mask & False))
    return GraphBatch.from_clients([own], [0], dtype=torch.float64)


@pytest.mark.parametrize("neighbours", [False, True])
def test_gradients_are_clipped_node_by_node(neighbours: bool) -> None:
    """The sum over nodes of each node's own gradient, shortened by hand; with h as the whole client has it."""
    federation = ragged_federation()
    nodes = [0, 3, 5, 8, 11]
    if neighbours:
        nodes = [3]  # one node: its own gradient, whatever the others' labels say
    alone = [gradients(teacher(reads_neighbours=neighbours), with_train(federation, [i])) for i in nodes]
    wanted = sum(own * min(1.0, 0.7 / float(own.norm())) for own in alone)
    assert max(float(own.norm()) for own in alone) > 0.7
    found = gradients(teacher(reads_neighbours=neighbours, record_clip=0.7), with_train(federation, nodes))
    assert torch.allclose(found, torch.as_tensor(wanted), atol=1e-9)


def test_one_node_changes_the_sum_by_the_limit_at_most() -> None:
    """Without neighbours' labels; with them a node's label also reaches the gradients of those around it."""
    federation, nodes = ragged_federation(), [0, 3, 5, 8, 11]
    for clip in (0.1, 0.7):
        whole = gradients(teacher(record_clip=clip), with_train(federation, nodes))
        for i in nodes:
            without = gradients(teacher(record_clip=clip), with_train(federation, [k for k in nodes if k != i]))
            assert (whole - without).norm() <= clip + 1e-9


def test_at_the_level_of_records_nothing_else_leaves() -> None:
    run = resolve(
        RunSettings(algorithm="fedspray2", values={"record_clip": 0.5}, link=("dp epsilon=4 clip=0.5 level=record",))
    )
    batch = stack(ragged_federation(), [1])
    algorithm: Any = run.algorithm
    message = algorithm.broadcast(algorithm.init_server(ragged_federation().task, 0), (0,))
    message = {name: value.double() for name, value in message.items()}
    _, uplink = algorithm.client_update(algorithm.init_clients(ragged_federation().task, batch, 0), message, batch, 0)
    sent, _ = run.links[0].to_server(uplink, {}, replace(TRIP, declared=algorithm.uplink))
    assert sent.keys() == uplink.keys()
    assert all(not sent[name].any() for name in ("choice_counts", "choice_losses", "num_val"))
    assert run.spent(1)["privacy"]["unit"] == "a training node"


# ---- runs ---------------------------------------------------------------------------------------------------


def run(algorithm: str = "fedavg", *chain: str, **values: Any) -> Any:
    given = {"rounds": 4, "hidden": 8, "progress": False, **values}
    return fedspray.run(permuted_federation(40), algorithm, link=list(chain), **given).seeds[0]


def test_a_run_says_what_it_spent_and_keeps_evaluations_to_itself() -> None:
    found = run("fedspray", "dp epsilon=8")
    spent = [record["privacy"]["epsilon"] for record in found.records]
    assert spent == sorted(spent)
    assert found.metrics["privacy"]["epsilon"] == spent[-1] <= 8
    assert found.metrics["privacy"]["outside"] == []
    assert (found.metrics["overall"], found.metrics["best_round"]) == (None, 4)  # the last one, since nobody knows
    assert all(record["test"]["overall"] is None for record in found.records)
    assert "privacy" not in run("fedspray").metrics


def test_evaluations_can_be_left_out_of_the_promise() -> None:
    found = run("fedspray", "dp epsilon=8 evaluation=exact")
    assert found.metrics["privacy"]["outside"] == ["evaluation counts"]
    assert found.metrics["overall"] is not None


def test_with_secure_sums_each_client_adds_its_share() -> None:
    """Noise of the mean of six: one client's is 1/6 of its own; of shares of four, half of that again."""
    shares: Any = resolve(RunSettings(algorithm="fedavg", link=("dp epsilon=8", "secure-sum clients=4"))).links[0]
    assert shares.shares == 4
    proxies: Any = resolve(RunSettings(algorithm="fedspray", link=("dp epsilon=8", "secure-sum clients=4"))).links[0]
    assert proxies.shares == 1  # means by class are products, whose noise does not add up
    for name in ("fedavg", "fedspray2"):  # noisy counts may say that more nodes are right than there are
        assert run(name, "dp epsilon=1", "secure-sum").metrics["privacy"]["epsilon"] <= 1


@pytest.mark.parametrize(
    ("algorithm", "text", "sentence"),
    [
        ("fedavg", "dp epsilon=0", "above 0"),
        ("fedavg", "dp noise=-1", "dp: noise is -1.0, but must be at least 0"),
        ("fedavg", "dp epsilon=1 delta=2", "delta is 2.0, but must be above 0 and below 1"),
        ("fedavg", "dp epsilon=1 clip=0", "clip is 0.0, but must be above 0"),
        ("gcfl", "dp epsilon=1", "gnn.*, num_train"),
        ("fedavg", "dp epsilon=1 level=record", "fedspray2"),
        ("fedspray2", "dp epsilon=1 level=record", "0 (record_clip)"),
        ("fedspray2-shared", "dp epsilon=1 level=record", "gnn.* is a mean"),
        ("fedavg", "dp epsilon=1 level=both", "level is 'both'"),
        ("fedavg", "dp epsilon=1 shares=3", "shares is 3, but 1 clients are guaranteed"),
    ],
)
def test_refused(algorithm: str, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(RunSettings(algorithm=algorithm, link=(text,)))
    assert sentence in str(caught.value)
