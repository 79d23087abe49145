"""What leaves a site: answers that are in its ledger, and no path and no value of its data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from sites import Sites
from toys import ragged_federation

from fedspray.algorithms.base import Algorithm
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.door import read_ledger
from fedspray.deploy.executor import SiteExecutor
from fedspray.deploy.wire import Ask, Reply, freeze, thaw
from fedspray.engine.worker import Request
from fedspray.runs.settings import RunSettings

SITE = "client_01"


class Context(FLContext):  # type: ignore[misc]
    """As much of NVFlare as an executor needs."""

    def __init__(self, kit: Path, identity: str = SITE) -> None:
        super().__init__()
        workspace = SimpleNamespace(get_root_dir=lambda: str(kit))
        self._engine = SimpleNamespace(get_workspace=lambda: workspace, fire_event=lambda *_: None)
        self._identity = identity

    def get_engine(self, *_: Any) -> Any:
        return self._engine

    def get_identity_name(self, *_: Any, **__: Any) -> str:
        return self._identity


class Job:
    """A job at one site."""

    def __init__(self, folder: Path, fingerprint: str | None = None, identity: str = SITE) -> None:
        federation = ragged_federation()
        self.agreement = Agreement(federation.roster, RunSettings(algorithm="fedavg", values={"rounds": 3}))
        Sites(folder, federation, self.agreement)
        self.kit, self.data = folder / SITE, folder / "data" / "clients" / SITE
        self._executor = SiteExecutor("run", fingerprint or self.agreement.fingerprint())
        self._context = Context(self.kit, identity)

    def start(self) -> Job:
        self._executor.handle_event(EventType.START_RUN, self._context)
        return self

    def send(self, head: Any, arrays: Any) -> Reply:
        request = Shareable()
        request["head"], request["arrays"] = head, arrays
        result = self._executor.execute("round", request, self._context, Signal())
        return Reply.unpack(result["head"], thaw(result["arrays"]))

    def ask(self) -> Reply:
        """The first round's request."""
        algorithm: Algorithm[Any, Any] = self.agreement.settings.build_for(self.agreement.roster)[0][1]
        server = algorithm.init_server(self.agreement.roster.task, 0)
        head, arrays = Ask(0, Request(1, evaluate=False), algorithm.broadcast(server, [1])).pack()
        return self.send(head, freeze(arrays))

    def end(self) -> None:
        self._executor.handle_event(EventType.END_RUN, self._context)


def test_an_answer_that_is_sent_again_is_in_the_ledger_again(tmp_path: Path) -> None:
    job = Job(tmp_path).start()
    first, second = job.ask(), job.ask()
    assert first.error is None
    assert first.pack()[0] == second.pack()[0], "the answer of before, seconds included"
    lines = read_ledger(job.kit)
    assert [(line["run"], line["seed"], line["round"]) for line in lines] == [("run", 0, 1)] * 2
    assert lines[0]["fields"] == lines[1]["fields"]
    job.end()


def test_refusals_are_in_the_ledger(tmp_path: Path) -> None:
    job = Job(tmp_path, fingerprint="0" * 64).start()
    said = job.ask().error
    (line,) = read_ledger(job.kit)
    assert (line["run"], line["seed"], line["round"]) == ("run", 0, 1)
    assert line["fields"]["error"] == len(f'"{said}"')
    job.end()
    assert job.ask().error is not None
    assert len(read_ledger(job.kit)) == 2


@pytest.mark.parametrize(
    ("head", "arrays"),
    [(None, freeze({})), ({"seed": 0, "request": {}}, b"none"), ({"seed": 0, "request": {1: 2, "a": 3}}, freeze({}))],
    ids=["no head", "no arrays", "odd names"],
)
def test_what_cannot_be_read_is_answered_and_in_the_ledger(tmp_path: Path, head: Any, arrays: Any) -> None:
    job = Job(tmp_path).start()
    assert job.send(head, arrays).error is not None
    (line,) = read_ledger(job.kit)
    assert (line["seed"], line["round"]) == (None, None)
    job.end()
