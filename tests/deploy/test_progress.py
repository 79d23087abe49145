from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedspray.deploy.server.progress import OLDER, SHARED, ProgressRecorder, read_progress
from fedspray.engine.rounds import Progress
from fedspray.runs import store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seed-0").mkdir()
    return tmp_path


def at(round_index: int, best_round: int | None, over: bool = False) -> Progress:
    """A server whose state is the number of its round."""
    detail = {"best_round": best_round} if over else {}
    return Progress({"w": torch.tensor([round_index])}, round_index, best_round, detail=detail)


def shared(folder: Path) -> int:
    tensors, meta = store.read_tensors(folder / "seed-0" / SHARED)
    assert tensors["server.w"].tolist() == [meta["round"]]
    return int(meta["round"])


def play(folder: Path, *progress: Progress) -> ProgressRecorder:
    recorder = ProgressRecorder(folder, "job")
    for each in progress:
        recorder.on_round(0, each)
    return recorder


def test_the_shared_part_is_that_of_the_best_round(folder: Path) -> None:
    recorder = play(folder, at(1, None), at(2, 1), at(3, 2), at(4, 2))
    assert shared(folder) == 2
    recorder.on_round(0, at(4, 4, over=True))
    assert shared(folder) == 4
    recorder.finish()
    assert not (folder / "seed-0" / OLDER).exists()
    assert read_progress(folder)["state"] == "done"


def test_a_crash_right_after_the_best_round(folder: Path) -> None:
    play(folder, at(1, None), at(2, 1))
    play(folder, at(2, 1), at(3, 2))
    assert shared(folder) == 2


@pytest.mark.parametrize("again", [[at(3, 1)], [at(3, 1), at(4, 1), at(4, 1, over=True)]])
def test_what_no_checkpoint_knows_of_is_taken_back(folder: Path, again: list[Progress]) -> None:
    """Round 2 was the best, but the server died before the checkpoint that says so, and then it was not."""
    play(folder, at(1, None), at(2, 1), at(3, 2))
    assert shared(folder) == 2
    play(folder, at(2, 1), *again)
    assert shared(folder) == 1


def test_dying_again_and_again_at_the_same_place_loses_nothing(folder: Path) -> None:
    play(folder, at(1, None), at(2, 1), at(3, 2))
    for _ in range(3):
        play(folder, at(2, 1), at(3, 2))
        assert shared(folder) == 2
    play(folder, at(2, 1), at(3, 1))
    assert shared(folder) == 1
