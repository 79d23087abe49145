"""For whom a round waits, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedspray.deploy.board import Board
from fedspray.deploy.controller import ABSENT, RunController
from fedspray.deploy.host import Quorum
from fedspray.deploy.wire import Ask, Reply, freeze
from fedspray.engine.worker import Request

GRACE = 0.3
LATER = 1.5
"""Seconds after which the grace time is over for certain, had it begun with the first answers."""
GOOD, BAD = Reply(), Reply(error="no")


class Controller(RunController):
    """Without NVFlare around it: tasks are kept, answers are given by hand."""

    def __init__(self, folder: Path) -> None:
        super().__init__("run", "", GRACE)
        (folder / "seed-0").mkdir()
        self._board, self._abort, self._context = Board(folder, "job"), Signal(), FLContext()
        self._tasks: dict[str, Task] = {}

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str]) -> None:
        self._tasks[targets[0]] = task

    def cancel_task(self, task: Task, *_: Any) -> None:
        """Nobody waits for it."""

    def play(self, quorum: Quorum, now: Mapping[str, Reply], later: Mapping[str, Reply]) -> set[str]:
        """Who is heard when some answer at once, some later and one, "never", not at all."""
        sites = [*now, *later, "never"]
        giver = threading.Thread(target=self._give, args=(len(sites), now, later), daemon=True)
        end = threading.Timer(10.0, self._abort.trigger, [True])  # a test that would wait for ever fails
        giver.start()
        end.start()
        try:
            replies = self.deliver({name: Ask(0, Request(1), {}) for name in sites}, quorum)
        finally:
            end.cancel()
        giver.join()
        return {name for name, reply in replies.items() if reply != ABSENT}

    def _give(self, sites: int, now: Mapping[str, Reply], later: Mapping[str, Reply]) -> None:
        while len(self._tasks) < sites:
            time.sleep(0.01)
        for replies in (now, later):
            for name, reply in replies.items():
                answer = ClientTask(Client(name, ""), self._tasks[name])
                answer.result = Shareable()
                head, arrays = reply.pack()
                answer.result["head"], answer.result["arrays"] = head, freeze(arrays)
                self._on_result(answer, self._context)
            time.sleep(LATER if replies is now else 0.0)


def test_evaluations_do_not_start_the_grace_time(tmp_path: Path) -> None:
    """Three of ten sites train, and two of them are needed."""
    evaluators = {f"site_{k}": GOOD for k in range(7)}
    trainers = {"slow": GOOD, "slower": GOOD}
    quorum = Quorum(frozenset({"slow", "slower", "never"}), 2)
    assert Controller(tmp_path).play(quorum, evaluators, trainers) == {*evaluators, *trainers}


def test_errors_do_not_start_the_grace_time(tmp_path: Path) -> None:
    quorum = Quorum(frozenset({"broken", "slow", "never"}), 1)
    assert Controller(tmp_path).play(quorum, {"broken": BAD}, {"slow": GOOD}) == {"broken", "slow"}


def test_after_enough_answers_the_others_have_the_grace_time(tmp_path: Path) -> None:
    quorum = Quorum(frozenset({"quick", "slow", "never"}), 1)
    assert Controller(tmp_path).play(quorum, {"quick": GOOD}, {"slow": GOOD}) == {"quick"}


def test_where_too_many_failed_nobody_is_waited_for_without_an_end(tmp_path: Path) -> None:
    quorum = Quorum(frozenset({"broken", "also_broken", "never"}), 2)
    assert Controller(tmp_path).play(quorum, {"broken": BAD, "also_broken": BAD}, {}) == {"broken", "also_broken"}
