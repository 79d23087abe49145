"""For whom a round waits, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from toys import ragged_federation

from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.messages import wire
from fedspray.deploy.messages.wire import Ask, Reply, freeze
from fedspray.deploy.network.answers import UNREADABLE
from fedspray.deploy.server import controller as controllers
from fedspray.deploy.server.controller import ABSENT, SHUT_OUT, Aborted, RunController
from fedspray.deploy.server.host import Quorum
from fedspray.deploy.server.kit import Server
from fedspray.deploy.server.progress import ProgressRecorder, read_progress
from fedspray.engine.worker import Request
from fedspray.experiment import RunSettings
from fedspray.runs.run import begin_with

GRACE = 0.3
LATER = 1.5
"""Seconds after which the grace time is over for certain, had it begun with the first answers."""
GOOD, BAD = Reply(), Reply(error="no")
DIGESTS = {"quick": "0" * 64, "slow": "f" * 64}


class Controller(RunController):
    """Without NVFlare around it: tasks are kept, answers are given by hand."""

    def __init__(self, folder: Path) -> None:
        super().__init__("run", "", GRACE)
        (folder / "seed-0").mkdir()
        self._recorder, self._abort, self._context = ProgressRecorder(folder, "job"), Signal(), FLContext()
        self._tasks: dict[str, Task] = {}
        self._largest = 1000

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str]) -> None:
        self._tasks[targets[0]] = task

    def cancel_task(self, task: Task, *_: Any) -> None:
        """Nobody waits for it."""

    def play(self, quorum: Quorum, now: Mapping[str, Reply], later: Mapping[str, Reply]) -> set[str]:
        """Who is heard when some answer at once, some later and one, "never", not at all."""
        sites = [*now, *later, "never"]
        giver = threading.Thread(target=self._give, args=(len(sites), now, later), daemon=True)
        end = threading.Timer(60.0, self._abort.trigger, [True])  # a test that would wait for ever fails
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
                self._give_one(self._tasks[name], name, reply)
            time.sleep(LATER if replies is now else 0.0)

    def give_one(self, tasks: Mapping[str, Task], name: str, round_index: int) -> None:
        self._give_one(tasks[name], name, Reply(model=DIGESTS[name], seed=0, round_index=round_index))

    def _give_one(self, task: Task, name: str, reply: Reply) -> None:
        self.give_result(task, name, shareable(reply))

    def give_result(self, task: Task, name: str, result: Shareable) -> None:
        """As NVFlare does: an answer to no task is that of an unknown one."""
        answer = ClientTask(Client(name, ""), task)
        answer.result = result
        task.before_task_sent_cb(answer, self._context)
        if UNREADABLE in result:
            self.process_result_of_unknown_task(answer.client, "round", "", result, self._context)
        else:
            task.result_received_cb(answer, self._context)


def shareable(reply: Reply, **changes: Any) -> Shareable:
    head, arrays = reply.pack()
    return Shareable({"head": head, "arrays": freeze(arrays), **changes})


class Asking(Controller):
    """Asks sites that take up the question after some time, and then say one thing after the other."""

    def __init__(self, folder: Path, said: dict[str, list[Reply]], starts: Mapping[str, float] | None = None) -> None:
        super().__init__(folder)
        self._folder, self._said, self._starts = folder, said, dict(starts or {})
        self.asked: list[tuple[str, int]] = []
        self.waited_for: list[object] = []
        """What was shown when a question was asked."""

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str]) -> None:
        (name,) = targets
        self.asked.append((name, task.data["head"]["turn"]))
        self.waited_for.append(read_progress(self._folder).get("waiting_for"))
        start = threading.Timer(self._starts.pop(name, 0.0), self._take_up, [task, name])
        start.daemon = True
        start.start()

    def _take_up(self, task: Task, name: str) -> None:
        task.before_task_sent_cb(ClientTask(Client(name, ""), task), self._context)
        if self._said[name]:
            threading.Timer(0.05, self._give_one, [task, name, self._said[name].pop(0)]).start()

    def ask(self) -> dict[str, tuple[str, str]]:
        """By site: what is told of it."""
        self._ask_consent(list(self._said), 0, self._folder)
        return {event["sender"]: (event["event"], event["what"]) for event in ledger.read_events(self._folder)}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who is held up is so for moments."""
    monkeypatch.setattr(wire, "HOLD", 0.2)
    monkeypatch.setattr(controllers, "PACE", 0.1)


UNDECIDED = Reply(undecided=True)
NOT_SAID = "did not say whether it takes part"


