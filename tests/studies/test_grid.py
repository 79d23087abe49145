from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray.api import run
from fedspray.errors import InputError, OtherVersionError
from fedspray.experiment import Data, RunSettings
from fedspray.files import read_json
from fedspray.runs import store
from fedspray.runs.run import begin, carry_out
from fedspray.studies import grid as grids
from fedspray.studies.backends import Workers
from fedspray.studies.cells import Cell
from fedspray.studies.grid import Grid
from fedspray.studies.results import CellResult
from fedspray.studies.worker import Job, work

SOURCE = Data.of(dataset="banks", nodes=200).located()
STORED = Path(__file__).parent / "stored"


def cell(algorithm: str = "fedspray", seed: int = 0, *, validation_only: bool = False, **values: Any) -> Cell:
    settings = RunSettings(algorithm=algorithm, seeds=(seed,), values={"rounds": 3, **values})
    return Cell(dataset="banks", method=algorithm, data=SOURCE, run=settings, validation_only=validation_only)


def test_a_cell_is_its_run(tmp_path: Path) -> None:
    (outcome,) = Grid([cell()], tmp_path).run()
    assert outcome.result is not None
    result = run(cell().federation(), algorithm="fedspray", rounds=3)
    timeless = {k: v for k, v in outcome.result.metrics.items() if "seconds" not in k}
    assert timeless == {k: v for k, v in result.seeds[0].metrics.items() if "seconds" not in k}
    curve = [record["test"]["minority"] for record in result.seeds[0].records]
    assert outcome.result.content["curves"]["test"]["minority"] == pytest.approx(curve, rel=1e-4)


def test_the_nodes_of_a_cell_give_its_metrics(tmp_path: Path) -> None:
    (outcome,) = Grid([cell()], tmp_path).run()
    assert outcome.result is not None
    nodes, metrics = outcome.result.nodes, outcome.result.metrics
    assert nodes.correct.sum() / nodes.test.sum() == pytest.approx(metrics["overall"])
    minority = nodes.minority
    assert nodes.correct[minority].sum() / nodes.test[minority].sum() == pytest.approx(metrics["minority"])
    for k, name in enumerate(nodes.clients):
        assert nodes.test[nodes.client == k].sum() == metrics["clients"][name]["nodes"]
    for c, recall in enumerate(metrics["recall"]):
        own = nodes.label == c
        assert nodes.correct[own].sum() / nodes.test[own].sum() == pytest.approx(recall)
    for b, step in enumerate(metrics["by_homophily"].values()):
        own = nodes.bucket == b
        assert nodes.test[own].sum() == step["nodes"]
        if step["nodes"]:
            assert nodes.correct[own].sum() / nodes.test[own].sum() == pytest.approx(step["accuracy"])


def test_methods_and_backbones_see_the_same_nodes(tmp_path: Path) -> None:
    outcomes = Grid([cell("fedspray"), cell("local"), cell("local", seed=1)], tmp_path).run()
    first, second, other = (o.result.nodes for o in outcomes if o.result is not None)
    assert np.array_equal(first.test, second.test)
    assert np.array_equal(first.counts, other.counts)
    assert not np.array_equal(first.test, other.test)


def test_finished_cells_are_found_and_never_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell("local"), cell("fedavg")]
    first = Grid(cells[:1], tmp_path).run()
    calls: list[str] = []

    def counted(job: Job) -> tuple[str, str | None]:
        calls.append(job.cell.method)
        return work(job)

    monkeypatch.setattr(grids, "work", counted)
    grid = Grid([*cells, cells[0]], tmp_path)
    assert grid.num_stored == 1
    assert grid.total == 2
    outcomes = grid.run()
    assert calls == ["fedavg"]
    assert first[0].result is not None
    assert outcomes[0].result is not None
    assert outcomes[0].result.content == first[0].result.content
    assert [file.name for file in (tmp_path / "runs").iterdir()] == []


def test_a_killed_process_leaves_no_lock_at_a_finished_cell_for_ever(tmp_path: Path) -> None:
    (outcome,) = Grid([cell("local")], tmp_path).run()
    lock = tmp_path / "runs" / f"{outcome.path.stem}.lock"
    assert not lock.exists()
    lock.touch()  # killed after the result was written
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Grid([cell("local")], tmp_path)
        assert lock.exists()  # somebody is about to remove it
    Grid([cell("local")], tmp_path)
    assert not lock.exists()


