"""Damaged files of a run are refused or repaired, never believed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import ragged_federation

import fedspray
from fedspray import files
from fedspray.data.federation import Federation
from fedspray.errors import InputError
from fedspray.runs import run as module
from fedspray.runs import store
from fedspray.runs.models import PersonalModel
from fedspray.runs.nodes import NodeTable
from fedspray.runs.result import RunResult


def content_of(folder: Path) -> Any:
    """All that a run folder says."""
    result = RunResult.load(folder)
    models = {name: model.digest() for name, model in result.models.items()}
    nodes = NodeTable.load(folder / "seed-0" / "nodes.json").to_json()
    records = [seed.records for seed in result.seeds]
    return result.summary(), models, nodes, records, files.read_json(folder / store.FEDERATION), result.header


def flip(path: Path, bit: int) -> None:
    """Changes one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fedspray.run(ragged_federation(), algorithm="fedspray", rounds=2, out=folder, hidden=4, proxy_dim=4)
    return folder


def flips_that_are_believed(
    finished: Path, scratch: Path, count: int, read: Callable[[Path], Any] = content_of
) -> list[str]:
    expected = read(finished)
    draw = np.random.default_rng(0)
    kept = [path.relative_to(finished) for path in sorted(finished.rglob("*")) if path.is_file()]
    kept = [path for path in kept if "tfevents" not in path.name and path.name != files.LOCK]
    believed = []
    for number in range(count):
        folder = scratch / str(number)
        shutil.copytree(finished, folder)
        path = kept[number % len(kept)]
        bit = int(draw.integers(8 * (folder / path).stat().st_size))
        flip(folder / path, bit)
        try:
            if read(folder) != expected:
                believed.append(f"{path}, bit {bit}")
        except InputError:
            pass
        shutil.rmtree(folder)
    return believed


def test_flipped_bits_of_a_finished_run_are_refused(finished: Path, tmp_path: Path) -> None:
    assert flips_that_are_believed(finished, tmp_path, 40) == []


def test_flipped_bits_of_a_federation_are_refused(tmp_path: Path) -> None:
    ragged_federation().save(tmp_path / "saved")

    def read(folder: Path) -> Any:
        saved = Federation.load(folder)
        lost = [client.edges_lost for client in saved.clients]
        return saved.name, saved.fingerprint(), saved.split_fingerprint(), dict(saved.settings), lost

    assert flips_that_are_believed(tmp_path / "saved", tmp_path / "flipped", 40, read) == []


@pytest.mark.nightly
def test_500_flipped_bits_are_refused(finished: Path, tmp_path: Path) -> None:
    assert flips_that_are_believed(finished, tmp_path, 500) == []


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    """A run that was interrupted in round 4, with checkpoints of rounds 2 and 3."""
    federation = ragged_federation()
    fedspray.run(federation, rounds=5, out=tmp_path / "straight", algorithm="fedavg", hidden=4)
    settings, _ = module.load_settings(tmp_path / "straight")
    folder = module.begin(tmp_path / "broken", federation, settings, None)

    def interrupt(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        module.carry_out(federation, settings, folder, checkpoint_every=1, on_record=interrupt)
    return folder


def go_on(folder: Path) -> list[Any]:
    settings, _ = module.load_settings(folder)
    result = module.carry_out(ragged_federation(), settings, folder)
    return [(seed.metrics["models"], seed.metrics["bytes_up"], seed.metrics["overall"]) for seed in result.seeds]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(broken_off: Path) -> None:
    checkpoint = broken_off / "seed-0" / store.CHECKPOINT
    flip(checkpoint, 8 * checkpoint.stat().st_size - 20)
    with pytest.warns(UserWarning, match="using the checkpoint"):
        ended = go_on(broken_off)
    assert ended == go_on(broken_off.with_name("straight"))
    assert not list((broken_off / "seed-0").glob("checkpoint*"))


def test_two_damaged_checkpoints_are_refused(broken_off: Path) -> None:
    for name in (store.CHECKPOINT, store.OLDER_CHECKPOINT):
        (broken_off / "seed-0" / name).write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="before it"), pytest.raises(InputError, match=r"remove .*seed-0"):
        go_on(broken_off)


def test_a_checkpoint_without_its_records_is_refused(broken_off: Path) -> None:
    (broken_off / "seed-0" / store.RECORDS).unlink()
    with pytest.raises(InputError, match=r"has 0 of \d lines: remove"):
        go_on(broken_off)
    shutil.rmtree(broken_off / "seed-0")  # as the sentence says
    assert go_on(broken_off) == go_on(broken_off.with_name("straight"))


def test_a_run_that_another_process_writes_is_refused(broken_off: Path) -> None:
    with files.only_writer(broken_off), pytest.raises(InputError, match="in use"):
        go_on(broken_off)


def test_what_a_kill_left_out_is_written_by_resuming(broken_off: Path) -> None:
    kept = files.read_json(broken_off / store.FEDERATION)
    (broken_off / store.FEDERATION).unlink()
    go_on(broken_off)
    assert files.read_json(broken_off / store.FEDERATION) == kept


def test_a_folder_with_leftovers_of_a_kill_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".settings.json.tmp").write_text("{")
    (tmp_path / "run" / files.LOCK).touch()
    fedspray.run(ragged_federation(), rounds=1, out=tmp_path / "run", algorithm="local", hidden=4)


@pytest.mark.parametrize("how", ["nan", "shape", "missing", "more"])
def test_a_model_whose_weights_are_wrong_is_refused(how: str, finished: Path, tmp_path: Path) -> None:
    path = finished / "seed-0" / "models" / "client_00" / "model.safetensors"
    tensors, meta = store.read_tensors(path)
    name = "client.gnn.conv1.weight"
    if how == "nan":
        tensors[name][0, 0, 0] = torch.nan
    elif how == "shape":
        tensors["client.gnn.conv1.bias"] = tensors["client.gnn.conv1.bias"][:, :-1]
    elif how == "missing":
        del tensors[name]
    else:
        tensors["client.gnn.conv9.weight"] = tensors[name]
    store.write_tensors(tmp_path / "model.safetensors", tensors, meta)  # sealed, so that only the model can tell
    with pytest.raises(InputError, match=r"is damaged: client\.gnn\.conv"):
        PersonalModel.load(tmp_path / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_told_to_end_saves_itself(ending: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from fedspray.cli.main import entry_point; entry_point()", "run"]
    flags = ["--nodes", "200", "--rounds", "400", "--algorithm", "local", "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        [*command, *flags],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whatever this process ignores
    ) as process:
        records = tmp_path / "run" / "seed-0" / store.RECORDS
        deadline = time.monotonic() + 60
        while not (records.exists() and records.read_text().count("\n") > 2):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(ending)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in told
    _, meta = store.read_checkpoint(tmp_path / "run" / "seed-0")
    assert meta is not None
    assert meta["progress"]["round_index"] >= 2
