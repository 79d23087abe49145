"""Newcomers: a personal model from what the clients of a finished run share."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedspray as fs
from fedspray import Federation
from fedspray.cli.main import run_command
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client
from fedspray.engine import clients
from fedspray.errors import InputError
from fedspray.nn import tree
from fedspray.runs import store
from fedspray.runs.adapt import SharedPart, adapt, task_of
from fedspray.runs.run import load_settings
from fedspray.seeds import stream_key


@pytest.fixture(scope="module")
def banks() -> Federation:
    return fs.build_federation("banks", clients=4, nodes=800).with_split(0)


def without(federation: Federation, k: int) -> tuple[Federation, Client]:
    rest = tuple(client for place, client in enumerate(federation.clients) if place != k)
    return replace(federation, clients=rest), federation.clients[k]


def shared_of(federation: Federation, algorithm: str, rounds: int = 5) -> SharedPart | None:
    result = fs.run(federation, algorithm, rounds=rounds, keep_split=True, hidden=8, progress=False)
    return SharedPart.of(result.models)


def test_fedavgs_newcomer_goes_on_from_the_global_model(banks: Federation) -> None:
    others, newcomer = without(banks, 3)
    shared = shared_of(others, "fedavg")
    assert shared is not None
    batch = GraphBatch.from_clients([newcomer], [0])
    algorithm = shared.algorithm
    state = clients.init_state(algorithm, shared.task, batch, 0)
    message = shared.message
    for round_index in (1, 2):
        state, sent = algorithm.client_update(state, message, batch, stream_key(0, "adapt", round_index))
        message = tree.prefixed("gnn", tree.part_of(sent, "gnn"))
    with_all_rounds = replace(
        newcomer, split=replace(newcomer.split, val=np.zeros(200, bool))
    )  # the last round is kept
    model = adapt(shared, with_all_rounds, rounds=2)
    assert model.snapshot.round_index == 2
    assert all(torch.equal(model.snapshot.message[name], message[name]) for name in message)


@pytest.mark.slow
def test_fedspray2s_teacher_stays_and_helps(banks: Federation) -> None:
    others, newcomer = without(banks, 3)
    shared = shared_of(others, "fedspray2", rounds=40)
    assert shared is not None
    model = adapt(shared, newcomer)
    assert all(torch.equal(model.snapshot.message[name], shared.message[name]) for name in shared.message)
    alone = fs.run(
        replace(banks, clients=(newcomer,)), "local", rounds=100, keep_split=True, hidden=8, progress=False
    ).models[newcomer.name]
    test, labels = newcomer.split.test, newcomer.graph.labels
    minority = test & (labels != newcomer.majority_class)
    right = [model.predict(newcomer)[minority].argmax(1) == labels[minority] for model in (model, alone)]
    assert right[0].mean() > right[1].mean() + 0.1


def test_the_round_with_the_smallest_validation_loss_is_kept(banks: Federation) -> None:
    others, newcomer = without(banks, 0)
    shared = shared_of(others, "fedavg")
    assert shared is not None
    losses = []
    for rounds in range(1, 5):
        last = adapt(shared, replace(newcomer, split=replace(newcomer.split, val=np.zeros(200, bool))), rounds=rounds)
        scores = last.predict(newcomer.graph, newcomer.split.train)[newcomer.split.val]
        losses.append(-np.log(scores[np.arange(len(scores)), newcomer.graph.labels[newcomer.split.val]]).mean())
    assert adapt(shared, newcomer, rounds=4).snapshot.round_index == 1 + int(np.argmin(losses))


@pytest.mark.parametrize("algorithm", ["local", "fed-pub", "fedgta"])
def test_nothing_is_shared_where_the_server_tells_clients_apart(algorithm: str, banks: Federation) -> None:
    assert shared_of(banks, algorithm) is None


@pytest.mark.parametrize(
    "algorithm", ["fedspray2", "fedspray2-shared", "fedspray", "fedavg", "ditto", "fedper", "scaffold"]
)
def test_a_file_gives_the_same_model(algorithm: str, banks: Federation, tmp_path: Path) -> None:
    others, newcomer = without(banks, 2)
    result = fs.run(others, algorithm, rounds=3, keep_split=True, progress=False, out=tmp_path / "run")
    shared = SharedPart.of(result.models)
    assert shared is not None
    loaded = SharedPart.load(tmp_path / "run" / "seed-0")
    models = [adapt(part, newcomer, rounds=2) for part in (shared, loaded)]
    assert models[0].digest() == models[1].digest()
    models[0].save(tmp_path / "model")
    np.testing.assert_array_equal(
        fs.PersonalModel.load(tmp_path / "model").predict(newcomer), models[1].predict(newcomer)
    )


def test_the_state_that_a_deployed_server_keeps_will_do(banks: Federation, tmp_path: Path) -> None:
    """It has the server's state instead of its message, and the settings are in the run's folder."""
    others, newcomer = without(banks, 1)
    servers = {}

    class Keep(fs.Callback):
        def on_round(self, seed, progress):  # type: ignore[no-untyped-def]
            servers[progress.round_index] = progress.server

    run = fs.run(
        others, "fedspray2", rounds=3, keep_split=True, progress=False, out=tmp_path / "run", callbacks=[Keep()]
    )
    shared = SharedPart.of(run.models)
    assert shared is not None
    (tmp_path / "there" / "seed-0").mkdir(parents=True)
    settings, _ = load_settings(tmp_path / "run")
    (tmp_path / "there" / "settings.json").write_text(json.dumps({"run": asdict(settings)}))
    file = tmp_path / "there" / "seed-0" / "shared.safetensors"
    best = run.seeds[0].metrics["best_round"]
    store.write_tensors(file, tree.flatten(servers[best], "server"), {"round": best})
    found = SharedPart.load(file, task_of(newcomer))
    assert found.round_index == best
    assert all(torch.equal(found.message[name], shared.message[name]) for name in shared.message)


def test_what_does_not_fit_is_refused(banks: Federation, tmp_path: Path) -> None:
    others, newcomer = without(banks, 0)
    shared = shared_of(others, "fedavg", rounds=1)
    assert shared is not None
    other = fs.build_federation("banks", nodes=400, features=5).clients[0]
    nobody = replace(newcomer, split=replace(newcomer.split, train=np.zeros(200, bool)))
    for client, rounds, sentence in (
        (other, 1, "the data have 5 features and 2 classes, but the run had 32 and 2"),
        (nobody, 1, "client bank_00 has no training node, but at least one is needed"),
        (newcomer, 0, "rounds is 0, but must be at least 1"),
    ):
        with pytest.raises(InputError) as refusal:
            adapt(shared, client, rounds=rounds)
        assert str(refusal.value) == sentence
    with pytest.raises(InputError, match="is missing"):
        SharedPart.load(tmp_path)
    store.write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(InputError, match="run's clients share"):
        SharedPart.load(tmp_path / "x.safetensors")


def test_the_command(banks: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others, newcomer = without(banks, 3)
    fs.run(others, "fedspray2", rounds=3, keep_split=True, progress=False, out=tmp_path / "run")
    newcomer.graph.to_npz(tmp_path / "east.npz")
    newcomer.save(tmp_path / "east")
    command = ["adapt", "--shared", str(tmp_path / "run/seed-0/shared.safetensors"), "--rounds", "3", "--json"]
    for data in ("east", "east.npz"):
        assert run_command([*command, "--data", str(tmp_path / data), "--out", str(tmp_path / f"{data}-model")]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["client"], told["algorithm"]) == ("east", "fedspray2")
        model = fs.PersonalModel.load(tmp_path / f"{data}-model")
        assert model.predictions(newcomer).accuracies == told["accuracies"]
        assert {part: row["nodes"] for part, row in told["accuracies"].items()} == {"train": 80, "val": 60, "test": 60}
    assert run_command([*command, "--data", str(tmp_path / "east"), "--out", str(tmp_path / "run")]) == 2
    assert run_command([*command, "--data", str(tmp_path / "no.npz"), "--out", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def test_a_newcomer_that_is_scaled_by_its_own_rows_is_refused(tmp_path: Path) -> None:
    schema = fs.Schema.from_toml(
        'format = 1\n[nodes]\nid = "id"\nlabel = "y"\n[[features]]\ncolumns = "v"\n'
        'kind = "numeric"\nscale = "standard"\n'
    )

    def client(name: str, factor: int, schema: fs.Schema) -> Client:
        rows = (f"{i},{factor * (i % 5)},{'yes' if i % 2 else 'no'}\n" for i in range(20))
        (tmp_path / f"{name}.csv").write_text("id,v,y\n" + "".join(rows))
        return fs.import_tables(schema, nodes=[str(tmp_path / f"{name}.csv")]).client(name)

    north = client("north", 1, schema)
    result = fs.run(Federation("one", (north,)), "fedavg", rounds=1, keep_split=True, hidden=4, progress=False)
    shared = SharedPart.of(result.models)
    assert shared is not None
    assert north.graph.schema is not None
    adapt(shared, client("east", 1000, fs.Schema.from_toml(north.graph.schema)), rounds=1)
    with pytest.raises(InputError, match=r"'v': mean is 2.0 in the first and 2000.0 in .*1 more difference"):
        adapt(shared, client("east", 1000, schema), rounds=1)