def test_an_interrupt_that_a_callback_swallows_stops_the_grid(tmp_path: Path) -> None:
    def swallow(outcome: Cell) -> None:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)

    grid = Grid([cell("local"), cell("fedavg")], tmp_path)
    with pytest.raises(KeyboardInterrupt):
        grid.run(swallow)
    assert grid.num_finished == 1


def test_two_workers_give_what_one_gives(tmp_path: Path) -> None:
    cells = [cell(algorithm, seed) for algorithm in ("local", "fedspray") for seed in (0, 1)]
    alone = Grid(cells, tmp_path / "one").run()
    together = Grid(cells, tmp_path / "two", Workers(jobs=2)).run()
    for a, b in zip(alone, together, strict=True):
        assert a.result is not None
        assert b.result is not None
        assert a.result.metrics["models"] == b.result.metrics["models"]


def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path) -> None:
    told: list[Cell] = []
    cells = [cell("local"), cell("fedavg", lr=1e30), cell("fedspray")]
    outcomes = Grid(cells, tmp_path).run(told.append)
    assert [o.failure is None for o in outcomes] == [True, False, True]
    assert "min_clients" in str(outcomes[1].failure)
    assert len(told) == 3


@pytest.mark.slow
def test_a_worker_that_dies_takes_only_its_own_cell_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "work", _deadly_work)
    outcomes = Grid([cell("local"), cell("fedavg"), cell("fedspray")], tmp_path, Workers(jobs=2)).run()
    assert outcomes[1].failure is not None
    assert outcomes[1].failure.startswith("its worker process died, twice (")
    assert [outcomes[0].failure, outcomes[2].failure] == [None, None]


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    (outcome,) = Grid([cell("local")], tmp_path).run()
    content = read_json(outcome.path)
    outcome.path.write_text(outcome.path.read_text().replace('"overall": 0', '"overall": 1', 1))
    with pytest.raises(InputError, match="is damaged"):
        Grid([cell("local")], tmp_path)
    CellResult({**content, "key": "0"}).save(outcome.path)
    with pytest.raises(InputError, match="holds the key"):
        Grid([cell("local")], tmp_path)
    for text in ("{", "[]"):
        outcome.path.write_text(text)
        with pytest.raises(InputError, match="remove the file"):
            Grid([cell("local")], tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        *("metrics", "nodes", "test", "overall", "clients", "curves", "short", "minority", "minority_nodes"),
        *("train", "recall", "shape"),
    ],
)
def test_a_file_with_a_damaged_part_is_refused(part: str, tmp_path: Path) -> None:
    (outcome,) = Grid([cell("local")], tmp_path).run()
    content = read_json(outcome.path)
    if part == "test":
        content["nodes"]["test"] = "AA=="
    elif part == "short":
        content["curves"]["val"]["loss"].pop()
    elif part == "train":
        del content["curves"]["train"]["overall"]
    elif part == "shape":
        content["nodes"]["counts"] = [counts[:-1] for counts in content["nodes"]["counts"]]
    elif part.startswith("minority"):
        del content["metrics"]["clients"]["bank_01"][part]
    elif part in content["metrics"]:
        del content["metrics"][part]
    else:
        del content[part]
    outcome.path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"is damaged.*: remove the file"):
        Grid([cell("local")], tmp_path)


def test_a_damaged_run_folder_is_begun_anew(tmp_path: Path) -> None:
    grid = Grid([cell("local")], tmp_path)
    (job,) = grid._jobs.values()
    job.run_folder.mkdir(parents=True)
    (job.run_folder / "settings.json").write_text("{")
    (outcome,) = grid.run()
    assert outcome.failure is None


def _crash(_seed: int, record: dict[str, Any]) -> None:
    raise RuntimeError("power cut")


def test_a_damaged_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    (whole,) = Grid([cell("local")], tmp_path / "whole").run()
    grid = Grid([cell("local")], tmp_path / "broken")
    (job,) = grid._jobs.values()
    federation = job.cell.federation()
    begin(job.run_folder, federation, job.cell.run, SOURCE.to_json())
    with pytest.raises(RuntimeError, match="power cut"):
        carry_out(federation, job.cell.run, job.run_folder, checkpoint_every=1, on_record=_crash)
    checkpoint = job.run_folder / "seed-0" / store.CHECKPOINT
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    (outcome,) = grid.run()
    assert outcome.result is not None
    assert whole.result is not None
    assert outcome.result.metrics["models"] == whole.result.metrics["models"]


