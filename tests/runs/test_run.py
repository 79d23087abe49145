from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full import no_file_beyond
from toys import awkward_federation, ragged_federation

import fedspray
from fedspray import PersonalModel, files
from fedspray.data.federation import Federation
from fedspray.errors import DiskFull, InputError
from fedspray.files import read_json
from fedspray.runs import run as module
from fedspray.runs import store


def stable(summary: dict[str, Any]) -> dict[str, Any]:
    """A result without what depends on the clock."""
    text = json.loads(json.dumps(summary))
    for row in text["seeds"]:
        row.pop("seconds")
        row.pop("cpu_seconds")
    return text  # type: ignore[no-any-return]


def test_the_result_says_everything(tmp_path: Path) -> None:
    result = fedspray.run(ragged_federation(), rounds=4, seeds=(0, 3), out=tmp_path / "run", hidden=8)
    summary = result.summary()
    assert (summary["dataset"], summary["algorithm"], summary["backbone"]) == ("toy", "fedspray2", "gcn")
    assert summary["settings"]["hidden"] == 8
    assert [row["seed"] for row in summary["seeds"]] == [0, 3]
    accuracies = [row["overall"] for row in summary["seeds"]]
    assert summary["overall"] == {
        "mean": pytest.approx(np.mean(accuracies)),
        "std": pytest.approx(np.std(accuracies, ddof=1)),
    }
    assert read_json(tmp_path / "run" / "result.json") == json.loads(json.dumps(summary))
    frame = result.to_frame()
    assert len(frame) == 8
    assert set(frame["seed"]) == {0, 3}
    assert set(result.models) == {"client_00", "client_01", "client_02"}
    files = {file.name for file in (tmp_path / "run" / "seed-0").iterdir()}
    assert {"rounds.jsonl", "models", "result.json"} <= files
    assert any(name.startswith("events.out.tfevents") for name in files)
    assert "checkpoint.safetensors" not in files  # done: the models say it all


def test_seeds_draw_their_own_splits_and_are_repeatable() -> None:
    first = fedspray.run(ragged_federation(), rounds=3, seeds=(1,)).summary()
    again = fedspray.run(ragged_federation(seed=9), rounds=3, seeds=(0, 1)).summary()
    assert first["seeds"][0]["models"] == again["seeds"][1]["models"]
    assert again["seeds"][0]["models"] != again["seeds"][1]["models"]


def test_a_saved_model_predicts_as_it_was_evaluated(tmp_path: Path) -> None:
    federation = ragged_federation()
    result = fedspray.run(federation, rounds=5, out=tmp_path / "run", algorithm="fedspray-plus")
    for client in federation.with_split(0).clients:
        model = PersonalModel.load(tmp_path / "run" / "seed-0" / "models" / f"{client.name}.safetensors")
        probabilities = model.predict(client.graph)
        assert np.allclose(probabilities.sum(axis=1), 1)
        right = probabilities.argmax(axis=1) == client.graph.labels
        expected = result.summary()["seeds"][0]["clients"][client.name]["overall"]
        assert right[client.split.test].mean() == pytest.approx(expected)
        assert model.digest() == result.models[client.name].digest()


def test_a_model_refuses_features_and_classes_in_another_order(tmp_path: Path) -> None:
    graphs = {
        client.name: replace(client.graph, feature_names=tuple("abcde"), class_names=("x", "y", "z"))
        for client in ragged_federation().clients
    }
    model = fedspray.run(Federation.from_graphs(graphs), rounds=1, hidden=8, algorithm="local").models["client_00"]
    model.save(tmp_path / "model.safetensors")
    for known in (model, PersonalModel.load(tmp_path / "model.safetensors")):
        known.predict(graphs["client_00"])
        known.predict(replace(graphs["client_00"], feature_names=None, class_names=None))
        with pytest.raises(InputError) as refusal:
            known.predict(replace(graphs["client_00"], feature_names=tuple("abdce")))
        assert str(refusal.value) == "feature 2 of the graph is 'd', but this model was trained on 'c' there"
        with pytest.raises(InputError) as refusal:
            known.predict(replace(graphs["client_00"], class_names=("x", "z", "y")))
        assert str(refusal.value) == "class 1 of the graph is 'z', but this model was trained on 'y' there"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": 0.5}, "seeds is 0.5"),
        ({"seeds": [0, 0]}, "may be given"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [0.5]}, "seeds contain 0.5"),
        ({"threads": 0}, "threads is 0"),
        ({"federation": "banks"}, "federation is 'banks'"),
    ],
)
def test_mistakes_in_python_get_one_sentence(change: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"federation": ragged_federation(), **change}
    with pytest.raises(InputError) as refusal:
        fedspray.run(given.pop("federation"), rounds=1, **given)
    assert sentence in str(refusal.value)