@pytest.mark.usefixtures("short")
def test_a_new_run_waits_for_a_person_but_not_for_silence(tmp_path: Path) -> None:
    """One site says twice that it has not decided, one refuses, one takes up the question and never answers."""
    controller = Asking(tmp_path, {"slow": [UNDECIDED, UNDECIDED, GOOD], "against": [BAD], "silent": []})
    assert controller.ask() == {"against": ("run refused", "no"), "silent": (NOT_SAID, ABSENT)}
    assert controller.asked == [("slow", 1), ("against", 1), ("silent", 1), ("slow", 2), ("slow", 3)]
    assert controller.waited_for[3:] == [["slow"], ["slow"]], "it is shown between two questions too"
    assert read_progress(tmp_path)["waiting_for"] == []


def test_a_site_that_does_not_wait_for_its_person_is_asked_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "PACE", 0.5)
    controller = Asking(tmp_path, {"hasty": [UNDECIDED] * 3 + [GOOD]})
    began = time.monotonic()
    assert controller.ask() == {}
    assert time.monotonic() - began > 1.5
    assert controller.waited_for[1:] == [["hasty"]] * 3


@pytest.mark.usefixtures("short")
def test_a_site_that_refuses_and_is_undecided_has_refused(tmp_path: Path) -> None:
    controller = Asking(tmp_path, {"odd": [Reply(error="no", undecided=True)] * 2})
    assert controller.ask() == {"odd": ("run refused", "no")}
    assert controller.asked == [("odd", 1)]


def test_a_site_that_never_decides_is_not_waited_for_once_it_is_shut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it holds back its second answer."""
    monkeypatch.setattr(controllers, "PACE", 0.1)
    controller = Asking(tmp_path, {"never": [UNDECIDED]})
    began = time.monotonic()
    controller._shut_out = lambda: {"never"} if time.monotonic() - began > 2.0 else ()
    assert controller.ask() == {"never": (NOT_SAID, SHUT_OUT)}
    assert time.monotonic() - began < 10.0
    assert controller.asked == [("never", 1), ("never", 2)]


@pytest.mark.usefixtures("short")
def test_a_site_that_starts_slowly_has_its_time_from_then_on(tmp_path: Path) -> None:
    controller = Asking(tmp_path, {"late": [UNDECIDED, GOOD], "quick": [GOOD]}, {"late": 0.2 + GRACE - 0.05})
    assert controller.ask() == {}
    assert controller.asked[-1] == ("late", 2)


@pytest.mark.usefixtures("short")
def test_a_run_that_goes_on_waits_for_a_site_that_is_starting(tmp_path: Path) -> None:
    """For longer than the grace time, which would leave it out of the first rounds."""
    controller = Asking(tmp_path, {"quick": [GOOD], "starting": [GOOD]}, {"starting": LATER})
    (tmp_path / "seed-0" / "checkpoint.safetensors").touch()
    began = time.monotonic()
    assert controller.ask() == {}
    assert time.monotonic() - began > LATER > GRACE


@pytest.mark.usefixtures("short")
def test_a_site_that_never_starts_is_not_waited_for_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "STARTING", LATER)
    controller = Asking(tmp_path, {"quick": [GOOD], "dead": []}, {"dead": 60.0})
    began = time.monotonic()
    assert controller.ask() == {"dead": (NOT_SAID, ABSENT)}
    assert LATER < time.monotonic() - began < 10.0


@pytest.mark.usefixtures("short")
def test_a_run_that_is_under_way_asks_once(tmp_path: Path) -> None:
    controller = Asking(tmp_path, {"late": [UNDECIDED]})
    (tmp_path / "seed-0" / "checkpoint.safetensors").touch()
    assert controller.ask() == {}
    assert controller.asked == [("late", 1)]


@pytest.mark.parametrize("answers", [[], [UNDECIDED]])
def test_a_job_that_is_stopped_while_it_asks(tmp_path: Path, answers: list[Reply]) -> None:
    controller = Asking(tmp_path, {"slow": answers})
    threading.Timer(0.5, controller._abort.trigger, [True]).start()
    began = time.monotonic()
    with pytest.raises(Aborted):
        controller.ask()
    assert time.monotonic() - began < 5.0


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


def test_a_round_does_not_wait_for_a_site_that_is_shut_out(tmp_path: Path) -> None:
    """Once there are enough answers without it; before, it may be enabled again."""
    controller = Controller(tmp_path)
    controller._grace = 60.0
    controller._shut_out = lambda: {"never"}
    quorum = Quorum(frozenset({"quick", "slow", "never"}), 2)
    began = time.monotonic()
    assert controller.play(quorum, {"quick": GOOD}, {"slow": GOOD}) == {"quick", "slow"}
    assert LATER < time.monotonic() - began < 30.0


def test_where_too_many_failed_nobody_is_waited_for_without_an_end(tmp_path: Path) -> None:
    quorum = Quorum(frozenset({"broken", "also_broken", "never"}), 2)
    assert Controller(tmp_path).play(quorum, {"broken": BAD, "also_broken": BAD}, {}) == {"broken", "also_broken"}


def test_an_answer_that_is_read_when_the_next_round_has_begun_is_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large answers take their time to be read."""
    controller, reading, go_on = Controller(tmp_path), threading.Event(), threading.Event()
    read = controllers._read

    def slowly(result: Shareable, largest: int) -> Reply | str:
        reply = read(result, largest)
        if isinstance(reply, Reply) and reply.round_index == 1 and reply.model == DIGESTS["slow"]:
            reading.set()
            go_on.wait(60)
        return reply

    monkeypatch.setattr(controllers, "_read", slowly)
    quorum = Quorum(frozenset({"quick", "slow"}), 1)
    late: list[threading.Thread] = []

    def give(round_index: int) -> None:
        while len(controller._tasks) < 2:
            time.sleep(0.01)
        tasks = dict(controller._tasks)
        if round_index == 1:
            late.append(threading.Thread(target=controller.give_one, args=(tasks, "slow", 1), daemon=True))
            late[0].start()
            reading.wait(10)
        else:
            go_on.set()
            late[0].join()
        controller.give_one(tasks, "quick", round_index)

    for round_index in (1, 2):
        controller._tasks = {}
        giver = threading.Thread(target=give, args=(round_index,), daemon=True)
        giver.start()
        asks = {name: Ask(0, Request(round_index), {}) for name in ("quick", "slow")}
        replies = controller.deliver(asks, quorum)
        giver.join()
        assert replies["slow"] == ABSENT
        assert isinstance(replies["quick"], Reply)
        assert replies["quick"].round_index == round_index