def test_a_checkpoint_of_another_version_is_begun_anew(tmp_path: Path) -> None:
    """The run broke off after a round in which, in another version, clients kept one thing less."""
    (whole,) = Grid([cell("ditto")], tmp_path / "whole").run()
    grid = Grid([cell("ditto")], tmp_path / "broken")
    (job,) = grid._jobs.values()
    federation = job.cell.federation()
    begin(job.run_folder, federation, job.cell.run, job.cell.data.to_json())

    with pytest.raises(RuntimeError, match="power cut"):
        carry_out(federation, job.cell.run, job.run_folder, checkpoint_every=1, on_record=_crash)
    file = job.run_folder / f"seed-{job.cell.seed}" / store.CHECKPOINT
    tensors, meta = store.read_tensors(file)
    lost = next(name for name in tensors if ".state." in name and "personal_optimizer" in name)
    store.write_tensors(file, {name: value for name, value in tensors.items() if name != lost}, meta)
    with pytest.raises(OtherVersionError, match="written by another"):
        carry_out(federation, job.cell.run, job.run_folder)
    (outcome,) = grid.run()
    assert outcome.result is not None
    assert whole.result is not None
    assert outcome.result.metrics["models"] == whole.result.metrics["models"]


def test_the_time_left_is_estimated_from_cells_of_the_same_kind(tmp_path: Path) -> None:
    (outcome,) = Grid([cell("local")], tmp_path).run()
    content = read_json(outcome.path)
    content["metrics"]["seconds"] = 40.0
    CellResult(content).save(outcome.path)
    grid = Grid([cell("local", seed) for seed in range(4)], tmp_path, Workers(jobs=2))
    assert grid.seconds_left() == pytest.approx(3 * 40 / 2)
    assert grid.done() == 1
    longer = Grid([cell("local"), cell("local", rounds=6, local_epochs=10)], tmp_path, Workers(jobs=2))
    assert longer.seconds_left() == pytest.approx(40 * (6 * 10) / (3 * 5))
    data = Data.of(dataset="banks", nodes=300).located()
    other = Cell(dataset="banks", method="local", data=data, run=RunSettings(algorithm="local", seeds=(5,)))
    assert Grid([cell("local"), other], tmp_path).seconds_left() is None


def test_trials_know_nothing_of_test_nodes(tmp_path: Path) -> None:
    (tuned,) = Grid([cell(validation_only=True)], tmp_path).run()
    (full,) = Grid([cell()], tmp_path).run()
    assert tuned.result is not None
    assert full.result is not None
    assert tuned.result.metrics["val"] == full.result.metrics["val"]  # training is the same
    assert set(tuned.result.content["curves"]) == {"train", "val"}
    assert "nodes" not in tuned.result.content
    assert {"overall", "minority", "clients", "auc", "by_homophily"} & set(tuned.result.metrics) == set()


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ({"backend": "slurm"}, "unknown back end 'slurm': choose one of dask, loky, ray"),
        ({"cluster": "tcp://x"}, "the cluster 'tcp://x' needs the back end dask or ray, but it is 'loky'"),
    ],
)
def test_bad_workers_get_one_sentence(workers: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Workers(**workers)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_cluster_package_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, package: str
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"{backend} needs the package {package}, which is missing"):
        Grid([cell()], tmp_path, Workers(backend=backend)).run()


def test_a_stored_cell_gives_the_same_numbers_today(tmp_path: Path) -> None:
    """If this fails, results have changed: raise RESULT_VERSION, and say so (CONTRIBUTING.md)."""
    files = sorted(STORED.glob("*.json"))
    assert files
    for file in files:
        stored = json.loads(file.read_text())
        fresh = cell(stored["algorithm"], stored["seed"])
        (outcome,) = Grid([fresh], tmp_path).run()
        assert outcome.result is not None
        assert outcome.result.content["key"] == stored["key"]
        for part in ("val", "train"):  # other processors round differently
            for name, value in stored["metrics"][part].items():
                assert outcome.result.metrics[part][name] == pytest.approx(value, abs=0.02), name
        assert outcome.result.metrics["overall"] == pytest.approx(stored["metrics"]["overall"], abs=0.02)
        assert outcome.result.nodes.test.tolist() == CellResult(stored).nodes.test.tolist()
        curve = outcome.result.content["curves"]["train"]["loss"]
        assert curve == pytest.approx(stored["curves"]["train"]["loss"], rel=1e-3)


def _deadly_work(job: Job) -> tuple[str, str | None]:
    if job.cell.method == "fedavg":
        job.lock.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return work(job)