def test_seeds_may_be_numpys() -> None:
    result = fedspray.run(ragged_federation(), algorithm="local", rounds=1, hidden=4, seeds=list(np.arange(2)))
    assert [seed["seed"] for seed in result.summary()["seeds"]] == [0, 1]


def test_a_model_file_without_names_of_features_is_read(tmp_path: Path) -> None:
    federation = ragged_federation()
    fedspray.run(federation, rounds=1, hidden=8, algorithm="local").models["client_00"].save(
        tmp_path / "new.safetensors"
    )
    tensors, meta = store.read_tensors(tmp_path / "new.safetensors")
    del meta["feature_names"]
    store.write_tensors(tmp_path / "old", tensors, meta)
    old, new = (PersonalModel.load(tmp_path / name) for name in ("old", "new.safetensors"))
    graph = federation.clients[0].graph
    assert np.array_equal(old.predict(graph), new.predict(graph))


@pytest.mark.parametrize("algorithm", ["fedspray", "fedspray-plus", "fedavg", "local"])
def test_tensorboard_reads_the_curves(tmp_path: Path, algorithm: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = fedspray.run(ragged_federation(), rounds=3, out=tmp_path / "run", algorithm=algorithm)
    events = EventAccumulator(str(tmp_path / "run" / "seed-0"))
    events.Reload()
    curve = events.Scalars("val/loss")
    assert [event.step for event in curve] == [1, 2, 3]
    expected = [record["val"]["loss"] for record in result.seeds[0].records]
    assert [event.value for event in curve] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "stop"), [*(("fedspray", stop) for stop in (1, 2, 3, 5)), ("fedspray-plus", 3), ("local", 3)]
)
def test_resuming_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, stop: int
) -> None:
    federation = ragged_federation(sparse=True)
    straight = fedspray.run(federation, algorithm=algorithm, rounds=6, out=tmp_path / "straight").summary()
    settings, _ = module.load_settings(tmp_path / "straight")
    folder = module.begin(tmp_path / "broken", federation, settings, None)
    seen: list[int] = []

    def crash(_seed: int, record: dict[str, Any]) -> None:
        seen.append(record["round"])
        if record["round"] == stop:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        module.carry_out(federation, settings, folder, checkpoint_every=2, on_record=crash)
    resumed = module.carry_out(federation, settings, folder, checkpoint_every=2).summary()
    assert stable(resumed) == stable(straight)
    records = (folder / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in records] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_without_validation_counts_is_resumed(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    federation = ragged_federation()
    straight = fedspray.run(federation, rounds=5, out=tmp_path / "straight").summary()
    settings, _ = module.load_settings(tmp_path / "straight")
    folder = module.begin(tmp_path / "broken", federation, settings, None)

    def stop(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.carry_out(federation, settings, folder, on_record=stop)
    tensors, meta = store.read_tensors(folder / "seed-0" / store.CHECKPOINT)
    assert set(meta["progress"].pop("validation")) == {"0", "1", "2"}
    store.write_tensors(folder / "seed-0" / store.CHECKPOINT, tensors, meta)
    assert stable(module.carry_out(federation, settings, folder).summary()) == stable(straight)


def test_an_interrupt_saves_the_last_whole_round(tmp_path: Path) -> None:
    federation = ragged_federation()
    straight = fedspray.run(federation, rounds=5, out=tmp_path / "straight").summary()
    settings, _ = module.load_settings(tmp_path / "straight")
    folder = module.begin(tmp_path / "broken", federation, settings, None)

    def interrupt(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.carry_out(federation, settings, folder, on_record=interrupt)
    _, meta = store.read_tensors(folder / "seed-0" / "checkpoint.safetensors")
    assert meta["progress"]["round_index"] == 3
    assert stable(module.carry_out(federation, settings, folder).summary()) == stable(straight)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
@pytest.mark.parametrize("every", [1, 2])
def test_a_full_disk_is_told_and_the_run_goes_on_to_the_same_bits(tmp_path: Path, every: int) -> None:
    federation = ragged_federation()
    straight = fedspray.run(federation, rounds=5, out=tmp_path / "straight").summary()
    settings, _ = module.load_settings(tmp_path / "straight")
    folder = module.begin(tmp_path / "broken", federation, settings, None)
    with ExitStack() as until_there_is_room:

        def fill(_seed: int, record: dict[str, Any]) -> None:
            if record["round"] == 3:
                until_there_is_room.enter_context(no_file_beyond(0))

        with pytest.raises(DiskFull, match=f"the disk is full: {folder / 'seed-0'}.* --resume"):
            module.carry_out(federation, settings, folder, checkpoint_every=every, on_record=fill)
    _, meta = store.read_tensors(folder / "seed-0" / store.CHECKPOINT)
    assert meta["progress"]["round_index"] == {1: 3, 2: 2}[every]
    assert stable(module.carry_out(federation, settings, folder).summary()) == stable(straight)


def test_a_finished_run_is_read_not_repeated(tmp_path: Path) -> None:
    federation = ragged_federation()
    first = fedspray.run(federation, rounds=2, out=tmp_path / "run").summary()
    settings, _ = module.load_settings(tmp_path / "run")
    seen: list[Any] = []
    again = module.carry_out(federation, settings, tmp_path / "run", on_record=lambda *args: seen.append(args))
    assert again.summary() == first
    assert seen == []
    assert len(again.to_frame()) == 2


def test_other_data_are_refused(tmp_path: Path) -> None:
    fedspray.run(ragged_federation(), rounds=2, out=tmp_path / "run")
    settings, _ = module.load_settings(tmp_path / "run")
    with pytest.raises(InputError, match="started on other"):
        module.carry_out(ragged_federation(changed=1), settings, tmp_path / "run")


def test_other_splits_are_refused_where_they_are_kept(tmp_path: Path) -> None:
    fedspray.run(ragged_federation(seed=5), rounds=2, keep_split=True, out=tmp_path / "run")
    settings, content = module.load_settings(tmp_path / "run")
    with pytest.raises(InputError, match=r"had fingerprint \w{12}…"):
        module.carry_out(ragged_federation(seed=6), settings, tmp_path / "run")
    module.carry_out(ragged_federation(seed=5), settings, tmp_path / "run")
    files.write_json(tmp_path / "run" / "settings.json", {k: v for k, v in content.items() if k != "splits"})
    module.carry_out(ragged_federation(seed=6), settings, tmp_path / "run")  # as begun before splits were noted


def test_splits_that_the_seed_draws_are_not_compared(tmp_path: Path) -> None:
    fedspray.run(ragged_federation(seed=5), rounds=2, out=tmp_path / "run")
    settings, _ = module.load_settings(tmp_path / "run")
    module.carry_out(ragged_federation(seed=6), settings, tmp_path / "run")


def test_different_backbones_for_different_clients(tmp_path: Path) -> None:
    federation = ragged_federation()
    result = fedspray.run(federation, rounds=3, backbone_of={"client_02": "sage"}, out=tmp_path / "run")
    model = PersonalModel.load(tmp_path / "run" / "seed-0" / "models" / "client_02.safetensors")
    assert type(model.algorithm.backbone).__name__ == "SAGE"
    assert model.digest() == result.models["client_02"].digest()


@pytest.mark.parametrize("client", ["client_00", "client_01"])
def test_a_client_whose_backbone_does_not_fit_is_refused_by_name(client: str) -> None:
    with pytest.raises(InputError) as refusal:
        fedspray.run(ragged_federation(), algorithm="fedproto", rounds=2, backbone_of={client: "sgc"})
    assert str(refusal.value) == (
        f"client {client}: fedproto: the federation's prototypes have 64 coordinates, but this client's "
        "representations have 3: give all backbones the same width of the last hidden layer"
    )


def test_settings_of_one_backbone_do_not_follow_a_client_with_another(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedspray.run(ragged_federation(), rounds=2, backbone="gat", heads=4, backbone_of={"client_02": "gcn"}, out=out)
    model = PersonalModel.load(out / "seed-0" / "models" / "client_02.safetensors")
    assert type(model.algorithm.backbone).__name__ == "GCN"


def test_a_split_of_ones_own_can_be_kept() -> None:
    federation = ragged_federation(seed=5)
    kept = fedspray.run(federation, rounds=2, seeds=(0,), keep_split=True)
    other = fedspray.run(federation, rounds=2, seeds=(0,))
    same = fedspray.run(ragged_federation(seed=0), rounds=2, seeds=(0,), keep_split=True)
    assert kept.models["client_00"].digest() != other.models["client_00"].digest()
    assert same.models["client_00"].digest() == other.models["client_00"].digest()


def test_awkward_clients_give_a_result_without_nan(tmp_path: Path) -> None:
    summary = fedspray.run(awkward_federation(), rounds=3, out=tmp_path / "run").summary()
    assert summary["seeds"][0]["clients"]["unlabelled"]["overall"] is None
    json.dumps(summary, allow_nan=False)


def test_bad_settings_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown setting"):
        fedspray.run(ragged_federation(), out=tmp_path / "run", nonsense=1)
    assert not (tmp_path / "run").exists()
