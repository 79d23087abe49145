"""What every algorithm can have: rows of length 1, shifted decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from play import Play, build
from toys import ragged_federation, stack

import fedspray
from fedspray import algorithms
from fedspray.algorithms._shift import SHIFTS, choose
from fedspray.data.federation import Federation
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.runs.models import PersonalModel
from fedspray.runs.settings import deciding, resolve

OTHERS = [name for name in algorithms.names() if "prior_shift" not in algorithms.find(name).ignores]


def figures(federation: Federation, algorithm: str, **values: Any) -> Any:
    return fedspray.run(federation, algorithm, rounds=3, hidden=4, **values).seeds[0]


@pytest.mark.parametrize("name", OTHERS)
def test_a_shift_moves_decisions_and_nothing_else(name: str) -> None:
    """Losses, the reported round and what is trained are those of the algorithm itself."""
    federation = ragged_federation()
    plain, moved = figures(federation, name), figures(federation, name, prior_shift=0.9)
    assert moved.metrics["best_round"] == plain.metrics["best_round"]
    for before, after in zip(plain.records, moved.records, strict=True):
        assert {part: after[part]["loss"] for part in ("train", "val", "test")} == {
            part: before[part]["loss"] for part in ("train", "val", "test")
        }
        assert after["bytes_up"] - before["bytes_up"] == 3 * 4 * (2 + 1)  # float32: two counts and a number of nodes
        assert after["bytes_down"] - before["bytes_down"] == 3 * 4


@pytest.mark.parametrize("sparse", [False, True])
def test_predictions_by_hand(sparse: bool) -> None:
    federation = ragged_federation(sparse=sparse)
    plain, moved = figures(federation, "fedavg"), figures(federation, "fedavg", prior_shift=0.4)
    for client in federation.with_split(0).clients:
        train = client.graph.labels[client.split.train]
        shares = (np.bincount(train, minlength=3) + 1) / (len(train) + 3)
        expected = np.log(plain.models[client.name].predict(client.graph)) - 0.4 * np.log(shares)
        expected = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
        assert np.allclose(moved.models[client.name].predict(client.graph), expected, atol=1e-5)


def test_the_shift_is_chosen_by_counts_of_all_clients() -> None:
    batch = stack(ragged_federation())
    algorithm = build("local", prior_shift="auto")
    game = Play(algorithm, batch, rounds=3)
    counts, nodes = torch.zeros(2, len(SHIFTS)), 0.0
    for rounds in range(3):
        inner = Play(build("local"), batch, rounds=rounds)
        owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
        minority = labels != batch.train_class_counts.argmax(dim=1)[owners]
        shares = game.client.log_shares[owners]
        right = [(inner.logits()[batch.val] - a * shares).argmax(dim=1) == labels for a in SHIFTS]
        found = torch.tensor([[int((r & m).sum()) for r in right] for m in (torch.ones_like(minority), minority)])
        counts, nodes = 0.5 * counts + found, 0.5 * nodes + len(labels)
    assert torch.allclose(game.server.shift_counts, counts.double())
    chosen = SHIFTS[choose(counts, torch.tensor(nodes), 0.05)]
    assert game.message["prior_shift"].tolist() == [pytest.approx(chosen)] * 3
    assert algorithm.diagnostics(game.server, {})["prior_shift"] == chosen


def test_before_anything_is_counted_nothing_is_shifted() -> None:
    assert (
        Play(build("fedavg", prior_shift="auto"), stack(ragged_federation())).message["prior_shift"].tolist() == [0] * 3
    )


@pytest.mark.parametrize("values", [{"prior_shift": "auto"}, {"prior_shift": 0.3, "unit_rows": True}])
@pytest.mark.parametrize("name", ["local", "fedspray", "fedala", "gcfl"])
def test_models_with_options_are_read_again(name: str, values: dict[str, Any], tmp_path: Any) -> None:
    federation = ragged_federation(sparse=True)
    run = fedspray.run(federation, name, rounds=2, hidden=4, out=tmp_path / "run", **values)
    for client in federation.clients:
        path = tmp_path / "run" / "seed-0" / "models" / f"{client.name}.safetensors"
        again = PersonalModel.load(path).predict(client.graph)
        assert np.array_equal(again, run.models[client.name].predict(client.graph))


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_length_one_are_those_of_scaled_features(sparse: bool) -> None:
    federation = ragged_federation(sparse=sparse)
    scaled = stack(federation, dtype=torch.float64).unit_rows
    dense = stack(federation, dtype=torch.float64).rows.dense(scaled.num_features)
    expected = torch.nn.functional.normalize(dense, dim=1)
    assert torch.allclose(scaled.rows.dense(scaled.num_features), expected)
    assert torch.allclose(scaled.train_rows.dense(scaled.num_features), expected[scaled.train])
    assert (
        figures(federation, "fedavg", unit_rows=True).metrics["models"]
        != figures(federation, "fedavg").metrics["models"]
    )


def test_options_are_neutral_and_tell_results_apart() -> None:
    found = [deciding(resolve(RunSettings(algorithm="fedavg", values=v)).algorithm) for v in ({}, {"prior_shift": 0.0})]
    assert found[0] == found[1]
    assert {"prior_shift", "unit_rows"}.isdisjoint(found[0])
    other = deciding(
        resolve(RunSettings(algorithm="fedavg", values={"prior_shift": "auto", "unit_rows": True})).algorithm
    )
    assert (other["prior_shift"], other["unit_rows"]) == ("auto", True)


@pytest.mark.parametrize("value", [-0.1, 1.5, "best"])
def test_bad_shifts_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=rf"^prior_shift is {value!r}"):
        build("fedavg", prior_shift=value)


def test_fedspray2_has_a_shift_of_its_own() -> None:
    with pytest.raises(InputError, match="prior_shift"):
        fedspray.run(ragged_federation(), "fedspray2", rounds=1, prior_shift="auto")
