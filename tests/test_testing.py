"""`check_algorithm` catches an algorithm for every rule that it breaks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedspray as fs
from fedspray import testing
from fedspray.deploy.messages.schema import MessageSchema


@dataclass(frozen=True, kw_only=True)
class Sound(fs.FedAvg):
    """FedAvg under another name."""


@dataclass(frozen=True, kw_only=True)
class Undescribed(fs.FedAvg):
    strength: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Untold(fs.FedAvg):
    summary: ClassVar[str] = ""


class Random(Sound):
    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        client, uplink = super().client_update(client, message, batch, seed)
        return client, {name: value + 1e-6 * torch.rand(()) for name, value in uplink.items()}


class InPlace(Sound):
    def server_update(self, server: Any, message: fs.Message, client_ids: Sequence[int]) -> Any:
        message["num_train"] /= message["num_train"].sum()
        return super().server_update(server, message, client_ids)


class ChangesDownlink(Sound):
    def predict(self, client: Any, message: fs.Message, batch: fs.GraphBatch) -> Tensor:
        message["gnn.conv1.bias"] = message["gnn.conv1.bias"] + 1
        return super().predict(client, message, batch)


class Leaky(Sound):
    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        client, uplink = super().client_update(client, message, batch, seed)
        mean = uplink["gnn.conv2.bias"].mean(dim=0, keepdim=True)
        return client, {**uplink, "gnn.conv2.bias": (uplink["gnn.conv2.bias"] + mean) / 2}


class ByPlace(Sound):
    """Clients get something for their place in the batch, whose data do not matter."""

    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        client, uplink = super().client_update(client, message, batch, seed)
        return client, {**uplink, "num_train": uplink["num_train"] + torch.arange(batch.num_clients)}


class Secretive(Sound):
    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        client, uplink = super().client_update(client, message, batch, seed)
        return client, {**uplink, "class_counts": batch.train_class_counts}


@dataclass(frozen=True, kw_only=True)
class Boastful(fs.FedAvg):
    uplink: ClassVar[fs.messages.Declared] = {**fs.FedAvg.uplink, "prototypes": "class means"}


@dataclass(frozen=True, kw_only=True)
class Weightless(fs.FedAvg):
    uplink: ClassVar[fs.messages.Declared] = {**fs.FedAvg.uplink, "gnn.*": fs.messages.mean("GNN", weight="size")}


class Flat(Sound):
    def broadcast(self, server: Any, client_ids: Sequence[int]) -> fs.Message:
        return {**super().broadcast(server, client_ids), "gnn.extra": torch.zeros(1)}


class Unweighed(Sound):
    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        client, uplink = super().client_update(client, message, batch, seed)
        return client, fs.prefixed("gnn", fs.part_of(uplink, "gnn"))


class Decides(Sound):
    def predict(self, client: Any, message: fs.Message, batch: fs.GraphBatch) -> Tensor:
        return super().predict(client, message, batch).argmax(dim=1)


class Single(Sound):
    def loss_logits(self, client: Any, message: fs.Message, batch: fs.GraphBatch) -> Tensor:
        return self.predict(client, message, batch).float()


class Forgetful(Sound):
    """Counts rounds where no checkpoint looks."""

    def server_update(self, server: Any, message: fs.Message, client_ids: Sequence[int]) -> Any:
        self.__dict__["rounds"] = self.__dict__.get("rounds", 0) + 1
        scale = 1 + 0.1 * self.__dict__["rounds"]
        gnn = {name: scale * value for name, value in fs.part_of(message, "gnn").items()}
        return super().server_update(server, {**message, **fs.prefixed("gnn", gnn)}, client_ids)


class Greedy(Sound):
    def predict(self, client: Any, message: fs.Message, batch: fs.GraphBatch) -> Tensor:
        logits: Tensor = super().predict(client, message, batch) + client.gnn_optimizer.step[0]
        return logits


class Divides(Sound):
    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        client, uplink = super().client_update(client, message, batch, seed)
        return client, {**uplink, "gnn.conv2.bias": uplink["gnn.conv2.bias"] / batch.num_train[:, None]}


class NoJson(Sound):
    def diagnostics(self, server: Any, message: fs.Message) -> dict[str, Any]:
        return {"sizes": message["num_train"]}


@dataclass(frozen=True, kw_only=True)
class IdlePreset(fs.FedAvg):
    presets: ClassVar[dict[str, dict[str, Any]]] = {"idle": {"local_epochs": 5}}


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Undescribed, "described"),
        (Untold, "described"),
        (Random, "same_seed_same_bits"),
        (InPlace, "arguments_unchanged"),
        (ChangesDownlink, "arguments_unchanged"),
        (Leaky, "no_data_of_others"),
        (ByPlace, "stacked_as_alone"),
        (Secretive, "messages_documented"),
        (Boastful, "messages_documented"),
        (Weightless, "sums_suffice"),
        (Flat, "messages_documented"),
        (Unweighed, "messages_documented"),
        (Decides, "predicts_logits"),
        (Single, "predicts_logits"),
        (Forgetful, "states_hold_everything"),
        (Greedy, "snapshot_predicts"),
        (Divides, "awkward_clients"),
        (NoJson, "awkward_clients"),
        (IdlePreset, "presets_run"),
    ],
)
def test_a_broken_algorithm_is_caught_by_the_rule_that_it_breaks(broken: type[Any], rule: str) -> None:
    with pytest.raises(AssertionError) as caught:
        fs.testing.check_algorithm(broken, backbone="gcn")
    assert str(caught.value).startswith(f"{rule}: ")
    assert "\n" not in str(caught.value)


def test_every_rule_has_an_algorithm_that_breaks_it() -> None:
    (cases,) = [mark.args[1] for mark in test_a_broken_algorithm_is_caught_by_the_rule_that_it_breaks.pytestmark]
    rules = {rule.__name__ for rule in testing.RULES} | {"described", "presets_run"}
    assert {rule for _, rule in cases} == rules


class Fails(Sound):
    def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
        return super().client_update(client.gnn, message, batch, seed)


class Insists(Sound):
    def server_update(self, server: Any, message: fs.Message, client_ids: Sequence[int]) -> Any:
        assert len(client_ids) == 1, "one client only"


@pytest.mark.parametrize(("failing", "name"), [(Fails, "AttributeError"), (Insists, "AssertionError")])
def test_an_exception_of_the_algorithm_is_told_as_itself(failing: type[Any], name: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{name}: .* \(test_testing\.py, line \d+\)") as caught:
        fs.testing.check_algorithm(failing, backbone="gcn")
    assert type(caught.value.__cause__).__name__ == name
    assert "the rule is" not in str(caught.value)


@pytest.mark.parametrize("sound", [Sound, Sound(local_epochs=2), "fedavg"])
def test_a_sound_algorithm_passes(sound: Any) -> None:
    fs.testing.check_algorithm(sound, backbone=["gcn", "mlp"])


def test_an_object_is_checked_with_its_settings() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sometimes(fs.FedAvg):
        leak: bool = fs.setting(False, "tell others about it")

        def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
            client, uplink = super().client_update(client, message, batch, seed)
            return client, {k: v.mean(0).expand_as(v) for k, v in uplink.items()} if self.leak else uplink

    fs.testing.check_algorithm(Sometimes, backbone="mlp")
    with pytest.raises(AssertionError, match="no_data_of_others"):
        fs.testing.check_algorithm(replace(Sometimes(), leak=True), backbone="mlp")


@pytest.mark.slow
def test_it_needs_no_pytest() -> None:
    code = "import sys; import fedspray.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_mean_by_what_does_not_travel_is_refused_by_name() -> None:
    said = r"'gnn\.\*' is a mean by 'size'"
    with pytest.raises(fs.InputError, match=f"Weightless: {said}"):
        fs.run(testing.ragged_federation(), Weightless(), rounds=1)
    with pytest.raises(AssertionError, match=f"sums_suffice: {said}"):
        testing.check_algorithm(Weightless, backbone="gcn")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Secretive, "'class_counts' would leave the client"),
        (Unweighed, "'gnn.conv1.weight' is a mean by 'num_train'"),
        (Decides, "`predict` gives shape [29], but logits are [N, C], here [29, 3]"),
    ],
)
def test_nothing_that_breaks_the_contract_leaves_a_client(broken: type[Sound], said: str) -> None:
    """In one process, and between organisations, where a round is played before anything is agreed."""
    federation = testing.ragged_federation()
    with pytest.raises(fs.InputError) as caught:
        fs.run(federation, broken(), rounds=1)
    assert str(caught.value).startswith(f"{broken.__name__}: {said}")
    with pytest.raises(fs.InputError, match=f"{broken.__name__}: "):
        MessageSchema.of(broken(), federation.task, torch.float32)


def test_what_differs_is_named_with_how_far() -> None:
    with pytest.raises(AssertionError, match=r"round 1, .*most in 'num_train', by 2\.0e\+00"):
        testing.check_algorithm(ByPlace, backbone="gcn")


def test_a_penalty_on_weights_takes_no_steps_of_rounding() -> None:
    """A hand-made distance from the start, with `ops.gap`, keeps the rule with GAT, whose gradients are partly 0."""

    class Held(Sound):
        def client_update(self, client: Any, message: fs.Message, batch: fs.GraphBatch, seed: int) -> Any:
            start = fs.part_of(message, "gnn")
            state = fs.AdamState.zeros(start, batch.num_clients)

            def loss(out: fs.Outputs) -> Tensor:
                gaps = [fs.ops.gap(out.params[name], start[name]).square().flatten(1).sum(1) for name in start]
                return fs.supervised_loss(out.logits, batch) + 0.005 * torch.stack(gaps).sum(0)

            gnn, _ = self.fit(start, state, batch, seed, loss)
            return client, {**fs.prefixed("gnn", gnn), "num_train": batch.num_train}

    testing.stacked_as_alone(Held(backbone=fs.GAT(hidden=8, dropout=0.2)))