class Odd(Exception):
    """What an answer of NVFlare's classes may raise when it is looked at."""


class Trap(Shareable):  # type: ignore[misc]
    """An answer that cannot even be asked for its return code."""

    def get_return_code(self, *_: Any) -> str:
        raise Odd


def code(name: str) -> Shareable:
    answer = shareable(GOOD)
    answer.set_return_code(name)
    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Shareable({UNREADABLE: "it names the class 'os.system'"}), "its answer cannot be read: it names the class"),
        (shareable(GOOD, arrays=b"0" * 2000), "its answer cannot be read: 2,000 bytes came, but no message has more"),
        (shareable(GOOD, arrays=["0"]), "its answer cannot be read: bytes are needed, but list came"),
        (shareable(GOOD, head={}), "its answer cannot be read: the fields "),
        (shareable(Reply(seconds=float("nan"))), "its answer cannot be read: seconds is nan"),
        (code(ReturnCode.UNSAFE_JOB), "NVFlare reports UNSAFE_JOB"),
        (code("\x1b[2J" * 1000), "NVFlare reports [2J [2J"),
        (Trap(), "its answer cannot be read (Odd)"),
    ],
)
def test_an_answer_that_is_none_is_the_failure_of_its_site(tmp_path: Path, answer: Shareable, reason: str) -> None:
    controller = Controller(tmp_path)

    def give() -> None:
        while len(controller._tasks) < 2:
            time.sleep(0.01)
        tasks = dict(controller._tasks)
        controller.give_result(tasks["odd"], "odd", answer)
        controller.give_result(tasks["good"], "good", shareable(GOOD))

    giver = threading.Thread(target=give, daemon=True)
    giver.start()
    replies = controller.deliver(
        {name: Ask(0, Request(1), {}) for name in ("odd", "good")}, Quorum(frozenset({"odd", "good"}), 2)
    )
    giver.join()
    assert isinstance(replies["good"], Reply)
    assert isinstance(replies["odd"], str)
    assert replies["odd"].startswith(reason)
    assert replies["odd"].isprintable()
    assert len(replies["odd"]) < 400


def test_why_a_job_cannot_begin_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(ragged_federation().roster, RunSettings())
    (tmp_path / "local").mkdir()
    agreement.save(tmp_path / "local")
    Server(tmp_path, tmp_path / "runs").save()
    begin_with(tmp_path / "runs" / "first", agreement.roster, agreement.settings, None, None)
    context = SimpleNamespace(
        get_engine=lambda: SimpleNamespace(get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(tmp_path))),
        get_job_id=lambda: "job",
    )
    controller, panics = RunController("first", "0" * 64, GRACE), []
    monkeypatch.setattr(controller, "system_panic", lambda reason, _: panics.append(reason))
    controller.control_flow(Signal(), context)
    progress = read_progress(tmp_path / "runs" / "first")
    assert progress["state"] == "stopped"
    assert progress["reason"].startswith("the job is for agreement 000000000000, but the server has ")
    assert panics == [progress["reason"]]  # NVFlare must not call the job completed
